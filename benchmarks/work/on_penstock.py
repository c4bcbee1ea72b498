"""Penstock: 100 jobs at once, results dropped."""

from penstock import Penstock
from work import TEXT, URL, ran

app = Penstock(URL)


@app.task(result_ttl=0)
async def noop(a: float, b: int, text: str) -> None:
    ran(a)


def connect():
    """Imports the client library, too."""
    app.queue("default").count()


def enqueue(values):
    for value in values:
        noop.enqueue(value, 2, TEXT)


def enqueue_bulk(values):
    app.enqueue_many(noop.call(value, 2, TEXT) for value in values)
