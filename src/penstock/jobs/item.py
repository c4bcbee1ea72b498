"""A job that a program without a worker has claimed: read it, then settle it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import codec
from penstock.core.arguments import check_number, check_wait, check_whole
from penstock.core.operations import RoundTrip, verb
from penstock.errors import LeaseLost
from penstock.jobs.claims import Claim, Ending, Failure, Settlement
from penstock.jobs.finished import CompletedRows
from penstock.jobs.job import ShardHandle
from penstock.jobs.record import Record, RecordView
from penstock.jobs.retry import LONGEST_DELAY
from penstock.jobs.shard_table import whole_name

if TYPE_CHECKING:
    from penstock.jobs.shard import Shard


def checked_lease(lease: float) -> float:
    """The lease, in seconds. Raises ValueError if it is too short or too long."""
    check_number("claim", "lease", lease, 0.05, 7 * 86400, "seconds from 0.05 to a week")
    return lease


def check_claim(n: int, wait: float | None) -> None:
    """Raise ValueError for a number of jobs or a wait that a claim cannot have."""
    check_whole("claim", "n", n, 1, 1000, "1 to 1000 jobs")
    check_wait("claim", wait)


class Item(ShardHandle, RecordView):
    """A job that your program has claimed. Settle it before its lease runs out, or another program gets it.

    Each of `complete`, `fail`, `retry` and `release` settles it. They raise LeaseLost if the lease ran out before.
    """

    __slots__ = ("_claim", "_incarnation")

    def __init__(self, shard: Shard, incarnation: str, claim: Claim) -> None:
        self.shard = shard
        self._incarnation = incarnation
        self._claim = claim

    @property
    def id(self) -> str:
        """`queue:key`, unique within the app."""
        return f"{self.shard.name}:{self._claim.id}"

    @property
    def queue(self) -> str:
        """The name of its queue, also if the queue has shards."""
        return whole_name(self.shard.name)

    @property
    def body(self) -> Any:
        """The value that was put; for the call of a task `[task, arguments]`. Raises BadCall for damaged bytes.

        Raises SealError if it is sealed and this program cannot open it: `release()` the job then.
        """
        record = self._claim.record
        value = codec.decode(record.payload, what=f"the body of job {self.id}", seal=self.shard.settings.seal)
        return [record.task, value] if record.is_call else value

    @property
    def _record(self) -> Record:
        return self._claim.record

    @property
    def _runs(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Item {self.id}>"

    @verb
    def complete(self, result: Any = None) -> RoundTrip[None]:
        """Complete the job: it leaves the queue, and its result is kept for its `result_ttl`.

        Raises LeaseLost, and BadCall for a result that JSON cannot hold. One round trip, which is safe to repeat.
        """
        limit, seal = self.shard.settings.max_payload, None if result is None else self.shard.settings.seal
        return self._settle(codec.encode(result, limit=limit, what=f"the result of job {self.id}", seal=seal))

    @verb
    def fail(self, reason: str) -> RoundTrip[None]:
        """Make the job a dead letter. Raises LeaseLost. One round trip."""
        return self._settle(Failure(reason=reason).encode(self.shard.settings.seal), "bury")

    @verb
    def retry(self, delay: float = 0.0, reason: str = "") -> RoundTrip[None]:
        """Count a failed attempt, and run the job again after `delay` seconds.

        Raises LeaseLost. One round trip.
        """
        check_number("retry", "delay", delay, 0, LONGEST_DELAY, "seconds from 0")
        return self._settle(Failure(reason=reason).encode(self.shard.settings.seal) if reason else b"", "retry", delay)

    @verb
    def release(self) -> RoundTrip[None]:
        """Hand the job back as if it had not been claimed, to the front of its tenant's jobs.

        Raises LeaseLost. One round trip.
        """
        return self._settle(b"", "release")

    @verb
    def extend(self, lease: float) -> RoundTrip[None]:
        """Extend the lease to `lease` seconds from now, for all items of this queue that the same `claim` returned.

        Raises LeaseLost if it ran out before. One round trip.
        """
        return self.shard.bindings.heartbeat(self._incarnation, checked_lease(lease)).then(
            lambda cancels: self._check_lease(cancels is not None)
        )

    def _settle(self, data: bytes, ending: Ending | None = None, delay: float = 0.0) -> RoundTrip[None]:
        settlement = Settlement(self._claim.token, data, ending, delay)
        rows = CompletedRows()
        if ending is None:
            rows.add(self._claim)
        row = b"" if ending else rows.take([settlement])
        return self.shard.bindings.settle(self._incarnation, settlement, row).then(self._check_lease)

    def _check_lease(self, is_ours: bool) -> None:
        if not is_ours:
            raise LeaseLost(f"the lease on job {self.id} ran out: another program may have it; drop the work")
