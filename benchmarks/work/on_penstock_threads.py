"""Penstock with a `def` task: 100 jobs at once, in threads, results dropped."""

from penstock import Penstock
from work import TEXT, URL, ran

app = Penstock(URL)


@app.task(result_ttl=0)
def noop(a: float, b: int, text: str) -> None:
    ran(a)


def connect():
    app.queue("default").count()


def enqueue(values):
    for value in values:
        noop.enqueue(value, 2, TEXT)
