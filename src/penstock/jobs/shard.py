"""One shard of a queue: one slot of the server, with the jobs that are there. A queue that was never split has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.core.clock import Clock
from penstock.core.operations import Driver, Operation, RoundTrip
from penstock.jobs.bindings import SLICE, QueueBindings
from penstock.jobs.claims import Ending, Failure
from penstock.jobs.counts import Counts, TenantCounts
from penstock.jobs.keys import QueueKeys
from penstock.jobs.middleware import MiddlewareStack
from penstock.settings import Settings


class Shard:
    """One slot of a queue. Jobs, claimed items and the feeds of workers hold it; it does not know its queue.

    name  that of the queue, or `mail~3` for a further shard of queue `mail`
    """

    __slots__ = ("_driver", "bindings", "middleware", "name", "settings")

    def __init__(
        self, name: str, driver: Driver, settings: Settings, clock: Clock, middleware: MiddlewareStack
    ) -> None:
        self.name = name
        self._driver = driver
        self.settings = settings
        self.middleware = middleware
        self.bindings = QueueBindings(QueueKeys(settings.prefix, name), clock)

    def __repr__(self) -> str:
        return f"<Shard {self.name}>"

    def beside(self, name: str) -> Shard:
        """The shard of this name, on the same server and with the same settings."""
        if name == self.name:
            return self
        return Shard(name, self._driver, self.settings, self.bindings.clock, self.middleware)

    def key_of(self, job_id: str) -> str:
        """What identifies a job within this shard: its id without the name."""
        return job_id.removeprefix(f"{self.name}:")

    def counts_of(self, tenant: str | None) -> RoundTrip[Counts] | RoundTrip[TenantCounts]:
        """The counts of a tenant, or of the shard (None)."""
        return self.bindings.counts() if tenant is None else self.bindings.tenant_counts(tenant)

    def purge(self, tenant: str | None, most: int | None = None) -> Operation[int]:
        """Cancel waiting jobs, of `tenant` or of all (None). `most`: how many at most; None: as many as wait now."""
        has_parked = True
        if most is None:
            counts: Counts | TenantCounts = yield self.counts_of(tenant)
            most, has_parked = counts.waiting, counts.parked > 0
        total, offset, is_done, more_listeners = 0, 0, False, False
        while has_parked and total < most and not is_done:
            cancelled, offset, is_done, more_listeners = yield self.bindings.purge_parked(
                tenant, offset, min(SLICE, most - total)
            )
            total += cancelled
        sources: tuple[Literal["delayed", "suspects"], ...] = ("delayed", "suspects")
        for source in sources:
            offset, is_done = 0, False
            while total < most and not is_done:
                limit = min(SLICE, most - total)
                cancelled, offset, is_done, more_listeners = yield self.bindings.purge(tenant, offset, limit, source)
                total += cancelled
        while more_listeners:
            *_, more_listeners = yield self.bindings.purge(tenant, 0, 0)
        return total

    def abandon(
        self,
        incarnation: str,
        started: Sequence[bytes] = (),
        ending: Ending = "release",
        cause: Failure | None = None,
    ) -> Operation[bool]:
        """End all claims of an incarnation that takes no more turns. Returns whether suspects wait for a trial.

        The claims in `started` end with `ending` and `cause`; the others are released.
        """
        suspect: float | None = None
        reason = msgspec.json.encode(cause) if cause else b""
        left, start = 1, 0
        while left:
            some, more = started[start : start + SLICE], start + SLICE < len(started)
            left, all_settled, suspect = yield self.bindings.abandon(incarnation, ending, reason, some, more=more)
            start += SLICE if all_settled else 0
        return suspect is not None
