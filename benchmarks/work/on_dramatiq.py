"""Dramatiq: one process of eight threads."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from work import TEXT, URL, ran

dramatiq.set_broker(RedisBroker(url=URL))
COMMAND = ("dramatiq", "work.on_dramatiq", "--processes", "1", "--threads", "8")
ENVIRONMENT = {"dramatiq_queue_prefetch": "500"}


@dramatiq.actor
def noop(a, b, text):
    ran()


def enqueue(jobs):
    for number in range(jobs):
        noop.send(number, 2, TEXT)
