"""Questions about what processes coordinate with: locks, semaphores, elections, latches and barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.operations import Operation, RoundTrip, verb
from penstock.locks.answers import (
    BarrierInfo,
    ElectionInfo,
    LatchInfo,
    LockInfo,
    RateLimitInfo,
    ReadWriteLockInfo,
    SemaphoreInfo,
)
from penstock.locks.rate_limit import RateLimit
from penstock.ops.probe import instance_names, lock_names
from penstock.ops.questioner import Questioner

R = TypeVar("R")


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
    def held_locks(
        self, names: Sequence[str] = (), *, name_prefix: str | None = None, host: str | None = None
    ) -> Operation[list[LockInfo]]:
        """The locks that are held now: the named ones, or those with this name prefix and with owners on this host.

        With names, one round trip for each; otherwise as many as `locks` takes.
        """
        found: list[LockInfo] = []
        if names:
            for name in names:
                found.append((yield self._app.lock(name).current_info()))
        else:
            found = yield from self.locks.within()
        return [
            lock
            for lock in found
            if lock.holder is not None
            and (name_prefix is None or lock.name.startswith(name_prefix))
            and (host is None or lock.holder.host == host)
        ]

    @verb
    def break_locks(self, locks: Sequence[LockInfo], reason: str) -> Operation[list[LockInfo]]:
        """Take these locks from the owners that they name. Returns the locks that those owners still held.

        One round trip for each.
        """
        broken: list[LockInfo] = []
        for lock in locks:
            if lock.holder is not None and (
                yield from self._app.lock(lock.name).end_holdings(reason, lock.holder.token)
            ):
                broken.append(lock)
        return broken

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
        for kind in ("bucket", "window"):
            for name in (yield from instance_names(self._prefix, "rate", kind)):
                info: RateLimitInfo = yield self._rate_limit(name, kind).bindings.info()
                if info.limit is not None:
                    found.append(info)
        return sorted(found, key=lambda info: info.name)

    @verb
    def rate_limit(self, name: str) -> Operation[RateLimitInfo]:
        """A rate limit that is in use. Two round trips. Raises PenstockError for one that is not."""
        info: RateLimitInfo
        for kind in ("bucket", "window"):
            info = yield self._rate_limit(name, kind).bindings.info()
            if info.limit is not None:
                return info
        known = [info.name for info in (yield from self.rate_limits.within())]
        raise self._not_found("rate limit", name, known)

    @verb
    def reset_rate_limit(self, name: str) -> Operation[bool]:
        """Forget the units that were used of a rate limit; see `RateLimit.reset`. Three round trips.

        Raises PenstockError for a limit that is not in use.
        """
        info = yield from self.rate_limit.within(name)
        had: bool = yield self._rate_limit(name, info.kind).bindings.reset()
        return had

    def _rate_limit(self, name: str, kind: str) -> RateLimit:
        """A limit of any numbers: the server has those that were used last."""
        return self._app.rate_limit(name, limit=1, per=1, kind="window" if kind == "window" else "bucket")

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
