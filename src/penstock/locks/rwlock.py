"""A read-write lock: many readers at a time or one writer, in order of arrival.

It is a semaphore of a hundred permits: a reader takes one, a writer all. Since its line is strict, readers that come
after a writer wait for it, and no writer starves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.core.operations import Driver
from penstock.core.renewal import Renewer
from penstock.errors import LockTimeout
from penstock.locks.keys import SemaphoreKeys
from penstock.locks.leased import Holding, Leased, Terms, check_times
from penstock.locks.semaphore import scripts

MOST_READERS = 100
"""At a time; more wait. A writer costs some hundred microseconds of server time for it."""

H = TypeVar("H", bound=Holding)


class Reading(Holding):
    """The right to read, beside others."""


class Writing(Holding):
    """The right to write, alone.

    fence  a number that rises with each writer; see `Held.fence`
    """

    @property
    def fence(self) -> int:
        return self._fence


class Side(Leased[H]):
    """One side of a read-write lock, to be entered or acquired as a lock is."""

    def __init__(self, kind: type[H], terms: Terms, driver: Driver, renewer: Renewer, **told: Any) -> None:
        super().__init__(terms, driver, renewer, **told)
        self.scripts = scripts()
        self._kind = kind

    def _held(self, token: str, request: bytes, fence: int, asked: float) -> H:
        return self._kind(self, token, request, fence, asked)

    def _timeout(self) -> LockTimeout:
        return LockTimeout(f"{self.terms.what} was not free within {self.terms.wait} s")


class ReadWriteLock:
    """Many readers or one writer: `with lock.read():`, `with lock.write() as held:`. See `Penstock.read_write_lock`."""

    def __init__(
        self,
        name: str,
        prefix: str,
        driver: Driver,
        renewer: Renewer,
        *,
        lease: float,
        wait: float | None,
        on_loss: Callable[[Any], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> None:
        check_times("read_write_lock", lease, wait)
        self.name = name
        self._keys = SemaphoreKeys(prefix, name, "rwlock")
        self._driver, self._renewer = driver, renewer
        self._lease, self._wait = lease, wait
        self._told = {"on_loss": on_loss, "cancel_on_loss": cancel_on_loss}

    def __repr__(self) -> str:
        return f"<read-write lock {self.name!r}>"

    def read(self) -> Side[Reading]:
        """To be entered together with other readers, a hundred at most."""
        return Side(Reading, self._terms("read", 1), self._driver, self._renewer, **self._told)

    def write(self) -> Side[Writing]:
        """To be entered alone."""
        return Side(Writing, self._terms("write", MOST_READERS), self._driver, self._renewer, **self._told)

    def _terms(self, side: str, permits: int) -> Terms:
        what, keys = f"{side} lock {self.name!r}", self._keys
        return Terms(what, self._lease, self._wait, keys.declared, keys.inbox, permits, MOST_READERS)
