"""RQ: its worker that does not fork, results dropped."""

from redis import Redis
from rq import Queue

from work import TEXT, URL, ran

COMMAND = ("rq", "worker", "--url", URL, "--worker-class", "rq.SimpleWorker", "--quiet")
SHARE = 0.1


def noop(a, b, text):
    ran()


def enqueue(jobs):
    queue = Queue(connection=Redis.from_url(URL))
    for number in range(jobs):
        queue.enqueue(noop, number, 2, TEXT, result_ttl=0)
