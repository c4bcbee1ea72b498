"""Renews every lease that this process holds, each when a third of it has passed, in one thread per app.

The thread runs an event loop of its own. So a node that does not answer delays no renewal on another node, and a
program that blocks its own event loop still keeps its locks. The thread is started before a lease is requested, sleeps
until the next renewal is due, and ends when the process has held no lease for a while. A lock that is released within a
third of its lease is never renewed.

The renewer also reports the end of a lease whose holder asked for no renewal, or for a maximum time, and receives the
notices that are sent to holders (`notices.py`).

The renewer holds weak references. The lease of an object that is dropped without a release is not renewed, and ends.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.core.notices import Notices
from penstock.core.operations import Driver, RoundTrip
from penstock.errors import PenstockError

log = logging.getLogger("penstock")

# Where the system has one, a clock that continues while the machine is suspended, as the server's does.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds by a clock of this host that never jumps. Only differences between two readings have a meaning."""

# The fraction of a lease after which it is renewed. Slightly less than a third, so that three renewals, not just two,
# fit into the first lease.
_RENEW_AFTER = 0.31

# A failed renewal is tried again after this fraction of the rest of the lease, but not before the shortest pause in
# seconds.
_RETRY_AFTER = 0.05
_SHORTEST_RETRY = 0.02

# The clocks of two hosts differ in speed by less than this.
_MAX_DRIFT = 0.005

# Seconds from an unexpected error until the thread starts again.
_RESTART_PAUSE = 0.2

# The thread ends after this many seconds without a lease.
_THREAD_IDLE_TIMEOUT = 10.0

# Released leases are swept out of the heap when it has more than twice as many entries as after the last sweep, plus
# this many.
_SWEEP_MARGIN = 1000


class Renewable(Protocol):
    """A lease that the renewer can maintain: of a lock, of a permit, or of the receiver of a channel.

    A class that is derived from this one inherits the values for a lease that is renewed without an end.
    """

    token: str = ""
    lease: float
    """Seconds."""
    valid_until: float
    """The time, by `now()`, until which the lease is certain to be held. Each renewal extends it."""
    renewing: bool
    """Whether the renewer maintains the lease. Its holder sets this to False at the release."""
    renew_at: float = 0.0
    """The time, by `now()`, of the next renewal."""
    ends_at: float = math.inf
    """The time, by `now()`, at which the lease ends regardless of renewals."""
    ends_because: str = ""
    ends_by_itself: bool = False
    """Whether the server ends the lease at `ends_at`. Otherwise the renewer gives it back then."""
    notice_key: str = ""
    """A key in the slot of the lease; "" if no notices are sent to its holder."""
    notice_address: str = ""

    def renewal(self, requested_at: float) -> RoundTrip[bool]:
        """The call that renews the lease in the server and moves `valid_until` and `renew_at`.

        Its result is False if the server no longer has the lease. `requested_at`: the time just before it is sent.
        """
        ...

    @property
    def give_back(self) -> RoundTrip[bool]:
        """The call that ends the lease in the server; its result is False if the server no longer has it."""
        ...

    def mark_lost(self, why: str) -> None:
        """Called in the renewer's thread when the lease is lost. Sets `renewing` to False.

        `why` is "" if the lease knows the reason already.
        """
        ...

    def receive_notice(self, text: str) -> None:
        """Called in the renewer's thread for a notice to its `notice_address`."""
        raise NotImplementedError


def renew_at(requested_at: float, lease: float) -> float:
    """The time, by `now()`, at which a lease that was requested at `requested_at` is due for renewal."""
    return requested_at + lease * _RENEW_AFTER


def valid_until(requested_at: float, lease: float) -> float:
    """The time, by `now()`, until which a lease that was requested at `requested_at` is certain to last."""
    return requested_at + lease * (1 - _MAX_DRIFT)


class PlainLease(Renewable):
    """A lease without a maximum time, whose holder gets no notices."""

    def __init__(self, lease: float, requested_at: float) -> None:
        self.lease = lease
        self.renewing = False
        self._extend(requested_at)

    def _extend(self, requested_at: float) -> None:
        self.valid_until, self.renew_at = valid_until(requested_at, self.lease), renew_at(requested_at, self.lease)

    @property
    def extension(self) -> RoundTrip[bool]:
        """The call that restarts the full lease; its result is False if the server no longer has the lease."""
        raise NotImplementedError

    def renewal(self, requested_at: float) -> RoundTrip[bool]:
        def extended(is_held: bool) -> bool:
            if is_held:
                self._extend(requested_at)
            return is_held

        return self.extension.then(extended)

    def mark_lost(self, why: str) -> None:
        """Stop renewing it. The holder finds out when it next uses the lease."""
        self.renewing = False

    def receive_notice(self, text: str) -> None:
        """Never called, because the lease has no `notice_key`."""


class Renewer:
    """Renews the leases of one app in one process."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        driver.on_takeover(weakref.WeakMethod(self.check_all))
        self._lock = threading.Lock()
        self._pid = 0
        self._reset()

    def _reset(self) -> None:
        """Forget everything; also in a forked child, because what is held belongs to the parent."""
        self._due: list[tuple[float, int, weakref.ref[Renewable]]] = []
        self._numbers = itertools.count()
        self._sweep_at = _SWEEP_MARGIN
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_event: asyncio.Event | None = None
        self._wakes_at = 0.0
        self._idle_since = 0.0
        self._stopped = False

    def start(self) -> None:
        """Start the thread unless it runs. Call it before you request a lease, so that you never hold it unrenewed."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # another thread may have held it at the fork
            self._reset()
            self._pid = os.getpid()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._wakes_at, self._idle_since, self._stopped = 0.0, now(), False
                    self._thread = threading.Thread(target=self._run, name="penstock renews", daemon=True)
                    try:
                        self._thread.start()
                    except BaseException:  # no more threads: the caller gets no lease, and the next one tries again
                        self._thread = None
                        raise

    def keep(self, held: Renewable) -> None:
        """Renew the lease, first at its `renew_at`, until its `renewing` is False, it ends, or it is lost."""
        held.renewing = True
        self.start()  # before: the first start in a process forgets what was scheduled
        self._schedule(held, held.renew_at)
        self.start()  # and after: the thread may have ended in between, because nothing was held

    def check_all(self) -> None:
        """Renew all leases now, because the node that has taken over may not have them. Any thread may call it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            at = now()
            for _, _, reference in self._due:
                if (held := reference()) is not None and held.renewing:
                    held.renew_at = min(held.renew_at, at)
            self._due = [(min(due, at), number, reference) for due, number, reference in self._due]
            heapq.heapify(self._due)
            self._wakes_at = at
            self._wake()

    def kept(self) -> list[Renewable]:
        """The leases that this process holds through this app."""
        if self._pid != os.getpid():
            return []
        with self._lock:
            leases = [entry[2]() for entry in self._due]
        return [lease for lease in leases if lease is not None and lease.renewing]

    def _schedule(self, held: Renewable, at: float) -> None:
        at = min(at, held.ends_at)
        with self._lock:
            self._drop_released()
            heapq.heappush(self._due, (at, next(self._numbers), weakref.ref(held)))
            if len(self._due) > self._sweep_at:
                self._due = [entry for entry in self._due if (known := entry[2]()) is not None and known.renewing]
                heapq.heapify(self._due)
                self._sweep_at = 2 * len(self._due) + _SWEEP_MARGIN
            if at < self._wakes_at:
                self._wake()

    def _drop_released(self) -> None:
        """Drop released leases from the head of the heap. Otherwise the thread would wake up for each of them."""
        while self._due and ((known := self._due[0][2]()) is None or not known.renewing):
            heapq.heappop(self._due)

    def _wake(self) -> None:
        if self._loop is not None and self._wake_event is not None:
            self._loop.call_soon_threadsafe(self._wake_event.set)

    def close(self) -> None:
        """Stop renewing. Marks each lease that is still held as lost; in the server it runs out later."""
        for held in self.kept():
            held.mark_lost("the app was closed, so it is not renewed any longer")
        with self._lock:
            thread = self._thread if self._pid == os.getpid() else None
            self._stopped = True
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            while True:
                try:
                    return asyncio.run(self._serve())
                except Exception:  # such as too many open files
                    log.exception("leases are not renewed for a moment")
                    self._report_losses()
                    time.sleep(_RESTART_PAUSE)
        finally:
            with self._lock:
                self._forget_thread()

    def _report_losses(self) -> None:
        """Mark as lost the leases that ended while no renewal was possible."""
        for held in self.kept():
            if now() >= held.valid_until:
                held.mark_lost("this process could not renew it")

    def _forget_thread(self) -> None:
        """Forget this thread, which is about to end, so that the next `start` begins another."""
        if self._thread is threading.current_thread():
            self._thread = self._loop = self._wake_event = None

    async def _serve(self) -> None:
        with self._lock:
            self._loop, self._wake_event = asyncio.get_running_loop(), asyncio.Event()
        renewals: set[asyncio.Task[None]] = set()
        notices = Notices(self._driver.aio)
        try:
            while (due := self._take_due()) is not None:
                self._start_renewals(due, renewals, notices)
                del due  # this reference would keep a dropped lease alive during the sleep
                await self._sleep()
        finally:
            for task in renewals:
                task.cancel()
            await asyncio.gather(*renewals, return_exceptions=True)
            await notices.aclose()
            await self._driver.aio.aclose()

    def _start_renewals(self, due: list[Renewable], renewals: set[asyncio.Task[None]], notices: Notices) -> None:
        for held in due:
            task = asyncio.create_task(self._look_after(held, notices))
            renewals.add(task)
            task.add_done_callback(renewals.discard)

    def _take_due(self) -> list[Renewable] | None:
        """Remove from the heap the leases that are due, and return them; None to end the thread."""
        with self._lock:
            at, due = now(), []
            while self._due and self._due[0][0] <= at:
                held = heapq.heappop(self._due)[2]()
                if held is not None and held.renewing:
                    due.append(held)
            if self._due or due:
                self._idle_since = at
            if self._stopped or at >= self._idle_since + _THREAD_IDLE_TIMEOUT:
                self._forget_thread()
                return None
            self._wakes_at = self._due[0][0] if self._due else self._idle_since + _THREAD_IDLE_TIMEOUT
            return due

    async def _sleep(self) -> None:
        assert self._wake_event is not None
        try:
            async with asyncio.timeout(max(0.0, self._wakes_at - now())):
                await self._wake_event.wait()
        except TimeoutError:
            return
        self._wake_event.clear()

    async def _look_after(self, held: Renewable, notices: Notices) -> None:
        """Do what is due: end the lease, or renew it."""
        at = now()
        if at >= held.ends_at:
            await self._end(held, held.ends_because)
        elif at >= held.renew_at:
            if held.notice_key:
                notices.add(held)
            await self._renew(held, at)
        else:
            self._schedule(held, held.renew_at)

    async def _renew(self, held: Renewable, requested_at: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, held.valid_until - requested_at)):
                renewed = await self._driver.aio.run(held.renewal(requested_at))
        except TimeoutError:
            await self._end(held, "the server did not answer in time to renew it")
        except Exception as error:
            if not isinstance(error, PenstockError):
                log.exception("a renewal failed unexpectedly, and is tried again")
            if now() >= held.valid_until:
                await self._end(held, f"it could not be renewed: {error}")
            else:
                left = min(held.lease, held.valid_until - now())
                held.renew_at = now() + max(left * _RETRY_AFTER, _SHORTEST_RETRY)
                self._schedule(held, held.renew_at)
        else:
            if renewed:
                self._schedule(held, held.renew_at)
            elif held.renewing:
                held.mark_lost("")

    async def _end(self, held: Renewable, why: str) -> None:
        """Mark as lost a lease that has ended by this host's clock. It may still last in the server: end it there."""
        if not held.renewing:
            return
        held.mark_lost(why)
        if held.ends_by_itself:
            return
        try:
            async with asyncio.timeout(held.lease):
                await self._driver.aio.run(held.give_back)
        except (TimeoutError, PenstockError):
            pass
