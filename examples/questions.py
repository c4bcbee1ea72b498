"""Questions to language models, many in one request, with a limit of requests for each provider's key.

A batch is of one tenant, and the tenant is the key of a provider: a request has the questions of one key only. The rate
limit inside the task counts each batch once. One question that cannot be answered fails alone.

Run it with `python examples/questions.py`. The model is made up, and answers with the length of the question.
"""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from penstock import Batch, JobFailed, Penstock, Retry, Worker, WorkerSettings, current

app = Penstock(prefix="example-questions")

PER_SECOND = 5

requests: dict[str, list[float]] = defaultdict(list)
"""When the model got a request, by the key of the provider."""


@dataclass
class Question:
    id: int
    text: str


class Refused(Exception):
    """The model does not answer this question, however often it is asked."""


async def ask_model(key: str, texts: list[str]) -> list[str]:
    """One request to the provider; an empty answer is a refusal."""
    requests[key].append(time.monotonic())
    await asyncio.sleep(0.02)
    return [f"{len(text)} letters" if "?" in text else "" for text in texts]


@app.task(queue="questions", batch=Batch(10, linger=0.1, by_tenant=True), retry=Retry(3, never=Refused))
async def answer(questions: list[Question]) -> list[str | Exception]:
    key = current().tenant
    await app.rate_limit(f"model:{key}", limit=PER_SECOND, per=1, burst=1).acquire.aio(wait=30)
    answers = await ask_model(key, [question.text for question in questions])
    return [text or Refused(f"question {one.id}") for one, text in zip(questions, answers, strict=True)]


async def main() -> None:
    async with app:
        working = asyncio.create_task((worker := Worker(app, WorkerSettings(concurrency=4))).run())
        jobs = await app.enqueue_many.aio(
            answer.using(tenant=key).call(Question(n, f"What is {n}?" if n != 13 else "Do it."))
            for n in range(40)
            for key in ("acme", "globex")
        )
        answers = await asyncio.gather(*(job.result.aio(timeout=30) for job in jobs), return_exceptions=True)
        worker.stop()
        await working
    refused = [one for one in answers if isinstance(one, JobFailed)]
    print(f"{len(answers) - len(refused)} answers, {len(refused)} refusals: {refused[0].reason}")
    assert (len(answers), len(refused)) == (80, 2)
    for key, times in requests.items():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        print(f"{key}: {len(times)} requests, at least {min(gaps):.2f} s apart")
        assert len(times) < 15


asyncio.run(main())
