"""Dramatiq: one process of eight threads."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from work import TEXT, URL, ran

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor
def noop(a, b, text):
    ran(a)


def enqueue(values):
    for value in values:
        noop.send(value, 2, TEXT)
