"""Huey: one process of four threads, results dropped."""

from huey import RedisHuey

from work import TEXT, URL, ran

huey = RedisHuey(url=URL, results=False)


@huey.task()
def noop(a, b, text):
    ran(a)


def enqueue(values):
    for value in values:
        noop(value, 2, TEXT)
