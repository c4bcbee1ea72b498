"""Questions about what processes coordinate with: locks, semaphores, elections, latches and barriers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.operations import Operation, RoundTrip, verb
from penstock.locks.answers import (
    BarrierInfo,
    ElectionInfo,
    LatchInfo,
    LimitKind,
    LockInfo,
    RateLimitInfo,
    ReadWriteLockInfo,
    SemaphoreInfo,
)
from penstock.locks.breaking import Breakable, check_reason
from penstock.locks.rate_limit import RateLimit
from penstock.ops.answers import Holding, HoldingKind
from penstock.ops.probe import instance_names, lock_names
from penstock.ops.questioner import Questioner

R = TypeVar("R")

_KINDS: tuple[LimitKind, ...] = ("bucket", "window")


class CoordinationQuestioner(Questioner):
    """Asks about locks and the like. Each list costs one round trip for each 1000 keys of the server, and one for each
    entry: too much for a path that serves work. A question about one name costs one. For an unknown name it raises
    PenstockError, which names similar ones."""

    @verb
    def locks(self) -> Operation[list[LockInfo]]:
        """The locks on this server that are held or waited for, sorted by name, those of other apps included.

        A lock that was only ever taken by other libraries is not found. One round trip for each 1000 keys of the
        server, and one for each lock that was held within the last hour: too much for a path that serves work.
        """
        found = []
        for name in (yield from lock_names()):
            info = yield self._app.lock(name, lease=1).current_info()
            if info.holder is not None or info.waiting:
                found.append(info)
        return found

    @verb
    def holdings(
        self,
        kind: HoldingKind,
        names: Sequence[str] = (),
        *,
        name_prefix: str = "",
        host: str | None = None,
        process: str | None = None,
    ) -> Operation[list[Holding]]:
        """What processes hold now: of the named locks, semaphores, read-write locks or elections, or of all.

        name_prefix, host  only those whose name begins with this, and whose holder runs on this host
        process            only those of this process: `host:pid`

        With names, one round trip for each; otherwise as many as `locks` takes.
        """
        found: list[Holding] = []
        for name in names or (yield from self._breakable_names(kind)):
            if name.startswith(name_prefix):
                for part in self._breakable(kind, name).breakable_parts():
                    found += [Holding(kind, name, holder) for holder in (yield from part.holders())]
        return [
            one
            for one in found
            if (host is None or one.holder.host == host)
            and (process is None or f"{one.holder.host}:{one.holder.pid}" == process)
        ]

    @verb
    def break_holdings(self, holdings: Sequence[Holding], reason: str) -> Operation[list[Holding]]:
        """Take these away from their holders; see `Lock.break_`. Returns those that the holders still had.

        One round trip for each name or each 1000 of its permits, and one for each holding.
        """
        check_reason(reason)
        wanted = defaultdict[tuple[HoldingKind, str], set[str]](set)
        for one in holdings:
            wanted[one.kind, one.name].add(one.holder.token)
        broken = set[tuple[HoldingKind, str, str]]()
        for (kind, name), tokens in wanted.items():
            ended = yield from self._breakable(kind, name)._break(reason, tokens)
            broken |= {(kind, name, owner.token) for owner in ended}
        return [one for one in holdings if (one.kind, one.name, one.holder.token) in broken]

    def _breakable(self, kind: HoldingKind, name: str) -> Breakable:
        match kind:
            case "lock":
                return self._app.lock(name)
            case "semaphore":
                return self._app.semaphore(name, limit=1, lease=1)
            case "rwlock":
                return self._app.read_write_lock(name, lease=1)
        return self._app.election(name)

    def _breakable_names(self, kind: HoldingKind) -> Operation[list[str]]:
        if kind == "lock":
            return (yield from lock_names())
        return (yield from instance_names(self._prefix, kind, "leader" if kind == "election" else "holders"))

    @verb
    def elections(self) -> Operation[list[ElectionInfo]]:
        """The elections that had a leader within the last hour, sorted by name."""
        return self._all("election", "term", self._ask_election)

    @verb
    def election(self, name: str) -> Operation[ElectionInfo]:
        return self._one("election", "term", name, self._ask_election)

    @verb
    def latches(self) -> Operation[list[LatchInfo]]:
        """The latches that the server remembers, sorted by name."""
        return self._all("latch", "state", self._ask_latch)

    @verb
    def latch(self, name: str) -> Operation[LatchInfo]:
        return self._one("latch", "state", name, self._ask_latch)

    @verb
    def barriers(self) -> Operation[list[BarrierInfo]]:
        """The barriers that the server remembers, sorted by name."""
        return self._all("barrier", "state", self._ask_barrier)

    @verb
    def barrier(self, name: str) -> Operation[BarrierInfo]:
        return self._one("barrier", "state", name, self._ask_barrier)

    @verb
    def open_latch(self, name: str) -> Operation[LatchInfo]:
        """Count down all that is left, so that those that wait continue. Returns the state before. Two round trips.

        Raises PenstockError for a latch that does not exist.
        """
        info: LatchInfo = yield from self.latch.within(name)
        yield from self._app.latch(name, count=info.count).count_down.within(info.count)
        return info

    @verb
    def break_barrier(self, name: str, reason: str) -> Operation[BarrierInfo]:
        """Break the meeting of those that wait; see `Barrier.abort`. Returns the state before. Two round trips.

        Raises PenstockError for a barrier that does not exist.
        """
        info: BarrierInfo = yield from self.barrier.within(name)
        yield from self._app.barrier(name, parties=2).abort.within(reason)
        return info

    @verb
    def read_write_locks(self) -> Operation[list[ReadWriteLockInfo]]:
        """The read-write locks that are held, sorted by name."""
        return self._all("rwlock", "holders", self._ask_read_write_lock)

    @verb
    def read_write_lock(self, name: str) -> Operation[ReadWriteLockInfo]:
        return self._one("rwlock", "holders", name, self._ask_read_write_lock)

    @verb
    def semaphores(self) -> Operation[list[SemaphoreInfo]]:
        """The semaphores that are held or waited for, sorted by name."""
        return self._all("semaphore", "holders", self._ask_semaphore)

    @verb
    def semaphore(self, name: str) -> Operation[SemaphoreInfo]:
        return self._one("semaphore", "holders", name, self._ask_semaphore)

    @verb
    def limit_semaphore(self, name: str, limit: int | None) -> Operation[None]:
        """Store a limit in the server; see `Semaphore.set_limit`. One round trip."""
        return self._app.semaphore(name, limit=1, lease=1).set_limit.within(limit)

    @verb
    def rate_limits(self) -> Operation[list[RateLimitInfo]]:
        """The rate limits with units that are used, sorted by name. Requests wait only for these.

        Two round trips for each 1000 keys of the server, and one for each limit.
        """
        found: list[RateLimitInfo] = []
        for kind in _KINDS:
            for name in (yield from instance_names(self._prefix, "rate", kind)):
                info: RateLimitInfo = yield self._rate_limit(name, kind).bindings.info()
                if info.limit is not None:
                    found.append(info)
        return sorted(found, key=lambda info: info.name)

    @verb
    def rate_limit(self, name: str) -> Operation[list[RateLimitInfo]]:
        """The bucket and the window of this name, if both are in use; else the one that is. Two round trips.

        Raises PenstockError if none is in use.
        """
        return self._rate_limits_of(name)

    @verb
    def reset_rate_limit(self, name: str) -> Operation[bool]:
        """Forget the units that were used of a rate limit; see `RateLimit.reset`. Four round trips at most.

        A bucket and a window may have one name: both are reset. Raises PenstockError for a limit that is not in use.
        """
        had = False
        for info in (yield from self._rate_limits_of(name)):
            had |= yield self._rate_limit(name, info.kind).bindings.reset()
        return had

    def _rate_limits_of(self, name: str) -> Operation[list[RateLimitInfo]]:
        """The bucket and the window of this name that are in use: one of them at least."""
        found: list[RateLimitInfo] = []
        for kind in _KINDS:
            info: RateLimitInfo = yield self._rate_limit(name, kind).bindings.info()
            if info.limit is not None:
                found.append(info)
        if not found:
            known = [info.name for info in (yield from self.rate_limits.within())]
            raise self._not_found("rate limit", name, known)
        return found

    def _rate_limit(self, name: str, kind: LimitKind) -> RateLimit:
        """The limit of this name. Its numbers here do not matter: the server has those that were used last."""
        return self._app.rate_limit(name, limit=1, per=1, kind=kind)

    def _ask_semaphore(self, name: str) -> RoundTrip[SemaphoreInfo | None]:
        info = self._app.semaphore(name, limit=1, lease=1).bindings.info()
        return info.then(lambda info: info if info.held or info.waiting else None)

    def _ask_election(self, name: str) -> RoundTrip[ElectionInfo | None]:
        return self._app.election(name).current_info().then(lambda info: None if info.term is None else info)

    def _ask_latch(self, name: str) -> RoundTrip[LatchInfo | None]:
        return self._app.latch(name, count=1).bindings.info()

    def _ask_barrier(self, name: str) -> RoundTrip[BarrierInfo | None]:
        return self._app.barrier(name, parties=2).bindings.info()

    def _ask_read_write_lock(self, name: str) -> RoundTrip[ReadWriteLockInfo | None]:
        lock = self._app.read_write_lock(name, lease=1)
        return lock.current_info().then(lambda info: info if info.writer or info.reading or info.waiting else None)

    def _all(self, kind: str, rest: str, ask: Callable[[str], RoundTrip[R | None]]) -> Operation[list[R]]:
        """The answer of `ask` for each instance of a kind. `rest`: the key that every instance has."""
        found: list[Any] = []
        for name in (yield from instance_names(self._prefix, kind, rest)):
            found.append((yield ask(name)))
        return [one for one in found if one is not None]

    def _one(self, kind: str, rest: str, name: str, ask: Callable[[str], RoundTrip[R | None]]) -> Operation[R]:
        found: R | None = yield ask(name)
        if found is None:
            raise self._not_found(kind, name, (yield from instance_names(self._prefix, kind, rest)))
        return found
