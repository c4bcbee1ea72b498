"""A lease: what `acquire` returns. It is renewed until it is released or lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import now, valid_until
from penstock.errors import LeaseLost, PenstockError
from penstock.locks.bindings import LeaseBindings, ReleaseReply


def hand_over(bindings: LeaseBindings, packed: bytes) -> Operation[None]:
    """Release what a request holds, and find the next owner, however many dead waiters are before it.

    If the server becomes unavailable meanwhile, one of the waiters continues the search.
    """
    with contextlib.suppress(PenstockError):
        while (yield bindings.release(packed)).more:
            pass


class LeaseSource(Protocol):
    """The parts of a lock or a semaphore that its leases use."""

    @property
    def what(self) -> str: ...
    @property
    def bindings(self) -> LeaseBindings: ...
    @property
    def on_loss(self) -> Callable[[Any], object] | None: ...
    @property
    def cancel_on_loss(self) -> bool: ...
    @property
    def _driver(self) -> Driver: ...


class Lease:
    """A lock or permits that this process holds.

    token  unique for each acquisition
    lease  its length in seconds; each renewal starts it again
    lost   an event that is set once the loss is known; a thread may `wait()` for it
    """

    def __init__(self, source: LeaseSource, token: str, packed: bytes, fence: int, sent_at: float) -> None:
        self.token = token
        self.lease = source.bindings.request.lease
        self.lost = threading.Event()
        self.valid_until = valid_until(sent_at, self.lease)
        self.renewing = False
        self._source = source
        self._packed = packed
        self._fence = fence
        self._loss_reason = ""
        self._released = self._releasing = False
        self._pid = os.getpid()
        self._loop = asyncio._get_running_loop()
        self._task = asyncio.current_task() if self._loop is not None and source.cancel_on_loss else None
        self._cancelled_task = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._source.what}>"

    @property
    def _driver(self) -> Driver:
        return self._source._driver

    # --- is it still held ---

    @property
    def remaining(self) -> float:
        """Seconds for which it is certainly held even if no renewal succeeds; 0 after a loss. No round trip.

        Measured by this host's monotonic clock, starting just before the request was sent.
        """
        if self.lost.is_set() or self._released:
            return 0.0
        return max(0.0, self.valid_until - now())

    def check(self) -> None:
        """Raise LeaseLost unless it is certainly held. No round trip.

        The answer may be outdated a moment later. To stop a late write, the storage must check the fence.
        """
        if self._released:
            raise self._released_error()
        if self.remaining == 0.0:
            raise self._lost_error()

    def _released_error(self) -> LeaseLost:
        return LeaseLost(f"{self._source.what} was released, so it no longer protects the work")

    def _lost_error(self) -> LeaseLost:
        ago = now() - self.valid_until
        when = f" {ago:.1f} s ago" if ago > 0 else ""
        why = self._loss_reason or "the process was paused, or the server did not answer"
        return LeaseLost(f"{self._source.what} was lost{when}: {why}. Another may have it: drop the work")

    @verb
    def moment(self) -> RoundTrip[float]:
        """A moment at which it was certainly held, in seconds since 1970 by the server's clock; for an audit trail.

        Raises LeaseLost if that is not certain. One round trip.
        """

        def checked(moment: float) -> float:
            self.check()
            return moment

        return self._source.bindings.server_time().then(checked)

    # --- loss ---

    def mark_lost(self, why: str) -> None:
        """Record the loss and report it: cancel the task, call `on_loss`. The renewer calls this in its own thread."""
        self.renewing = False
        self._loss_reason = why
        self.lost.set()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._report_loss_in_loop)
            except RuntimeError:  # the loop is closed, and its task is gone
                return
        elif (on_loss := self._source.on_loss) is not None:
            threading.Thread(target=on_loss, args=(self,), name="penstock on_loss", daemon=True).start()

    def _report_loss_in_loop(self) -> None:
        if self._releasing:  # release() raises LeaseLost instead
            return
        if self._task is not None and not self._task.done():
            self._cancelled_task = True
            self._task.cancel(f"{self._source.what} was lost")
        if (on_loss := self._source.on_loss) is not None:
            on_loss(self)

    def raise_on_exit(self, body_error: BaseException | None, release_error: Exception) -> None:
        """Choose the error that leaves a `with` block whose release failed with `release_error`.

        An error of the body takes precedence, and the release error is added to it as a note. But if the body was only
        cancelled by `cancel_on_loss`, the release error is raised instead.
        """
        if body_error is None:
            raise release_error
        if self._cancelled_task and isinstance(body_error, asyncio.CancelledError) and self._task is not None:
            self._cancelled_task = False
            if self._task.uncancel() == 0:
                raise release_error from body_error
        if type(body_error) is not type(release_error):
            body_error.add_note(str(release_error))

    # --- renew and release ---

    @property
    def renewal(self) -> RoundTrip[bool]:
        return self._source.bindings.renew(self._packed)

    @property
    def give_back(self) -> RoundTrip[bool]:
        """Release it in the server. False if it was lost.

        If the driver sends the call twice, the second finds nothing to release. That is not a loss while the lease is
        valid.
        """
        return self._release_call.then(lambda reply: reply.was_held)

    @property
    def _release_call(self) -> RoundTrip[ReleaseReply]:
        sent = self._source.bindings.release(self._packed)

        def read_after_retry(reply: Any) -> ReleaseReply:
            was_held, more = sent.read(reply)
            return ReleaseReply(was_held or now() < self.valid_until, more)

        return replace(sent, read_after_retry=read_after_retry)

    @verb
    def release(self) -> Operation[None]:
        """Release it; the same script call hands it to the first waiter. The end of a `with` block does this.

        Raises LeaseLost if it was lost before. May be repeated. One round trip.
        """
        return self._release()

    def _release(self) -> Operation[None]:
        if self._released or self._pid != os.getpid():  # a forked child holds nothing
            return
        self.renewing, self._releasing = False, True
        if self.lost.is_set():
            self._released = True
            raise self._lost_error()
        try:
            reply = yield self._release_call
        except BaseException as error:
            if not isinstance(error, Exception):  # a cancelled release still releases the lease
                yield self.give_back
                self._released = True
            raise
        self._released = True
        if reply.more:
            yield from hand_over(self._source.bindings, self._packed)
        if not reply.was_held:
            self._loss_reason = self._loss_reason or "the server no longer had it when it was released"
            self.lost.set()
            raise self._lost_error()
