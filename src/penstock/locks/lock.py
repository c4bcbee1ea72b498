"""A lock: one owner at a time over all hosts, in order of arrival, with a fence that rises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.core.scripts import Library
from penstock.errors import ConfigurationError, LeaseLost, LockTimeout
from penstock.locks.keys import LockKeys
from penstock.locks.leased import Holding, Leased, Party, Terms, check_times, waiting_parties
from penstock.locks.transaction import Guard, Transaction

MOST_NAMES = 100
"""Locks that are taken at once; each costs some microseconds of server time."""

SHOWN = 100
"""Waiters that `info` names."""


@cache
def scripts() -> Library:
    return Library("locks/line.lua", "locks/lock.lua")


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What the server knows of a lock: who holds it, and who waits, first come first (at most a hundred are named)."""

    name: str
    holder: Party | None
    fence: int | None
    waiting: int
    waiters: tuple[Party, ...]


class Held(Holding):
    """A lock in hand.

    fence  a number that rises with each owner of the lock, also across a failover. Send it along with what you write,
           and have the place where it is written refuse a lower one than the last: that stops a late owner.
    """

    _leased: Lock
    _entered_again = 0

    @property
    def fence(self) -> int:
        return self._fence

    @property
    def key(self) -> str:
        """Where the lock is in the server: a string that holds `token`."""
        return self._leased.key

    @property
    def keys(self) -> tuple[str, ...]:
        return self._leased.keys

    def _release(self) -> Operation[None]:
        if self._entered_again:
            self._entered_again -= 1
            return
        self._leased._mine.pop(self._leased._me(), None)
        yield from super()._release()

    def transaction(self) -> Transaction:
        """Conditions and writes on keys in the slot of the lock, done in one step and only if the lock is still held:
        who was paused past its lease writes nothing. `commit()` raises LeaseLost then."""
        return Transaction(self._driver, guard=Guard(self.keys, self.token, self._not_in_server))

    def _not_in_server(self) -> LeaseLost:
        if self._released:
            return self._released_before()
        if self.renewing:
            self.mark_lost("the server had it no more when a transaction was committed")
        return self._loss()


class Lock(Leased[Held]):
    """A lock of the server's: `with app.lock("invoice:7", lease=10) as held:`. See `Penstock.lock`."""

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
        mine: MutableMapping[object, Held] | None = None,
    ) -> None:
        """`mine`: what threads and tasks hold that may enter again; None: they may not."""
        self.names = (names,) if isinstance(names, str) else tuple(names)
        if not 1 <= len(self.names) <= MOST_NAMES or len(set(self.names)) < len(self.names):
            raise ConfigurationError(f"lock({len(self.names)} names): from 1 to {MOST_NAMES}, each once")
        check_times("lock", lease, wait)
        places = [LockKeys(name) for name in self.names]
        declared = tuple(key for place in places for key in place.declared)
        what = f"lock {self.names[0]!r}" if len(self.names) == 1 else f"locks {', '.join(map(repr, self.names))}"
        super().__init__(
            Terms(what, lease, wait, declared, places[0].inbox), driver, renewer,
            on_loss=on_loss, cancel_on_loss=cancel_on_loss,
        )  # fmt: skip
        self.scripts = scripts()
        self.reentrant = mine is not None
        self._mine: MutableMapping[object, Held] = {} if mine is None else mine

    def _me(self) -> object:
        return self.names, threading.get_ident() if asyncio._get_running_loop() is None else asyncio.current_task()

    def _take(self) -> Operation[Held]:
        if not self.reentrant:
            return (yield from super()._take())
        if (held := self._mine.get(self._me())) is not None and not held._released:
            held.check()
            held._entered_again += 1
            return held
        held = self._mine[self._me()] = yield from super()._take()
        return held

    @property
    def key(self) -> str:
        """Where the lock is in the server: at the name given, as other libraries' locks are."""
        return self.names[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The same for each, if there are several names."""
        return self.names

    def _held(self, token: str, request: bytes, fence: int, asked: float) -> Held:
        return Held(self, token, request, fence, asked)

    def _timeout(self) -> LockTimeout:
        return LockTimeout(
            f"{self.terms.what} {'were' if len(self.names) > 1 else 'was'} not free within {self.terms.wait} s"
        )

    def _refused(self, detail: int) -> ConfigurationError:
        return ConfigurationError(
            f"lock {self.names[detail - 1]!r}: the key of this name holds other data of yours; name the lock otherwise"
        )

    @verb
    def info(self) -> RoundTrip[LockInfo]:
        """Who holds it and who waits (of several names, the first). One round trip."""
        return self.looked_at()

    def looked_at(self) -> RoundTrip[LockInfo]:
        return RoundTrip(self.scripts["show"], self.terms.declared[:2], (SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> LockInfo:
        at, token, left, fence, waiting, *rows = reply
        last = None if fence is None else int(fence)
        holder = None
        if token is not None:
            age = None if last is None else max(0.0, (at - last) / 1e6)
            holder = Party.of(token.decode(errors="replace"), age, left / 1000 if left >= 0 else None)
        return LockInfo(self.names[0], holder, last, waiting, waiting_parties(at, rows))
