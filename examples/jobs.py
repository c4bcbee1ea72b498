"""Jobs with priorities, tenants and results, and the worker that runs them, in one process."""

import asyncio

from penstock import JobFailed, Penstock, Retry, Worker, WorkerSettings

app = Penstock(prefix="example")


@app.task(queue="pages", retry=Retry(2, base=0.01))
async def fetch(url: str) -> int:
    if "broken" in url:
        raise ConnectionError(f"{url} does not answer")
    return len(url)


@app.task(queue="pages")
def render(width: int, height: int = 10) -> str:
    return f"{width}x{height}"


async def main() -> None:
    async with app:
        noisy = [fetch.using(tenant="noisy").call(f"https://noisy.example/{n}") for n in range(200)]
        jobs = await app.enqueue_many.aio(noisy)
        quiet = await fetch.using(tenant="quiet").enqueue.aio("https://quiet.example/")
        urgent = await render.using(priority=0).enqueue.aio(640, height=480)
        broken = await fetch.enqueue.aio("https://broken.example/")

        worker = Worker(app, WorkerSettings(concurrency=8))
        working = asyncio.create_task(worker.run())
        print("noisy tenant:", sum([await job.result.aio() for job in jobs]), "characters")
        print("quiet tenant:", await quiet.result.aio(), "characters")
        print("urgent:", await urgent.result.aio())
        try:
            await broken.result.aio(timeout=5)
        except JobFailed as failed:
            print("dead letter:", failed.reason)
        worker.stop()
        await working
        await app.queue("pages").dead.remove.aio(broken.id)
        print(await app.queue("pages").count.aio())


asyncio.run(main())
