"""Huey: one process of four threads, results dropped."""

from huey import RedisHuey

from work import TEXT, URL, ran

huey = RedisHuey(url=URL, results=False)
COMMAND = ("huey_consumer", "work.on_huey.huey", "--worker-type", "thread", "--workers", "4", "--quiet")


@huey.task()
def noop(a, b, text):
    ran()


def enqueue(jobs):
    for number in range(jobs):
        noop(number, 2, TEXT)
