"""Data that a newer Penstock stored is neither read nor changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Item, Job, Penstock, Queue
from penstock.errors import FormatTooNew
from penstock.jobs.constants import FORMAT
from tests.conftest import Do


@dataclass
class OlderRelease:
    """The handles that an older release has on a queue when a newer one has written to it."""

    queue: Queue
    job: Job[Any]
    held: Item
    dead: Item


def dump(raw: Any, queue: Queue) -> dict[bytes, Any]:
    keys = raw.scan_iter(f"{queue.first.bindings.keys.base}*")
    return {key: raw.dump(key) for key in keys if b"replay:" not in key}


WRITES: dict[str, Callable[[OlderRelease], tuple[Any, ...]]] = {
    "put": lambda left: (left.queue.put, 1),
    "put_many": lambda left: (left.queue.put_many, [1, 2]),
    "claim": lambda left: (left.queue.claim,),
    "purge": lambda left: (left.queue.purge,),
    "requeue": lambda left: (left.queue.dead.requeue, left.dead.id),
    "remove": lambda left: (left.queue.dead.remove, left.dead.id),
    "cancel": lambda left: (left.job.cancel,),
    "complete": lambda left: (left.held.complete,),
    "retry": lambda left: (left.held.retry,),
    "pause": lambda left: (left.queue.pause,),
    "resume": lambda left: (left.queue.resume,),
    "weigh": lambda left: (left.queue.tenant("a").weigh, 2),
}
READS: dict[str, Callable[[OlderRelease], tuple[Any, ...]]] = {
    "count": lambda left: (left.queue.count,),
    "count of a tenant": lambda left: (left.queue.tenant("a").count,),
    "status": lambda left: (left.job.status,),
    "info": lambda left: (left.job.info,),
    "result": lambda left: (left.job.result, 0),
    "dead letters": lambda left: (left.queue.dead.list,),
}


def change_format(raw: Any, queue: Queue, number: int) -> None:
    """As another release would: it moves the calls of the intake, and deletes that before it changes anything else."""
    base = queue.first.bindings.keys.base
    raw.delete(base + "intake")
    raw.hset(base + "meta", "row", bytes([number]) + raw.hget(base + "meta", "row")[1:])


@pytest.mark.parametrize("verb", [*WRITES, *READS])
async def test_a_newer_format_is_neither_read_nor_changed(app: Penstock, do: Do, raw: Any, verb: str):
    queue = app.queue("raw")
    meta = f"{queue.first.bindings.keys.base}meta"
    jobs = await do(queue.put_many, range(3))
    held, dead = await do(queue.claim, 2)
    await do(dead.fail, "no")
    row = raw.hget(meta, "row")
    assert row[0] == FORMAT
    change_format(raw, queue, FORMAT + 1)
    before = dump(raw, queue)
    what, *arguments = {**WRITES, **READS}[verb](OlderRelease(queue, jobs[-1], held, dead))
    with pytest.raises(FormatTooNew, match=str(FORMAT + 1)):
        await do(what, *arguments)
    assert dump(raw, queue) == before
    raw.hset(meta, "row", row)
    await do(held.complete)


async def test_the_refusal_of_an_older_format_says_what_to_do(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    meta = f"{queue.first.bindings.keys.base}meta"
    await do(queue.put, 1)
    row = raw.hget(meta, "row")
    change_format(raw, queue, 2)
    with pytest.raises(FormatTooNew, match=r"2, this Penstock reads 3: an older Penstock .* let that finish its jobs"):
        await do(queue.put, 2)
    raw.hset(meta, "row", row)
