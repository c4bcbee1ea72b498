"""SAQ: 100 jobs at once, results dropped."""

import asyncio

from saq import Queue

from work import TEXT, URL, ran, use_the_fastest_loop

queue = Queue.from_url(URL)
use_the_fastest_loop()


async def noop(ctx, *, a, b, text):
    ran(a)


settings = {"queue": queue, "functions": [noop], "concurrency": 100}


def enqueue(values):
    async def all_of_them():
        await queue.connect()
        for value in values:
            await queue.enqueue("noop", a=value, b=2, text=TEXT, ttl=-1)
        await queue.disconnect()

    asyncio.run(all_of_them())
