"""RQ: its worker that does not fork, results dropped."""

from redis import Redis
from rq import Queue

from work import TEXT, URL, ran


def noop(a, b, text):
    ran(a)


def enqueue(values):
    queue = Queue(connection=Redis.from_url(URL))
    for value in values:
        queue.enqueue(noop, value, 2, TEXT, result_ttl=0)
