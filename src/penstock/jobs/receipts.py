"""Enqueueing calls that their sender keeps in a store of its own until the queue has them (see `receipts.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from penstock.core.operations import Arg, Driver, FindNodes, Operation, RoundTrip, SendCommands, verb
from penstock.errors import ConfigurationError, ServerRefused
from penstock.jobs.bindings import scripts
from penstock.jobs.constants import ACCEPTED, KNOWN, TOO_OLD
from penstock.jobs.keys import beat_key
from penstock.jobs.queue import Queue

ACCEPT_CHUNK: Final = 250
"""Calls that one round trip brings."""

__all__ = ["ACCEPTED", "KNOWN", "TOO_OLD", "ACCEPT_CHUNK", "KeptCall", "Receipts", "StoreBeat"]


class KeptCall(NamedTuple):
    """A call that its sender keeps until it was accepted.

    number  a random number of 63 bits, drawn when the call was stored, by which the queue recognises it
    age     milliseconds since then, by the clock of the store
    """

    number: int
    age: int
    key: str
    record: bytes


class Receipts:
    """The receipts of one queue: it accepts each call once, however often it is sent."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def _driver(self) -> Driver:
        return self._queue._driver

    @verb
    def accept(self, calls: Sequence[KeptCall], durable: bool = False) -> RoundTrip[list[bytes]]:
        """Enqueue up to 250 calls. Returns a letter for each: ACCEPTED, KNOWN or TOO_OLD. One round trip.

        A call that is too old was not enqueued: the queue cannot know whether it was accepted before. Raises what
        `put` raises, and ConfigurationError for a queue with shards.
        """
        bindings, name = self._queue.first.bindings, self._queue.name
        args: list[Arg] = [bindings.clock.now_ms]
        args += chain.from_iterable((_bytes(one.number), one.age, one.key, one.record) for one in calls)

        def read(reply: bytes) -> list[bytes]:
            if reply == b"SPLIT":
                raise ConfigurationError(
                    f"queue {name} has shards, and a queue with shards takes no calls from a database: enqueue them "
                    "by themselves, or in another queue"
                )
            return [reply[i : i + 1] for i in range(len(reply))]

        return RoundTrip(bindings._scripts["accept"], bindings.keys.declared, tuple(args), read, durable)

    @verb
    def forget(self, numbers: Sequence[int]) -> RoundTrip[None]:
        """Return receipts of calls that were deleted from their store, at most 250. They are dropped a minute later."""
        bindings = self._queue.first.bindings
        args: tuple[Arg, ...] = (bindings.clock.now_ms, *map(_bytes, numbers))
        script = bindings._scripts["forget_receipts"]
        return RoundTrip(script, bindings.keys.declared, args, lambda _: None)

    @verb
    def run_id(self) -> Operation[str]:
        """The run id of the server that has the queue. It changes with each start and each fail-over.

        Raises ServerRefused for a user without the right to INFO. One round trip.
        """
        (node,) = yield FindNodes(self._queue.first.bindings.keys.base)
        (reply,) = yield SendCommands(node, (("INFO", "server"),))
        if isinstance(reply, Exception):
            raise ServerRefused(f"INFO server: {reply}: give the user of Penstock the right to INFO") from reply
        text = reply.decode() if isinstance(reply, bytes) else str(reply)
        return next((line[7:].strip() for line in text.splitlines() if line.startswith("run_id:")), "")


class StoreBeat:
    """Detects that a store of calls was reset to an earlier state. `store`: a random name that is kept in the store."""

    def __init__(self, driver: Driver, prefix: str) -> None:
        self._driver = driver
        self._prefix = prefix

    @verb
    def report(self, store: str, number: int) -> RoundTrip[int]:
        """Report the number of a store. Returns the highest that was ever reported for it. One round trip."""
        return RoundTrip(scripts()["beat"], (beat_key(self._prefix, store),), (number,), int)


def _bytes(number: int) -> bytes:
    return number.to_bytes(8)
