"""The code that locks and semaphores share: `acquire` and `with`, leases that are renewed, waiting in order of arrival.

Each call of `acquire` makes a request with its own token, which may be sent any number of times. A request that has to
wait joins the waiters in the server (`core/waiters.lua`): in its first attempt, if this process has waited for the same
keys in the last seconds, else in its second. Its caller sleeps until a message arrives, until the time at which the
server asked it to try again, or until it is chosen to try on behalf of its process (`last_tries.py`). A cancelled wait
gives up its position among the waiters, or releases the lock if the lock was handed over in the meantime.

A message that hands a lock over contains the grant (`Grant.from_messages`), so the waiter starts without asking, and
the renewer confirms the grant in the background.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.core.arguments import LONGEST_WAIT, check_callback, check_number, check_wait, shown
from penstock.core.ids import mint_token
from penstock.core.operations import Driver, Listen, Operation, verb
from penstock.core.renewal import Renewer, now
from penstock.errors import PenstockError, SelfDeadlock
from penstock.locks import wait_times
from penstock.locks.bindings import AcquireReply, LeaseBindings
from penstock.locks.decorating import guard_calls
from penstock.locks.last_tries import LastTries
from penstock.locks.lease import (
    LEASE_RULE,
    LONGEST_LEASE,
    SHORTEST_LEASE,
    Grant,
    Holder,
    Lease,
    current_context,
    hand_over,
)
from penstock.locks.with_block import BlockExit, LatestExits, exit_per_block

L = TypeVar("L", bound=Lease)
B = TypeVar("B", bound=LeaseBindings)
F = TypeVar("F", bound=Callable[..., Any])


class HoldOptions(msgspec.Struct, frozen=True):
    """How a lock, permits or a leadership are waited for and held. `Penstock.lock` describes the fields."""

    lease: float
    wait: float | None
    max_hold: float | None = None
    renew: bool = True
    on_loss: Callable[[Any], object] | None = None
    cancel_on_loss: bool = False

    def check(self, what: str) -> None:
        """Raise ValueError, with the fix, for an option that cannot work. `what`: the function that was called."""
        rule = LEASE_RULE if self.renew is False else f"{LEASE_RULE}; it is renewed while it is held"
        check_number(what, "lease", self.lease, SHORTEST_LEASE, LONGEST_LEASE, rule)
        check_wait(what, self.wait)
        if self.max_hold is not None:
            rule = "seconds from 0.05 to a year, or None for no limit"
            check_number(what, "max_hold", self.max_hold, SHORTEST_LEASE, LONGEST_WAIT, rule)
        if not isinstance(self.renew, bool):
            raise ValueError(f"{what}(renew={shown(self.renew)}): True, or False to hold it for exactly one lease")
        check_callback(what, "on_loss", self.on_loss)

    @property
    def first_lease(self) -> float:
        return self.lease if self.max_hold is None else min(self.lease, self.max_hold)


class LeasedResource(Generic[L, B]):
    """A lock or a semaphore: one object for `with`, `async with` and the verb `acquire`.

    what  how errors name it, such as "lock 'invoice:7'"
    """

    bindings: B

    def __init__(self, kind: str, what: str, driver: Driver, renewer: Renewer, options: HoldOptions) -> None:
        """`kind`: the function that made it, for errors."""
        options.check(kind)
        self.what = what
        self._kind_of_request = kind
        self.lease = options.first_lease
        self.wait = options.wait
        self.max_hold = options.max_hold
        self.renew = options.renew
        self.on_loss = options.on_loss
        self.cancel_on_loss = options.cancel_on_loss
        self._driver = driver
        self._renewer = renewer
        self._entered: dict[object, list[L]] = {}
        self._latest_exits = LatestExits()

    def __repr__(self) -> str:
        return f"<{self.what}>"

    # --- for subclasses ---

    def _new_lease(self, token: str, packed: bytes, grant: Grant) -> L:
        raise NotImplementedError

    def _waits_for_itself(self, own: Sequence[Lease], refusal: AcquireReply) -> bool:
        """Whether a request that was refused would wait for these leases, which its own thread or task holds."""
        return bool(own)

    def _timeout_error(self) -> PenstockError:
        """The error for a request that was not granted within `wait` seconds."""
        raise NotImplementedError

    def _refused_error(self, refused: int) -> ValueError:
        """The error for a request that can never be granted; see `AcquireReply.refused`."""
        raise NotImplementedError

    # --- acquire ---

    @verb
    def acquire(self) -> Operation[L]:
        """Wait in order of arrival, for at most `wait` seconds. Returns a lease, which is renewed until it is released.

        Raises LockTimeout or PermitTimeout. One round trip if the lock or the permits are free; otherwise one or two,
        and while it waits the process sends a command about every five seconds (more often if a lease is shorter than
        eight).
        """
        request = self._acquire()
        return wait_times.observed(self._kind_of_request, request) if wait_times.observers else request

    def _acquire(self) -> Operation[L]:
        token = mint_token()
        if self.cancel_on_loss and asyncio._get_running_loop() is None:
            raise ValueError(
                "cancel_on_loss=True cancels an asyncio task: in blocking code use on_loss or held.check()"
            )
        deadline = None if self.wait is None else time.monotonic() + self.wait
        self._renewer.start()
        if self.wait == 0 or not LastTries.of(self._driver).waited_lately(self.bindings.declared):
            held = yield from self._try(token)
            if held is not None:
                return held
        held = None if self.wait == 0 else (yield from self._wait_until_granted(token, deadline))
        if held is None:
            raise self._timeout_error()
        return held

    def _try(self, token: str) -> Operation[L | None]:
        """Try without joining the waiters. None if the request was not granted."""
        packed, sent_at = self.bindings.request.pack(token), now()
        try:
            while (reply := (yield self.bindings.acquire(packed, 0, join=False))).more:
                sent_at = now()
            if reply.granted:
                return self._start_lease(token, packed, reply, sent_at)
            if reply.refused:
                raise self._refused_error(reply.refused)
        except BaseException:
            yield from hand_over(self.bindings, packed)
            raise
        if self.wait != 0:
            self._check_deadlock(reply)
        return None

    def _wait_until_granted(self, token: str, deadline: float | None) -> Operation[L | None]:
        """Join the waiters. None if the request was not granted before the deadline."""
        listener = yield Listen(self.bindings.declared[0])
        packed, ticket, messages = self.bindings.request.pack(token, listener.address), 0, list[str]()
        tries = LastTries.of(self._driver)
        try:
            with tries.waiting(self.bindings.declared, listener, self.lease):
                while True:
                    in_time, sent_at = deadline is None or time.monotonic() < deadline, now()
                    tries.note(self.bindings.declared)
                    reply = yield self.bindings.acquire(packed, ticket, join=in_time)
                    if reply.granted:
                        if ticket and not messages:
                            tries.wake_others(listener)
                        return self._start_lease(token, packed, reply, sent_at)
                    if reply.refused:
                        raise self._refused_error(reply.refused)
                    if not (in_time or reply.more):
                        return None
                    if ticket == 0:
                        self._check_deadlock(reply)
                    ticket = reply.ticket
                    messages = yield from tries.sleep(self.bindings.declared, listener, reply.retry_in, deadline)
                    if self.renew and (grant := Grant.from_messages(messages, reply.now, sent_at)) is not None:
                        return self._keep(self._new_lease(token, packed, grant))
        except BaseException:
            yield from hand_over(self.bindings, packed)
            raise
        finally:
            listener.close()

    def _start_lease(self, token: str, packed: bytes, reply: AcquireReply, sent_at: float) -> L:
        return self._keep(self._new_lease(token, packed, Grant(reply.fence, reply.now, sent_at)))

    def _keep(self, held: L) -> L:
        self._renewer.keep(held)
        return held

    def _check_deadlock(self, refusal: AcquireReply) -> None:
        """Raise SelfDeadlock if only the caller itself could end the wait.

        Leases that end by themselves do not count.
        """
        wanted, holder = set(self.bindings.declared), Holder.current()
        own = [
            lease
            for lease in self._renewer.kept()
            if isinstance(lease, Lease)
            and lease.holder is holder
            and not lease.ends_by_itself
            and not wanted.isdisjoint(lease._source.bindings.declared)
        ]
        if own and self._waits_for_itself(own, refusal):
            who = "thread" if asyncio._get_running_loop() is None else "task"
            raise SelfDeadlock(
                f"{self.what}: this {who} holds it already, and would wait for itself; release it first, or use "
                "reentrant=True for a lock"
            )

    # --- with, and as a decorator ---

    def __call__(self, function: F) -> F:
        """Decorate a `def` or `async def` function: each call of it holds the resource until the call ends."""
        return guard_calls(function, self)

    def __enter__(self) -> L:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("`with` would block the running event loop: write `async with` here")
        held = self.acquire()
        self._note_entered(threading.get_ident(), held)
        return held

    @exit_per_block
    def __exit__(
        self, kind: object, error: BaseException | None, trace: object, *, leaving: BlockExit[L] | None = None
    ) -> None:
        held = (leaving and leaving.take()) or self._pop_entered(threading.get_ident())
        try:
            held.release()
        except PenstockError as release_error:
            held.raise_on_exit(error, release_error)

    async def __aenter__(self) -> L:
        held = await self.acquire.aio()
        self._note_entered(asyncio.current_task(), held)
        return held

    @exit_per_block
    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object, *, leaving: BlockExit[L] | None = None
    ) -> None:
        held = (leaving and leaving.take()) or self._pop_entered(asyncio.current_task())
        try:
            await held.release.aio()
        except PenstockError as release_error:
            held.raise_on_exit(error, release_error)

    def _note_exit(self, found: BlockExit[L]) -> None:
        self._latest_exits.note(current_context(), found)

    def _note_entered(self, context: object, held: L) -> None:
        """Have `__exit__` find the lease. An `__exit__` that was not looked up by a `with` statement, such as that of
        an ExitStack, finds it by its thread or task."""
        if not self._latest_exits.give(current_context(), held):
            self._entered.setdefault(context, []).append(held)

    def _pop_entered(self, context: object) -> L:
        """The lease that this thread or task entered last. Many threads and tasks may share one object."""
        if context not in self._entered:
            if len(self._entered) != 1:
                raise RuntimeError(f"{self.what} was entered by another task or thread: exit it there")
            # Test fixtures and exit stacks may exit it in another task than the one that entered it.
            (context,) = self._entered
        entered = self._entered[context]
        held = entered.pop()
        if not entered:
            del self._entered[context]
        return held
