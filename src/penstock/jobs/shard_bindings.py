"""The scripts of shards as round trips (see `shards.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.constants import MOST_BYTES
from penstock.jobs.enqueue_reply import OnDouble, OnRefusal


class Elsewhere(NamedTuple):
    """A shard refused jobs: it knows a newer `table`, or these `tenants` have another shard by now."""

    table: str
    tenants: tuple[str, ...] = ()

    @classmethod
    def read(cls, reply: Sequence[bytes]) -> Elsewhere:
        word, *texts = (text.decode() for text in reply)
        return cls(texts[0]) if word == "TABLE" else cls("", tuple(texts))


class ShardBindings:
    """Builds the round trips of one shard. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def enqueue(
        self,
        jobs: Sequence[Arg],
        table: str,
        *,
        moving: bool = False,
        plain: bool = False,
        durable: bool = False,
        on_double: OnDouble | None = None,
        on_refusal: OnRefusal | None = None,
    ) -> RoundTrip[list[int] | Elsewhere]:
        """As `QueueBindings.enqueue`, by this table (see `shards.lua`); `plain`: as `enqueue_plain`.

        moving  all tenants of these jobs are to move to another shard, or have moved already
        """
        queue = self._queue
        args = (*UNNUMBERED, queue.clock.now_ms, table, int(moving), *jobs)
        read = partial(queue.replies.positions, on_double=on_double, on_refusal=on_refusal)
        if plain and queue.replies.may_take_in and len(jobs[1]) <= MOST_BYTES:  # type: ignore[arg-type]
            shortcut = queue._scripts["take_in_shard"]
        else:
            shortcut = None

        def read_shard(reply: int | list[Any]) -> list[int] | Elsewhere:
            if isinstance(reply, list) and reply and isinstance(reply[0], bytes):
                return Elsewhere.read(reply)
            return read(reply)

        return RoundTrip(
            queue._scripts["enqueue_in_shard"],
            queue._declared,
            args,
            read_shard,
            durable,
            shortcut=shortcut,
            group_from=len(args) - len(jobs) if plain and not durable else 0,
        )

    def take_in(self, job_id: str, record: bytes, table: str) -> RoundTrip[bool]:
        """As `QueueBindings.take_in`, by this table."""
        args = (*UNNUMBERED, self._queue.clock.now_ms, table, 0, job_id, record)
        return self._queue._call("take_in_shard", args, bool)

    def table(self, number: int) -> RoundTrip[str]:
        """The table of shards. A missing one is stored: with `number` shards, or with one if there are jobs.

        With `number` 0, a missing table is not stored, and "" is returned.
        """
        return self._queue._call("shards", (self._queue.clock.now_ms, number), bytes.decode)

    def change(self, expected: str, table: str) -> RoundTrip[str]:
        """Replace the table of shards. Returns the stored one: another one if the old table was not `expected`."""
        return self._queue._call("change_shards", (self._queue.clock.now_ms, expected, table), bytes.decode)

    def adopt(self, table: str) -> RoundTrip[str]:
        """Store the table in a further shard, unless it knows a newer one. Returns the one that is stored."""
        return self._queue._call("adopt_shards", (self._queue.clock.now_ms, table), bytes.decode)

    def scan_windows(self, cursor: str) -> RoundTrip[tuple[str, list[str]]]:
        """A page of the tenants that a window or bucket of a key keeps here, and the cursor of the next page."""

        def read(reply: Sequence[Any]) -> tuple[str, list[str]]:
            return reply[0].decode(), [tenant.decode() for tenant in reply[1]]

        return self._queue._call("scan_windows", (self._queue.clock.now_ms, cursor), read)

    def scan_weights(self, cursor: str) -> RoundTrip[tuple[str, list[tuple[str, float]]]]:
        """A page of the tenants with a weight, and the cursor of the next page. The first and the last are "0"."""

        def read(reply: Sequence[Any]) -> tuple[str, list[tuple[str, float]]]:
            cursor, found = reply
            return cursor.decode(), [(t.decode(), float(w)) for t, w in zip(found[0::2], found[1::2], strict=True)]

        return self._queue._call("scan_weights", (self._queue.clock.now_ms, cursor), read)
