"""Penstock: 100 jobs at once, results kept for a minute."""

from penstock import Penstock
from work import TEXT, URL, ran

app = Penstock(URL)


@app.task(result_ttl=60)
async def noop(a: float, b: int, text: str) -> int:
    ran(a)
    return b


def connect():
    app.queue("default").count()


def enqueue(values):
    for value in values:
        noop.enqueue(value, 2, TEXT)
