"""SAQ: 100 jobs at once, results dropped."""

from saq import Queue

from work import TEXT, URL, fastest_loop, ran

queue = Queue.from_url(URL)
COMMAND = ("saq", "work.on_saq.settings", "--quiet")
SHARE = 0.5


async def noop(ctx, *, a, b, text):
    ran()


settings = {"queue": queue, "functions": [noop], "concurrency": 100}


def enqueue(jobs):
    async def all_of_them():
        await queue.connect()
        for number in range(jobs):
            await queue.enqueue("noop", a=number, b=2, text=TEXT, ttl=-1)
        await queue.disconnect()

    fastest_loop(all_of_them)
