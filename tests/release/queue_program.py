"""A program of a shop, which is started with the Python of one release or of another: `queue_program.py VERB [NUMBER]`.

produce N   enqueue N jobs of each kind, and print their ids
work        run what is ready and due, and end; print how many jobs were run
read        print for each id on stdin its status and its result
expect N    raise unless N jobs wait
"""

import asyncio
import sys
from typing import Any

from penstock import Concurrency, Job, Penstock, Retry, Unique, Worker, WorkerSettings, chain, current

app = Penstock()


@app.task(queue="shop", retry=Retry(3, base=0.01))
async def double(n: int) -> int:
    if n % 7 == 0 and current().attempt == 1:
        raise OSError("try again")
    return 2 * n


@app.task(queue="shop", unique=Unique("{order}"), limit=Concurrency(2, key="{tenant}"))
def charge(order: int) -> str:
    return f"charged {order}"


@app.task(queue="shop")
async def label(text: str) -> str:
    return text.upper()


def produce(number: int) -> None:
    jobs: list[Job[Any]] = [
        *app.enqueue_many(double.using(tenant=f"t{n % 3}", priority=n % 10).call(n) for n in range(number))
    ]
    jobs += [charge.using(tenant="acme").enqueue(order) for order in range(number)]
    jobs += [double.using(delay=0.2).enqueue(n) for n in range(number)]
    jobs.append(chain(label.call("a"), label.call("b")).enqueue())
    print(*(job.id for job in jobs), sep="\n")


async def work() -> None:
    async with app:
        while (counts := await app.queue("shop").count.aio()).waiting or counts.dependent:
            await Worker(app, WorkerSettings(concurrency=20, burst=True)).run()
            await asyncio.sleep(0.05)
        print(counts.completed)


def read() -> None:
    for line in sys.stdin:
        job = app.job(line.strip())
        print(job.id, job.status().value, job.result(timeout=0), sep="\t")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", number]:
            produce(int(number))
        case ["work"]:
            asyncio.run(work())
        case ["read"]:
            read()
        case other:
            raise SystemExit(f"unknown: {other}")
