"""A lease, which `acquire` returns. It is renewed until it is released or lost, unless its holder limited it.

acquire ──▶ held ── release ──▶ released
             │ ▲│
             │ └┘ renewed, by the renewer; or extended, by its holder
             ▼
           lost: not renewed in time, `max_hold` is over, one lease is over (`renew=False`), or an operator broke it
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from penstock.core.arguments import check_number
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewable, now, renew_at, valid_until
from penstock.errors import LeaseLost, PenstockError
from penstock.locks.bindings import LeaseBindings, ReleaseReply, RenewReply

SHORTEST_LEASE = 0.05
LONGEST_LEASE = 7 * 86400.0
LEASE_RULE = "seconds from 0.05 to a week"

# Seconds after which a holder has stored its address, so that it is notified at once if an operator ends the holding.
_NOTICES_AFTER = 1.0


# A message that grants a lock: "grant", the fence, the server's time, and the ms for which it is reserved.
_GRANT_WORDS = 4

# A waiter relies on a grant only if at least this many seconds of it are left.
_LEAST_RESERVE = 1.0

# The clocks of two hosts differ in speed by less than this, while a request waits.
_MAX_DRIFT = 0.001


class Grant(NamedTuple):
    """How a request was granted.

    fence       0 for a holder that gets none
    granted_at  the server's time of it, in microseconds
    since       a time, by `now()`, that is certain to be before the grant
    reserve     seconds for which the lock is reserved, if a message granted it: until then its owner has to confirm it;
                None if it is granted for the whole lease
    """

    fence: int
    granted_at: int
    since: float
    reserve: float | None = None

    @classmethod
    def from_messages(cls, messages: Sequence[str], answered_at: int, asked_at: float) -> Grant | None:
        """The grant among the messages to a waiter, if the waiter may rely on it without asking.

        answered_at  the server's time in the last answer to the waiter
        asked_at     the time, by `now()`, just before the request for that answer was sent

        The waiter relates the clocks by its own last request, so the grant is certain to hold until `asked_at` + (time
        of the grant + reserve - `answered_at`). None if less than a second of that is left; if messages may have been
        lost, because the connection was opened again; or if the server's clock was set meanwhile, so that it shows a
        step back between its two times, or more time than has passed here since `asked_at`.
        """
        words = messages[-1].split() if messages and "" not in messages else []
        if len(words) != _GRANT_WORDS or words[0] != "grant":
            return None
        fence, granted_at, reserve_ms = map(int, words[1:])
        at, waited_there = now(), (granted_at - answered_at) / 1e6
        waited_here = at - asked_at
        if not 0 <= waited_there <= waited_here * (1 + _MAX_DRIFT):
            return None
        since, reserve = asked_at + waited_there - waited_here * _MAX_DRIFT, reserve_ms / 1000
        return cls(fence, granted_at, since, reserve) if since + reserve - at >= _LEAST_RESERVE else None


def hand_over(bindings: LeaseBindings, packed: bytes) -> Operation[None]:
    """Release what a request holds, and find the next owner, however many dead waiters are before it.

    If the server becomes unavailable meanwhile, one of the waiters continues the search.
    """
    with contextlib.suppress(PenstockError):
        while True:
            try:
                reply = yield bindings.release(packed)
            except (Exception, GeneratorExit):
                raise
            except BaseException:  # a second cancellation or Ctrl-C: the request must not remain among the waiters
                yield bindings.release(packed)
                raise
            if not reply.more:
                return


class LeaseSource(Protocol):
    """The attributes of a lock or a semaphore that its leases use."""

    @property
    def what(self) -> str: ...
    @property
    def bindings(self) -> LeaseBindings: ...
    @property
    def on_loss(self) -> Callable[[Any], object] | None: ...
    @property
    def cancel_on_loss(self) -> bool: ...
    @property
    def max_hold(self) -> float | None: ...
    @property
    def renew(self) -> bool: ...
    @property
    def _driver(self) -> Driver: ...


def current_context() -> object:
    """The asyncio task that runs now, or else the thread."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return task or threading.current_thread()


class Holder:
    """The thread or task that acquired leases, during one call of a thread pool.

    A program may acquire a lock in one call of `asyncio.to_thread` and release it in another, which runs in any thread
    of the pool. Each of these calls has a `contextvars` context of its own, and so a holder of its own.
    """

    def __init__(self, context: object) -> None:
        self.context = weakref.ref(context)

    @classmethod
    def current(cls) -> Holder:
        context, found = current_context(), _current_holder.get()
        if found is None or found.context() is not context:
            found = cls(context)
            _current_holder.set(found)
        return found


_current_holder: ContextVar[Holder | None] = ContextVar("penstock holder", default=None)


class Lease(Renewable):
    """A lock or permits that this process holds.

    token  unique for each acquisition
    lease  its length in seconds; each renewal starts it again
    """

    def __init__(self, source: LeaseSource, token: str, packed: bytes, grant: Grant) -> None:
        self.token = token
        self.lease = source.bindings.request.lease
        self._is_lost = False
        self._reserve = grant.reserve
        self.renewing = False
        self._source = source
        if grant.reserve is None:
            self.valid_until = self._certain_until(grant.since, self.lease)
        else:
            self.valid_until = grant.since + grant.reserve
        self._packed = packed
        self._fence = grant.fence
        self._loss_reason = ""
        self._released = self._releasing = False
        self._pid = os.getpid()
        self._loop = asyncio._get_running_loop()
        self._task = asyncio.current_task() if self._loop is not None and source.cancel_on_loss else None
        self._cancelled_task = False
        self.holder = Holder.current()
        self._set_end(grant)
        self.notice_key = source.bindings.declared[0]
        self._plan_renewal(grant.since)

    def _set_end(self, grant: Grant) -> None:
        """Set the time at which the lease ends regardless of renewals, and the reason."""
        self._ends_us = 0
        if (max_hold := self._source.max_hold) is not None:
            self._ends_us = grant.granted_at + int(max_hold * 1e6)
            self.ends_at = valid_until(grant.since, max_hold)
            self.ends_because = f"it was held for max_hold={max_hold:g} s"
        if not self._source.renew and self.valid_until < self.ends_at:
            self.ends_at, self.ends_by_itself = self.valid_until, True
            self.ends_because = f"its lease of {self.lease:g} s is over, and renew=False"

    def _certain_until(self, requested_at: float, lease: float) -> float:
        """The time, by `now()`, until which the holder may rely on a lease that was requested at `requested_at`."""
        return valid_until(requested_at, lease)

    def _plan_renewal(self, requested_at: float) -> None:
        lease = self.lease if self._reserve is None else self._reserve
        self.renew_at = renew_at(requested_at, lease) if self._source.renew else math.inf
        if not self.notice_address:
            self.renew_at = min(self.renew_at, requested_at + _NOTICES_AFTER)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._source.what}>"

    @property
    def lost(self) -> threading.Event:
        """An event that is set once the loss is known; a thread may `wait()` for it."""
        # It is made at its first use, because few leases need it.
        known: threading.Event | None = vars(self).get("_loss_event")
        if known is not None:
            return known
        made: threading.Event = vars(self).setdefault("_loss_event", threading.Event())
        if self._is_lost:  # `_set_lost` may have looked for the event before it was there
            made.set()
        return made

    def _set_lost(self) -> None:
        self._is_lost = True
        if (event := vars(self).get("_loss_event")) is not None:
            event.set()

    @property
    def _driver(self) -> Driver:
        return self._source._driver

    # --- is it still held ---

    @property
    def remaining(self) -> float:
        """Seconds for which the lease certainly lasts even if no renewal succeeds; 0 after a loss. No round trip.

        Measured by this host's monotonic clock, starting just before the request was sent.
        """
        if self._is_lost or self._released or self._pid != os.getpid():
            return 0.0
        return max(0.0, min(self.valid_until, self.ends_at) - now())

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly held. No round trip.

        The answer may be outdated a moment later. To stop a late write, the storage must check the fence.
        """
        if self.remaining == 0.0:
            raise self._error()

    def _check_process(self) -> None:
        """Raise LeaseLost in a process that was forked from the holder: both would work under one lease."""
        if self._pid != os.getpid():
            raise self._error()

    def _error(self) -> LeaseLost:
        """The error for a lease that is not held any longer, or not by this process."""
        if self._pid != os.getpid():
            return LeaseLost(
                f"{self._source.what} is held by process {self._pid}, from which this one was forked: "
                "acquire it here, after the fork"
            )
        if self._released:
            return LeaseLost(f"{self._source.what} was released, so it no longer protects the work")
        ago = now() - min(self.valid_until, self.ends_at)
        when = f" {ago:.1f} s ago" if ago > 0 else ""
        why = self._loss_reason or (
            self.ends_because
            if self.ends_at <= self.valid_until and now() >= self.ends_at
            else "the process was paused, or the server did not answer"
        )
        return LeaseLost(f"{self._source.what} was lost{when}: {why}. Another may have it: drop the work")

    @verb
    def moment(self) -> RoundTrip[float]:
        """A time at which it was certainly held, in seconds since 1970 by the server's clock. For an audit trail.

        Raises LeaseLost if that is not certain. One round trip.
        """
        self._check_process()

        def checked(moment: float) -> float:
            self.check()
            return moment

        return self._source.bindings.server_time().then(checked)

    # --- loss ---

    def mark_lost(self, why: str) -> None:
        """Record the loss and report it: cancel the task, call `on_loss`. The renewer calls this in its own thread."""
        self.renewing = False
        self._loss_reason = why or self._loss_reason or "the server no longer has it"
        self._set_lost()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._report_loss_in_loop)
            except RuntimeError:  # the loop is closed, and its task is gone
                return
        elif (on_loss := self._source.on_loss) is not None:
            thread = threading.Thread(target=on_loss, args=(self,), name="penstock on_loss", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: call it in the renewer's thread
                on_loss(self)

    def receive_notice(self, text: str) -> None:
        """An operator ended the holding; `text` is the reason."""
        if self.renewing and not self._releasing:
            self.mark_lost(_broken(text))

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

    def renewal(self, requested_at: float) -> RoundTrip[bool]:
        return self._extension(self.lease if self._source.renew else 0.0, requested_at)

    def _extension(self, seconds: float, requested_at: float) -> RoundTrip[bool]:
        """The call that extends the lease in the server. Its result is False if the lease is lost.

        The first one confirms a lock that a message granted; then its whole lease begins.
        """

        def read(reply: RenewReply) -> bool:
            if reply.is_held:
                self._reserve = None
                self.valid_until = max(self.valid_until, self._certain_until(requested_at, reply.left))
                if self.ends_by_itself:
                    self.ends_at = self.valid_until
                self._plan_renewal(requested_at)
            elif reply.break_reason is not None:
                self._loss_reason = _broken(reply.break_reason)
            return reply.is_held

        confirms = self._reserve is not None
        return self._source.bindings.renew(
            self._packed,
            max(seconds, self.lease) if confirms else seconds,
            ends=self._ends_us,
            confirms=confirms,
            address=self.notice_address,
        ).then(read)

    @verb
    def extend(self, seconds: float) -> Operation[float]:
        """Extend the lease to `seconds` from now, unless it lasts longer already. Returns the seconds that remain.

        Call it before work that keeps the process from renewing the lease, or to keep a lease that is not renewed
        (`renew=False`). A lease never lasts beyond `max_hold`, so fewer seconds may remain. Raises LeaseLost if it was
        lost. One round trip.
        """
        check_number("extend", "seconds", seconds, SHORTEST_LEASE, LONGEST_LEASE, LEASE_RULE)
        return self._extend(seconds)

    def _extend(self, seconds: float) -> Operation[float]:
        self.check()
        if not (yield self._extension(seconds, now())):
            if self.renewing:
                self.mark_lost("")
            raise self._error()
        self.check()
        return self.remaining

    def stop_renewing(self) -> None:
        """Do not renew it any longer, because its `with` block ends. Without a release it runs out."""
        self.renewing = False

    def drop(self) -> None:
        """Its `with` block was left, and nothing released it."""
        self.stop_renewing()

    @property
    def give_back(self) -> RoundTrip[bool]:
        """The call that releases the lease in the server. Its result is False if the lease was lost.

        If the driver sends the call twice, the second copy finds nothing to release. While the lease is valid, that
        does not count as a loss.
        """
        return self._release_call.then(lambda reply: reply.was_held)

    @property
    def _release_call(self) -> RoundTrip[ReleaseReply]:
        sent = self._source.bindings.release(self._packed)

        def read_after_retry(reply: Any) -> ReleaseReply:
            answer = sent.read(reply)
            is_certain = now() < self.valid_until and answer.break_reason is None
            return answer._replace(was_held=answer.was_held or is_certain)

        return replace(sent, read_after_retry=read_after_retry)

    @verb
    def release(self) -> Operation[None]:
        """Release the lease; the same script call serves the first waiter. The end of a `with` block does this.

        Raises LeaseLost if the lease was lost before. May be repeated. One round trip.
        """
        return self._release()

    def _release(self) -> Operation[None]:
        if self._released or self._pid != os.getpid():  # a forked child holds nothing
            return
        self.renewing, self._releasing = False, True
        if self._is_lost:
            known_loss = self._error()
            self._released = True
            raise known_loss
        try:
            reply = yield self._release_call
        except BaseException as error:
            if not isinstance(error, Exception):  # a cancelled release still releases the lease
                yield self.give_back
                self._released = True
            raise
        loss = None
        if not reply.was_held:
            broken = None if reply.break_reason is None else _broken(reply.break_reason)
            self._loss_reason = broken or self._loss_reason or "the server no longer had it when it was released"
            self._set_lost()
            loss = self._error()
        self._released = True
        if reply.more:
            yield from hand_over(self._source.bindings, self._packed)
        if loss is not None:
            raise loss


def _broken(reason: str) -> str:
    return f"an operator broke it ({reason})" if reason else "an operator broke it"
