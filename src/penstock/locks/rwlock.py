"""A read-write lock: many readers or one writer at a time, in order of arrival.

It is a semaphore without a limit: a reader takes one permit, a writer takes all. Waiters are served strictly in order:
readers that arrive after a writer wait for it, so no writer starves.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.core.operations import Driver, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.errors import LockTimeout
from penstock.locks.answers import ReadWriteLockInfo
from penstock.locks.bindings import ReadWriteBindings
from penstock.locks.breaking import Breakable
from penstock.locks.constants import ALL
from penstock.locks.keys import SemaphoreKeys
from penstock.locks.lease import Grant, Lease
from penstock.locks.leased import HoldOptions, LeasedResource

L = TypeVar("L", bound=Lease)


class Reading(Lease):
    """The right to read, together with other readers."""


class Writing(Lease):
    """The right to write, alone.

    fence  a number that is higher for each writer; see `Held.fence`
    """

    @property
    def fence(self) -> int:
        """A number that is higher for each later writer: a store that checks it refuses earlier writers."""
        return self._fence


class ReadWriteSide(LeasedResource[L, ReadWriteBindings]):
    """The reading or the writing side of a read-write lock, used like a lock: `with` or `acquire`."""

    def __init__(
        self,
        kind: type[L],
        what: str,
        bindings: ReadWriteBindings,
        driver: Driver,
        renewer: Renewer,
        options: HoldOptions,
    ) -> None:
        super().__init__("read_write_lock", what, driver, renewer, options)
        self.bindings = bindings
        self._kind = kind

    def _new_lease(self, token: str, packed: bytes, grant: Grant) -> L:
        return self._kind(self, token, packed, grant)

    def _timeout_error(self) -> LockTimeout:
        return LockTimeout(f"{self.what} was not free within {self.wait} s")


class ReadWriteLock(Breakable):
    """Many readers or one writer: `with lock.read():`, `with lock.write() as held:`. See `Penstock.read_write_lock`."""

    def __init__(self, name: str, prefix: str, driver: Driver, renewer: Renewer, options: HoldOptions) -> None:
        options.check("read_write_lock")
        self.name = name
        self._keys = SemaphoreKeys(prefix, name, "rwlock")
        self._driver = driver
        self._renewer = renewer
        self._options = options

    def __repr__(self) -> str:
        return f"<read-write lock {self.name!r}>"

    def read(self) -> ReadWriteSide[Reading]:
        """The side for readers. Any number of readers hold it at a time."""
        return self._side(Reading, "read", 1)

    def write(self) -> ReadWriteSide[Writing]:
        """The side for writers. A writer holds the lock alone."""
        return self._side(Writing, "write", ALL)

    @verb
    def info(self) -> RoundTrip[ReadWriteLockInfo]:
        """The writer or the readers, and the waiters. One round trip."""
        return self.current_info()

    def current_info(self) -> RoundTrip[ReadWriteLockInfo]:
        """`info` for another operation to yield."""
        return self._bindings(ALL).info()

    def breakable_parts(self) -> list[ReadWriteBindings]:
        return [self._bindings(ALL)]

    def _side(self, kind: type[L], side: str, permits: int) -> ReadWriteSide[L]:
        return ReadWriteSide(
            kind,
            f"{side} lock {self.name!r}",
            self._bindings(permits),
            self._driver,
            self._renewer,
            self._options,
        )

    def _bindings(self, permits: int) -> ReadWriteBindings:
        return ReadWriteBindings(self._keys, self._options.first_lease, permits)
