"""A lock: one owner at a time across all hosts. Waiters are served in order, and each owner gets a higher fence."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from typing import Any

from penstock.core.keys import check_is_text
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.errors import ConfigurationError, LeaseLost, LockTimeout
from penstock.locks.answers import LockInfo
from penstock.locks.bindings import LockBindings, lock_bindings
from penstock.locks.breaking import Breakable
from penstock.locks.lease import Grant, Lease, current_context
from penstock.locks.leased import HoldOptions, LeasedResource
from penstock.locks.transaction import Guard, Transaction

MAX_NAMES = 100
"""The most locks that one object acquires together; each costs some microseconds of server time."""


class Held(Lease):
    """A lock that is held.

    fence  a number that is higher for each new owner, even after a failover. Send it with each write, and let the
           storage reject a fence lower than the highest it has seen: that stops a late owner.
    """

    _source: Lock
    _reentries = 0

    @property
    def fence(self) -> int:
        """A number that is higher for each later owner: a store that checks it refuses earlier owners."""
        return self._fence

    @property
    def key(self) -> str:
        """The key of the lock in the server: a string that holds `token`."""
        return self._source.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks that are held together."""
        return self._source.keys

    def _release(self) -> Operation[None]:
        if self._reentries and self._pid == os.getpid():
            self._reentries -= 1
            return
        self._source._forget_current_owner()
        yield from super()._release()

    def stop_renewing(self) -> None:
        if not self._reentries:
            super().stop_renewing()

    def drop(self) -> None:
        if self._reentries:
            self._reentries -= 1
        else:
            self._source._forget_current_owner()
            super().drop()

    def transaction(self) -> Transaction:
        """Conditions and writes on keys in the slot of the lock, executed atomically and only while the lock is held.

        An owner that was paused past its lease writes nothing: `commit()` raises LeaseLost.
        """
        self._check_process()
        return Transaction(self._driver, guard=Guard(self.keys, self.token, self._check_process, self._lost_at_commit))

    def _lost_at_commit(self) -> LeaseLost:
        """The error for a commit that found the lock no longer held. Records the loss."""
        if self.renewing and not self._released:
            self.mark_lost("the server no longer had it when a transaction was committed")
        return self._error()


class Lock(LeasedResource[Held, LockBindings], Breakable):
    """A lock in the server: `with app.lock("invoice:7", lease=10) as held:`. See `Penstock.lock`."""

    def __init__(
        self,
        names: str | Sequence[str],
        driver: Driver,
        renewer: Renewer,
        options: HoldOptions,
        reentrant: MutableMapping[object, Held] | None = None,
    ) -> None:
        """`reentrant`: all reentrant locks that the app holds, by names and thread or task; None if this is not one."""
        self.names = _checked_names(names)
        what = f"lock {self.names[0]!r}" if len(self.names) == 1 else f"locks {', '.join(map(repr, self.names))}"
        super().__init__("lock", what, driver, renewer, options)
        self.bindings = lock_bindings(self.names, self.lease)
        self._reentrant = reentrant

    @property
    def key(self) -> str:
        """The key of the lock in the server: the name as given. Other lock libraries use the same key."""
        return self.names[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks that the object acquires together."""
        return self.names

    def _acquire(self) -> Operation[Held]:
        if self._reentrant is None:
            return (yield from super()._acquire())
        owner = self._current_owner()
        held = self._reentrant.get(owner)
        if held is not None and not held._released and held._pid == os.getpid():
            held.check()
            held._reentries += 1
            return held
        held = self._reentrant[owner] = yield from super()._acquire()
        return held

    def _forget_current_owner(self) -> None:
        """Forget that this thread or task holds a reentrant lock, so that it has to acquire it in the server again."""
        if self._reentrant is not None:
            self._reentrant.pop(self._current_owner(), None)

    def _current_owner(self) -> object:
        return self.names, current_context()

    def _new_lease(self, token: str, packed: bytes, grant: Grant) -> Held:
        return Held(self, token, packed, grant)

    def _timeout_error(self) -> LockTimeout:
        return LockTimeout(f"{self.what} {'were' if len(self.names) > 1 else 'was'} not free within {self.wait} s")

    def _refused_error(self, refused: int) -> ConfigurationError:
        return ConfigurationError(
            f"lock {self.names[refused - 1]!r}: the key of this name holds other data; choose another name for the lock"
        )

    @verb
    def info(self) -> RoundTrip[LockInfo]:
        """The owner and the waiters. If there are several locks, those of the first one. One round trip."""
        return self.current_info()

    def current_info(self) -> RoundTrip[LockInfo]:
        """`info` for another operation to yield."""
        return self.bindings.info()

    def breakable_parts(self) -> list[LockBindings]:
        return [LockBindings((name,), self.lease) for name in self.names]


def _checked_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Sequence) or isinstance(names, bytes | bytearray):
        check_is_text("lock", names)
    found = tuple(check_is_text("lock", name) for name in names)
    if not 1 <= len(found) <= MAX_NAMES or len(set(found)) < len(found):
        raise ConfigurationError(f"lock({len(found)} names): give 1 to {MAX_NAMES} names, each once")
    return found
