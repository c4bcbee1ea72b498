"""A lock: one owner at a time across all hosts. Waiters are served in order, and each owner gets a higher fence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping, Sequence

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.errors import ConfigurationError, LeaseLost, LockTimeout
from penstock.locks.answers import LockInfo
from penstock.locks.bindings import LockBindings
from penstock.locks.lease import Lease
from penstock.locks.leased import LeasedResource, check_times
from penstock.locks.transaction import Guard, Transaction

MAX_NAMES = 100
"""Locks that one object acquires together; each costs some microseconds of server time."""


class Held(Lease):
    """A lock that is held.

    fence  a number that is higher for each new owner, even after a failover. Send it with each write, and let the
           storage reject a fence lower than the highest it has seen: that stops a late owner.
    """

    _source: Lock
    _reentries = 0

    @property
    def fence(self) -> int:
        return self._fence

    @property
    def key(self) -> str:
        """The key of the lock in the server: a string that holds `token`."""
        return self._source.key

    @property
    def keys(self) -> tuple[str, ...]:
        return self._source.keys

    def _release(self) -> Operation[None]:
        if self._reentries:
            self._reentries -= 1
            return
        self._source._forget_current_owner()
        yield from super()._release()

    def transaction(self) -> Transaction:
        """Conditions and writes on keys in the slot of the lock, executed atomically and only while the lock is held.

        An owner that was paused past its lease writes nothing: `commit()` raises LeaseLost.
        """
        return Transaction(self._driver, guard=Guard(self.keys, self.token, self._lost_at_commit))

    def _lost_at_commit(self) -> LeaseLost:
        """The error for a commit that found the lock no longer held. Records the loss."""
        if self._released:
            return self._released_error()
        if self.renewing:
            self.mark_lost("the server no longer had it when a transaction was committed")
        return self._lost_error()


class Lock(LeasedResource[Held, LockBindings]):
    """A lock in the server: `with app.lock("invoice:7", lease=10) as held:`. See `Penstock.lock`."""

    def __init__(
        self,
        names: str | Sequence[str],
        driver: Driver,
        renewer: Renewer,
        *,
        lease: float,
        wait: float | None,
        on_loss: Callable[[Held], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: MutableMapping[object, Held] | None = None,
    ) -> None:
        """`reentrant`: all reentrant locks that the app holds, by names and thread or task; None if this one is not."""
        self.names = (names,) if isinstance(names, str) else tuple(names)
        if not 1 <= len(self.names) <= MAX_NAMES or len(set(self.names)) < len(self.names):
            raise ConfigurationError(f"lock({len(self.names)} names): from 1 to {MAX_NAMES}, each once")
        check_times("lock", lease, wait)
        what = f"lock {self.names[0]!r}" if len(self.names) == 1 else f"locks {', '.join(map(repr, self.names))}"
        super().__init__(what, driver, renewer, wait=wait, on_loss=on_loss, cancel_on_loss=cancel_on_loss)
        self.bindings = LockBindings(self.names, lease)
        self._reentrant = reentrant

    @property
    def key(self) -> str:
        """The key of the lock in the server: the name as given. Other lock libraries use the same key."""
        return self.names[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks, if there are several."""
        return self.names

    def _acquire(self) -> Operation[Held]:
        if self._reentrant is None:
            return (yield from super()._acquire())
        owner = self._current_owner()
        held = self._reentrant.get(owner)
        if held is not None and not held._released:
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
        return self.names, threading.get_ident() if asyncio._get_running_loop() is None else asyncio.current_task()

    def _new_lease(self, token: str, packed: bytes, fence: int, sent_at: float) -> Held:
        return Held(self, token, packed, fence, sent_at)

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
