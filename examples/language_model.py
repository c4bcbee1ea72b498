"""A pipeline around a language model: texts are embedded in batches, and each provider's key has a limit of its own.

Run it with `python examples/language_model.py`. The model is a sleep.
"""

import asyncio
from collections import Counter

from penstock import RESULT, Batch, Concurrency, Penstock, Retry, Worker, WorkerSettings, group

app = Penstock(prefix="example-model")

AT_ONCE = 2
running, most = Counter[str](), Counter[str]()
batches: list[int] = []


@app.task(queue="embed", batch=Batch(16, linger=0.05))
async def embed(texts: list[str]) -> list[list[float]]:
    """One request to the provider for up to sixteen texts."""
    batches.append(len(texts))
    return [[float(len(text))] for text in texts]


@app.task(queue="ask", limit=Concurrency(AT_ONCE, key="{provider_key}"), retry=Retry(3), timeout=30)
async def ask(provider_key: str, question: str) -> str:
    running[provider_key] += 1
    most[provider_key] = max(most[provider_key], running[provider_key])
    await asyncio.sleep(0.05)
    running[provider_key] -= 1
    return f"{provider_key} answers {question!r}"


@app.task(queue="ask")
async def merge(answers: list[str]) -> str:
    return "\n".join(answers)


async def main() -> None:
    async with app:
        vectors = [await embed.enqueue.aio(f"text {n}") for n in range(40)]
        questions = [ask.call(key, f"question {n}") for n in range(5) for key in ("key-a", "key-b")]
        summary = await group(*questions).then(merge.call(RESULT)).enqueue.aio()
        await Worker(app, WorkerSettings(concurrency=20, burst=True)).run()
        assert [await job.result.aio(timeout=5) for job in vectors] == [[float(len(f"text {n}"))] for n in range(40)]
        print(await summary.result.aio(timeout=5))
    print(f"{len(batches)} requests for 40 texts; at most {dict(most)} at once")
    assert max(batches) > 1
    assert most == {"key-a": AT_ONCE, "key-b": AT_ONCE}


asyncio.run(main())
