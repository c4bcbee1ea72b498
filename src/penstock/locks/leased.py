"""What a lock and a permit have in common: taken for a lease, waited for in line, entered with `with`.

    Leased    what can be taken: `acquire`, `with`, `async with`
    Holding   what was taken: `check`, `lost`, `release`

A request has a token of its own and may be sent any number of times. Who has to wait joins the line in the server and
sleeps until a message comes, or until the time the server named (see `store/line.lua`). A wait that is cancelled gives
back its place, or what it was handed meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec

from penstock.core.ids import mint_token
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, verb, wait_until_recheck
from penstock.core.renewal import Renewer, now, valid_until
from penstock.core.scripts import Library, Script
from penstock.errors import LeaseLost, PenstockError
from penstock.locks.keys import COMMON_INBOX

H = TypeVar("H", bound="Holding")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def check_times(what: str, lease: float, wait: float | None) -> None:
    """ValueError with the fix."""
    if not 0.05 <= lease <= 7 * 86400:
        raise ValueError(f"{what}(lease={lease}): seconds from 0.05 to a week; it is renewed while it is held")
    if wait is not None and not wait >= 0:
        raise ValueError(f"{what}(wait={wait}): seconds from 0, or None for ever")


@dataclass(frozen=True, slots=True)
class Party:
    """A process that holds something or waits for it. `age`: seconds since it took it, or joined the line. `left`:
    seconds until its lease ends; None for who waits, and for a lock without a lease. A lock of another library has
    no host and no pid."""

    host: str
    pid: int
    token: str
    age: float | None
    left: float | None = None
    permits: int = 1

    @classmethod
    def of(cls, token: str, age: float | None, left: float | None = None, permits: int = 1) -> Party:
        match token.split("/"):
            case ["penstock", host, pid, _, *_] if pid.isdecimal():
                return cls(host, int(pid), token, age, left, permits)
        return cls("", 0, token, None, left, permits)


def waiting_parties(taken_at: int, rows: Sequence[Any]) -> tuple[Party, ...]:
    """From request, ticket, request, ticket, …; `taken_at` in server microseconds."""
    pairs = zip(rows[0::2], rows[1::2], strict=True)
    return tuple(
        Party.of(token, max(0.0, (taken_at - float(ticket)) / 1e6), None, permits or 1)
        for (token, _, _, _, permits, _), ticket in ((_unpack(request), ticket) for request, ticket in pairs)
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request: granted, with its fence, or its place in line and when to come again unasked."""

    granted: bool
    fence: int = 0
    ticket: int = 0
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked for, as all requests of one `Leased` say it."""

    what: str
    lease: float
    wait: float | None
    declared: tuple[str, ...]
    inbox: str
    permits: int = 0
    limit: int = 0

    def request(self, token: str, address: str) -> bytes:
        """As `store/line.lua` has it."""
        return _pack((token, math.ceil(self.lease * 1000), address, self.declared, self.permits, self.limit))


class Holding:
    """Something held under a lease. It is renewed until it is released, or lost.

    lost   set when it is known to be lost; `wait()` on it in a thread
    lease  seconds
    """

    def __init__(self, leased: Leased[Any], token: str, request: bytes, fence: int, asked: float) -> None:
        self.token = token
        self.lease = leased.terms.lease
        self.lost = threading.Event()
        self.valid_until = valid_until(asked, self.lease)
        self.renewing = False
        self._leased = leased
        self._request = request
        self._fence = fence
        self._why = ""
        self._released = self._ending = False
        self._pid = os.getpid()
        self._loop = asyncio._get_running_loop()
        self._task = asyncio.current_task() if self._loop is not None and leased.cancel_on_loss else None
        self._cancelled = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._leased.terms.what}>"

    @property
    def _driver(self) -> Driver:
        return self._leased._driver

    # --- is it still ours ---

    @property
    def remaining(self) -> float:
        """Seconds for which it is surely held if no renewal succeeds; 0 when it is lost. No round trip.

        Judged by this host's steady clock, from before the request was sent.
        """
        if self.lost.is_set() or self._released:
            return 0.0
        return max(0.0, self.valid_until - now())

    def check(self) -> None:
        """Raise LeaseLost if it is not surely held any more. No round trip: what is true now may be false a moment
        later. Only the fence, checked where the work is written, stops a late write."""
        if self._released:
            raise self._released_before()
        if self.remaining == 0.0:
            raise self._loss()

    def _released_before(self) -> LeaseLost:
        return LeaseLost(f"{self._leased.terms.what} was released: what comes after that is not protected by it")

    def _loss(self) -> LeaseLost:
        ago = now() - self.valid_until
        when = f" {ago:.1f} s ago" if ago > 0 else ""
        why = self._why or "the process was paused, or the server did not answer"
        return LeaseLost(f"{self._leased.terms.what} was lost{when}: {why}. Another may have it: drop the work")

    def mark_lost(self, why: str) -> None:
        """Called by the renewer, in its thread."""
        self.renewing = False
        self._why = why
        self.lost.set()
        tell = self._leased.on_loss
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._tell_loop, tell)
            except RuntimeError:  # the loop is closed, nobody is there to be told
                return
        elif tell is not None:
            threading.Thread(target=tell, args=(self,), name="penstock tells a loss", daemon=True).start()

    def _tell_loop(self, tell: Callable[[Any], object] | None) -> None:
        if self._ending:  # there it is told
            return
        if self._task is not None and not self._task.done():
            self._cancelled = True
            self._task.cancel(f"{self._leased.terms.what} was lost")
        if tell is not None:
            tell(self)

    @verb
    def moment(self) -> RoundTrip[float]:
        """A moment, in seconds since 1970 by the server's clock, at which it surely was held; for books that are
        kept of who held what. Raises LeaseLost where that is not sure. One round trip."""
        script, declared = self._leased.scripts["now"], self._leased.terms.declared[:2]

        def read(reply: int) -> float:
            self.check()
            return reply / 1e6

        return RoundTrip(script, declared, (), read)

    # --- give it back ---

    @property
    def renewal(self) -> RoundTrip[bool]:
        return self._leased.step(self._leased.scripts["renew"], self._request)

    @property
    def give_back(self) -> RoundTrip[bool]:
        """A second copy finds nothing, and that is no loss."""
        step = self._leased.step(self._leased.scripts["release"], self._request)
        return replace(step, read_after_retry=lambda reply: bool(reply) or now() < self.valid_until)

    @verb
    def release(self) -> Operation[None]:
        """Give it back; the next in line has it in the same step. Raises LeaseLost when it was lost before.

        One round trip; may be repeated. Where `with` is left, this is done.
        """
        return self._release()

    def _release(self) -> Operation[None]:
        if self._released or self._pid != os.getpid():  # a forked child holds nothing
            return
        self.renewing, self._ending = False, True
        if self.lost.is_set():
            self._released = True
            raise self._loss()
        try:
            ours = yield self.give_back
        except BaseException as error:
            if not isinstance(error, Exception):
                yield self.give_back
                self._released = True
            raise
        self._released = True
        if not ours:
            self._why = self._why or "the server had it no more when it was released"
            self.lost.set()
            raise self._loss()

    def left(self, error: BaseException | None, trouble: Exception) -> None:
        """`trouble` came up where the `with` was left with `error`: that goes first, unless we made it."""
        if error is None:
            raise trouble
        if self._cancelled and isinstance(error, asyncio.CancelledError) and self._task is not None:
            self._cancelled = False
            if self._task.uncancel() == 0:
                raise trouble from error
        if type(error) is not type(trouble):
            error.add_note(str(trouble))


class Leased(Generic[H]):
    """Something that can be taken for a lease: one object for `with`, `async with` and the verb `acquire`."""

    scripts: Library

    def __init__(
        self,
        terms: Terms,
        driver: Driver,
        renewer: Renewer,
        *,
        on_loss: Callable[[Any], object] | None,
        cancel_on_loss: bool,
    ) -> None:
        self.terms = terms
        self.on_loss = on_loss
        self.cancel_on_loss = cancel_on_loss
        self._driver = driver
        self._renewer = renewer
        self._entered: dict[object, list[H]] = {}

    def __repr__(self) -> str:
        return f"<{self.terms.what}>"

    # --- what a kind supplies ---

    def _held(self, token: str, request: bytes, fence: int, asked: float) -> H:
        raise NotImplementedError

    def _timeout(self) -> PenstockError:
        raise NotImplementedError

    def _refused(self, detail: int) -> ValueError:
        """What a reply of -1 means."""
        raise NotImplementedError

    # --- take ---

    def step(self, script: Script, request: bytes) -> RoundTrip[bool]:
        return RoundTrip(script, self.terms.declared, (request,), bool)

    @verb
    def acquire(self) -> Operation[H]:
        """Take it, and wait in line for `wait` seconds at most; what it gives is renewed until it is released.

        Raises LockTimeout or PermitTimeout. One round trip when it is free; who waits sends a command now and then.
        """
        return self._take()

    def _take(self) -> Operation[H]:
        wait, token = self.terms.wait, mint_token()
        if self.cancel_on_loss and asyncio._get_running_loop() is None:
            raise ValueError(
                "cancel_on_loss=True cancels an asyncio task: in blocking code use on_loss or held.check()"
            )
        deadline = None if wait is None else time.monotonic() + wait
        self._renewer.start()
        request, asked = self.terms.request(token, ""), now()
        try:
            answer = yield self._ask(request, 0, stay=False)
            if answer.granted:
                return self._keep(token, request, answer, asked)
        except BaseException:
            yield self.step(self.scripts["release"], request)
            raise
        held = None if wait == 0 else (yield from self._take_in_turn(token, deadline))
        if held is None:
            raise self._timeout()
        return held

    def _take_in_turn(self, token: str, deadline: float | None) -> Operation[H | None]:
        # Who waits looks now and then of itself, so its reader may block for longer.
        waiter = yield Listen(self.terms.inbox, COMMON_INBOX, block_multiplier=2)
        request, ticket = self.terms.request(token, waiter.full_address), 0
        try:
            while True:
                stay, asked = deadline is None or time.monotonic() < deadline, now()
                answer = yield self._ask(request, ticket, stay=stay)
                if answer.granted:
                    return self._keep(token, request, answer, asked)
                if not stay:
                    return None
                ticket = answer.ticket
                yield from wait_until_recheck(waiter, answer.delay, deadline)
        except BaseException:
            yield self.step(self.scripts["release"], request)
            raise
        finally:
            waiter.close()

    def _keep(self, token: str, request: bytes, answer: Answer, asked: float) -> H:
        held = self._held(token, request, answer.fence, asked)
        self._renewer.keep(held, asked)
        return held

    def _ask(self, request: bytes, ticket: int, *, stay: bool) -> RoundTrip[Answer]:
        return RoundTrip(self.scripts["acquire"], self.terms.declared, (request, ticket, int(stay)), self._answer)

    def _answer(self, reply: Sequence[int]) -> Answer:
        if reply[0] < 0:
            raise self._refused(reply[1])
        if reply[0] == 1:
            return Answer(True, fence=reply[1])
        return Answer(False, ticket=reply[1], delay=max(0, reply[2]) / 1000)

    # --- with ---

    def __enter__(self) -> H:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("`with` would block the running event loop: write `async with` here")
        held = self.acquire()
        self._entered.setdefault(threading.get_ident(), []).append(held)
        return held

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self._leaving(threading.get_ident())
        try:
            held.release()
        except PenstockError as trouble:
            held.left(error, trouble)

    async def __aenter__(self) -> H:
        held = await self.acquire.aio()
        self._entered.setdefault(asyncio.current_task(), []).append(held)
        return held

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self._leaving(asyncio.current_task())
        try:
            await held.release.aio()
        except PenstockError as trouble:
            held.left(error, trouble)

    def _leaving(self, who: object) -> H:
        """What this thread or task entered last; one object may be in use by many of them at a time."""
        if who not in self._entered:
            if len(self._entered) != 1:
                raise RuntimeError(f"{self.terms.what} was entered by another task or thread: leave it where it was")
            (who,) = self._entered  # a fixture, or a stack that was handed on
        entered = self._entered[who]
        held = entered.pop()
        if not entered:
            del self._entered[who]
        return held
