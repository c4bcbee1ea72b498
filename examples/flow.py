"""A flow: a job for each part, one of which fails for good, and a summary that continues with the rest."""

import asyncio

from penstock import RESULT, Penstock, Retry, Worker, WorkerSettings

app = Penstock(prefix="example-flow")


@app.task(queue="reports", retry=Retry(0))
async def count_words(page: str) -> int:
    if not page:
        raise ValueError("an empty page")
    return len(page.split())


@app.task(queue="reports")
async def summarize(counts: list[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{sum(known)} words on {len(known)} of {len(counts)} pages"


async def main() -> None:
    async with app:
        pages = ["one two three", "", "four five"]
        flow = count_words.map(pages).then(summarize.using(on_failure="continue").call(RESULT))
        summary = await flow.enqueue.aio()
        await Worker(app, WorkerSettings(concurrency=8, burst=True)).run()
        said = await summary.result.aio(timeout=5)
        assert said == "5 words on 2 of 3 pages", said
        print(said)
        tree = await summary.tree.aio()
        for page, part in zip(pages, tree.predecessors, strict=True):
            print(f"{part.status:10}", repr(page))
        await app.queue("reports").dead.remove.aio(tree.predecessors[1].id)


asyncio.run(main())
