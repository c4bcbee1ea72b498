"""Penstock: 100 jobs at once, results dropped."""

from penstock import Penstock
from work import TEXT, URL, ran

app = Penstock(URL)
COMMAND = ("penstock", "worker", "work.on_penstock", "-c", "100", "--processes", "0", "--log-level", "error")


@app.task(result_ttl=0)
async def noop(a: int, b: int, text: str) -> None:
    ran()


def connect():
    """Imports the client library, too."""
    app.queue("default").count()


def enqueue(jobs):
    for number in range(jobs):
        noop.enqueue(number, 2, TEXT)
