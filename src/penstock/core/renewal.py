"""Keeps alive what this process holds: one thread renews every lock and permit of an app at a third of its lease.

The thread runs a loop of its own, so that a node that does not answer delays no renewal on another one, and a program
that blocks its own loop keeps what it holds. It is there before something is asked for, sleeps until the next renewal
is due, and ends when nothing was held for a while. Who takes and releases within a third of a lease never wakes it.

What is held is referred to weakly: an object that was dropped without a release is renewed no more, and its lease ends.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.core.operations import Driver, RoundTrip
from penstock.errors import PenstockError

log = logging.getLogger("penstock")

# Where there is one, a clock that goes on while the machine sleeps: the server's does.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds by this host's steady clock; only differences mean something."""

# A hair before the third, so that who looks when a lease would end finds the third renewal made, not the second.
_RENEW_AFTER = 0.31

# After an error the next attempt comes so much of a lease later.
_AGAIN_AFTER = 0.05

# The clocks of two hosts run at speeds that differ by less.
_DRIFT = 0.005

_LINGER = 10.0
_FEW = 1000


class Renewable(Protocol):
    """What is renewed."""

    lease: float
    valid_until: float
    """By `now()`; until then it is surely held."""
    renewing: bool
    """Set by the renewer; False: renew it no more."""

    @property
    def renewal(self) -> RoundTrip[bool]: ...
    @property
    def give_back(self) -> RoundTrip[bool]: ...
    def mark_lost(self, why: str) -> None: ...


def valid_until(asked: float, lease: float) -> float:
    """Until when a lease surely lasts that was asked for at `asked`."""
    return asked + lease * (1 - _DRIFT)


class Renewer:
    """The renewals of one app in one process."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._pid = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Also in a forked child, which holds nothing: what is held is the parent's."""
        self._due: list[tuple[float, int, weakref.ref[Renewable]]] = []
        self._numbers = itertools.count()
        self._sweep_at = _FEW
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called: asyncio.Event | None = None
        self._wakes_at = 0.0
        self._idle_since = 0.0
        self._stopped = False

    def start(self) -> None:
        """To be called before something is asked for: what cannot be renewed must not be taken."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # another thread may have held it at the fork
            self._begin_anew()
            self._pid = os.getpid()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._wakes_at, self._idle_since, self._stopped = 0.0, now(), False
                    self._thread = threading.Thread(target=self._run, name="penstock renews", daemon=True)
                    self._thread.start()

    def keep(self, one: Renewable, asked: float) -> None:
        """Renew it until it says that it is not kept any more. `asked`: when it was asked for."""
        one.renewing = True
        self._plan(one, asked + one.lease * _RENEW_AFTER)
        self.start()

    def _plan(self, one: Renewable, at: float) -> None:
        with self._lock:
            heapq.heappush(self._due, (at, next(self._numbers), weakref.ref(one)))
            if len(self._due) > self._sweep_at:
                self._due = [entry for entry in self._due if (kept := entry[2]()) is not None and kept.renewing]
                heapq.heapify(self._due)
                self._sweep_at = 2 * len(self._due) + _FEW
            if at < self._wakes_at:
                self._call()

    def _call(self) -> None:
        if self._loop is not None and self._called is not None:
            self._loop.call_soon_threadsafe(self._called.set)

    def close(self) -> None:
        """Stop renewing: what is still held ends with its lease."""
        with self._lock:
            thread = self._thread if self._pid == os.getpid() else None
            self._stopped = True
            self._call()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            with self._lock:
                self._end()

    def _end(self) -> None:
        """The next that is kept begins another thread."""
        if self._thread is threading.current_thread():
            self._thread = self._loop = self._called = None

    async def _serve(self) -> None:
        with self._lock:
            self._loop, self._called = asyncio.get_running_loop(), asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()
        try:
            while (due := self._next()) is not None:
                for one in due:
                    task = asyncio.create_task(self._renew(one))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                del due
                await self._sleep()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            await self._driver.aio.aclose()

    def _next(self) -> list[Renewable] | None:
        """What is due; None: end the thread."""
        with self._lock:
            at, due = now(), []
            while self._due and self._due[0][0] <= at:
                one = heapq.heappop(self._due)[2]()
                if one is not None and one.renewing:
                    due.append(one)
            if self._due or due:
                self._idle_since = at
            if self._stopped or at >= self._idle_since + _LINGER:
                self._end()
                return None
            self._wakes_at = self._due[0][0] if self._due else self._idle_since + _LINGER
            return due

    async def _sleep(self) -> None:
        assert self._called is not None
        try:
            async with asyncio.timeout(max(0.0, self._wakes_at - now())):
                await self._called.wait()
        except TimeoutError:
            return
        self._called.clear()

    async def _renew(self, one: Renewable) -> None:
        asked = now()
        try:
            async with asyncio.timeout(max(0.0, one.valid_until - asked)):
                ours = await self._driver.aio.run(one.renewal)
        except TimeoutError:
            await self._lost(one, "the server did not answer in time to renew it")
        except Exception as error:
            if not isinstance(error, PenstockError):
                log.exception("a renewal stumbled, and is tried again")
            if now() >= one.valid_until:
                await self._lost(one, f"it could not be renewed: {error}")
            else:
                self._plan(one, now() + one.lease * _AGAIN_AFTER)
        else:
            if ours:
                one.valid_until = valid_until(asked, one.lease)
                self._plan(one, asked + one.lease * _RENEW_AFTER)
            elif one.renewing:
                one.mark_lost("the server has it no more")

    async def _lost(self, one: Renewable, why: str) -> None:
        """By our clock. The server may hold it for us a little longer: nobody need wait for that."""
        if not one.renewing:
            return
        one.mark_lost(why)
        try:
            async with asyncio.timeout(one.lease):
                await self._driver.aio.run(one.give_back)
        except (TimeoutError, PenstockError):
            pass
