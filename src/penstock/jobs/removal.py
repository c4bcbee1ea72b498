"""Removing an empty queue, and what is left of its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.core.keys import REPLAY
from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.errors import PenstockError
from penstock.jobs.bindings import SLICE, QueueBindings
from penstock.jobs.keys import QUEUE
from penstock.jobs.shard import Shard
from penstock.jobs.shards import ShardMap

KEPT: Final = (*REPLAY, "settled:", "receipts", "user:")
"""The keys that a removal leaves: those that recognise a call that is sent again, until they expire, and the user's."""

_NUMBERED: Final = {"rotation:": range(10), "heads:": range(10), "owed:": range(10), "ends:": range(64)}
"""Names that end in a number: the level, or the class of a ttl."""

_NAMES: Final = (
    *(name for name in QUEUE if not name.endswith(":") and name not in KEPT),
    *(f"{name}{number}" for name, numbers in _NUMBERED.items() for number in numbers),
    *("history:10", "history:60"),
)
"""The keys that are deleted by the same script that finds the queue empty."""

_TRIES: Final = 100
"""How often the leftovers of cancelled jobs are removed before the removal gives up."""


def remove_queue(shards: ShardMap) -> Operation[None]:
    """Delete an empty queue with its settings, totals, history and kept results.

    Raises PenstockError, with counts, unless it is empty: it has no job in any state, no schedule, nothing in its
    outbox and no live worker. Nothing is deleted then. What has a time to live, such as the window of a throttled key,
    goes at its time. The next call that is enqueued begins a new queue.

    Two round trips; with shards, for each. More if many cancelled jobs have left entries in lanes.
    """
    known = (yield from shards.refresh()).known
    for shard in (*known[1:], known[0]):  # the first one has the table of shards
        yield from _remove_shard(shards.first.name, shard, known)


def _remove_shard(queue: str, shard: Shard, known: Sequence[Shard]) -> Operation[None]:
    left = dict[str, int]()
    for _ in range(_TRIES):
        counts: Sequence[dict[str, int]] = yield Parallel(tuple(_remove(one.bindings, ()) for one in known))
        total: dict[str, int] = {}
        for name, number in (one for count in counts for one in count.items()):
            total[name] = total.get(name, 0) + number
        total.pop("leftovers", None)
        if total:
            raise PenstockError(f"queue {queue} is not empty: {_counted(total)}; nothing was removed")
        left = yield _remove(shard.bindings, _NAMES)
        if not left:
            return
        is_done, offset = False, 0
        while not is_done:
            _, offset, is_done, _ = yield shard.bindings.purge_parked(None, offset, SLICE)
        yield shard.bindings.purge(None, 0, SLICE)
    raise PenstockError(f"queue {queue} has {_counted(left)}: start a worker, which removes them")


def _counted(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())


def _remove(bindings: QueueBindings, names: Sequence[str]) -> RoundTrip[dict[str, int]]:
    """Delete the keys of these names, if the queue is empty. Returns what it has otherwise."""

    def read(reply: Sequence[Any]) -> dict[str, int]:
        return {name.decode(): int(number) for name, number in zip(reply[0::2], reply[1::2], strict=True)}

    return bindings._call("remove_queue", (bindings.clock.now_ms, *names), read)


def sweep(bindings: QueueBindings, names: Sequence[bytes]) -> RoundTrip[bool]:
    """Delete further keys of a queue that was removed, by what follows its tag. False: the queue is there again."""
    return bindings._call("sweep_queue", tuple(names), bool)
