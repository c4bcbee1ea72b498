"""The stage of a running job: writes and calls that the server applies when it completes the job, or not at all. See
`effects.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.arguments import utf8_size
from penstock.core.keys import check_text
from penstock.core.slots import slot
from penstock.core.writes import Clause, Packable, Writes, pack_rows, packable, write
from penstock.errors import BadCall, PayloadTooLarge
from penstock.jobs.middleware import EnqueueContext, JobDraft
from penstock.settings import MiB

if TYPE_CHECKING:
    from penstock.jobs.job import Job
    from penstock.jobs.shard import Shard
    from penstock.jobs.task import Call

R = TypeVar("R")

_WRITE_WEIGHT: Final = 1024
_CALL_WEIGHT: Final = 2048
"""Bytes that each one counts in addition to its own, so that 1 MiB takes the server a few milliseconds at most."""


class Stage(Writes):
    """Writes and calls of the running job that the server applies when the job completes: `current().stage`.

    The script that completes the job applies all of them or none. If the task raises, is cancelled or loses its lease,
    none is applied. So a job that runs twice has its effects once. Nothing is sent before; no method costs a round
    trip.

    The keys are ordinary keys in the slot of the job's queue: `app.queue("mail").key("sent")`, or any key with the same
    hash tag. If a write turns out to be impossible, for instance because a key has another type, the job becomes a
    dead letter with that reason, and nothing was written. The writes are those of a transaction.

    A stage holds at most 1 MiB. A write counts for 1 KiB in addition to its bytes, and a call for 2 KiB.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._keys: dict[str, int] = {}
        self._writes: list[tuple[Any, ...]] = []
        self._calls: list[Packable] = []
        self._sent: list[Packable] = []
        self.weight = 0
        """The bytes of all writes and calls, and what each of them counts in addition."""

    def __repr__(self) -> str:
        return f"<Stage of {len(self._writes)} writes and {len(self._calls) // 2 + len(self._sent) // 3} calls>"

    def __bool__(self) -> bool:
        return self.weight > 0

    def enqueue(self, call: Call[R]) -> Job[R]:
        """Enqueue a call when the job completes: `current().stage.enqueue(send_email.call("ada@example.com"))`.

        The script that completes the job enqueues a call of this queue. A call of another queue goes through the
        outbox: the same script stores it there, and a worker of this queue delivers it, usually within milliseconds. It
        is enqueued once, whatever fails in between. Returns the job, which does not exist until then. If the call is
        unique and another job holds its key then, nothing is enqueued.

        Raises BadCall for other objects, and PayloadTooLarge.
        """
        if not hasattr(call, "draft"):
            raise BadCall(f"stage.enqueue takes a call, as in task.call(…), not {type(call).__name__}")
        key, record = call.draft()
        shard = call.task.shard
        draft = JobDraft(shard.name, key, record, shard.settings.seal)
        with shard.middleware.around_enqueue(EnqueueContext(shard.name, [draft])):
            self._count(f"enqueue({call.task.name})", len(draft.record) + _CALL_WEIGHT)
            if shard.name == self._shard.name:
                self._calls += (packable(key), packable(draft.record))
            else:
                self._sent += (shard.name, packable(key), packable(draft.record))
        return call.job(key)

    def _add(self, clause: Clause, command: str, values: Sequence[Packable], count: int) -> None:
        position = self._keys.get(clause.key)
        if position is None:
            self._check_key(clause)
        size = len(clause.key) + sum(
            len(bytes(v)) if not isinstance(v, str) else utf8_size(str(clause), v) for v in values
        )
        self._count(str(clause), size + count * _WRITE_WEIGHT)
        if position is None:
            position = self._keys[clause.key] = len(self._keys) + 1
        self._writes.append(write(command, position, values))

    def _check_key(self, clause: Clause) -> None:
        key, keys = check_text("key", clause.key), self._shard.bindings.keys
        if slot(key) != slot(keys.base):
            raise ValueError(
                f"{clause}: this key is not in the slot of queue {self._shard.name}, so the script that completes "
                f"the job cannot write it; use {keys.user('…')!r}, which app.queue({keys.queue!r}).key('…') is"
            )
        if key.startswith(keys.base) and not key.startswith(keys.user("")):
            raise ValueError(
                f"{clause}: this key belongs to queue {self._shard.name} itself; use "
                f"app.queue({self._shard.name!r}).key({key.removeprefix(keys.base)!r})"
            )

    def _count(self, what: str, weight: int) -> None:
        if self.weight + weight > MiB:
            raise PayloadTooLarge(
                f"{what}: a job stages at most 1 MiB, counted as 1 KiB for each write and 2 KiB for each call beside "
                "their bytes: enqueue a job for each part, or enqueue a bulk directly"
            )
        self.weight += weight

    def pack(self) -> bytes:
        """As `effects.lua` takes it."""
        return pack_rows(([*self._keys], self._writes, self._calls, self._sent))
