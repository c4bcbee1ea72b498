"""The part of the inspector that is about elections, latches, barriers, semaphores and read-write locks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.app import Penstock
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.errors import PenstockError
from penstock.locks.answers import BarrierInfo, ElectionInfo, LatchInfo, ReadWriteLockInfo, SemaphoreInfo
from penstock.ops.probe import instance_names

R = TypeVar("R")


class CoordinationInspector:
    """Inspects what processes wait for together. Each list costs one round trip for each 1000 keys of the server, and
    one for each entry: too much for a path that serves work. Each query for one name costs one, and raises
    PenstockError, which names similar ones, for an unknown name."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    @property
    def _driver(self) -> Driver:
        return self._app._driver

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
        """What `ask` finds for each instance of a kind. `rest`: the key that each of them has."""
        found: list[Any] = []
        for name in (yield from instance_names(self._app.settings.prefix, kind, rest)):
            found.append((yield ask(name)))
        return [one for one in found if one is not None]

    def _one(self, kind: str, rest: str, name: str, ask: Callable[[str], RoundTrip[R | None]]) -> Operation[R]:
        found: R | None = yield ask(name)
        if found is None:
            raise self._not_found(kind, name, (yield from instance_names(self._app.settings.prefix, kind, rest)))
        return found

    def _not_found(self, kind: str, name: str, known: Sequence[str]) -> PenstockError:
        near = difflib.get_close_matches(name, known, 3) or known[:5]
        there = f"; there is {', '.join(near)}{', …' if len(near) < len(known) else ''}" if known else ""
        return PenstockError(f"no {kind} {name!r} with prefix {self._app.settings.prefix!r} on this server{there}")
