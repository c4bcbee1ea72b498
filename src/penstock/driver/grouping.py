"""Group commit of the asyncio face: calls that tasks of one event loop make at the same moment travel as one call.

The first call goes at once, so a lone call does not wait. Calls that come while it is under way wait for its reply,
and then go together in the order in which they were made: one command, one run of the script, one reply. Only calls
that allow it (`RoundTrip.group_from`) join a group, and only with others of the same script, keys and first arguments.

A group belongs to no caller: one that is cancelled only drops its answer, and when all of them are, the group is not
repeated. The calls of a group have consecutive numbers of one idempotency key, and the group carries the last of them.
It is repeated unchanged until it is answered. If the server refuses it, each call is sent alone, so that only the call
that has a fault fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.core.idempotency import IdempotencyKey
from penstock.core.operations import Arg, RoundTrip
from penstock.driver.faults import read_reply
from penstock.driver.first_attempt import FirstAttempt
from penstock.driver.interruption import Interruption, raise_if_interrupted, report
from penstock.driver.retrying import UNANSWERED, error_code
from penstock.errors import ServerUnavailable
from penstock.settings import Settings

R = TypeVar("R")

_Waiting: TypeAlias = "tuple[RoundTrip[Any], asyncio.Future[Any]]"
"""A call, and the future of its answer."""

MOST_CALLS: Final = 64
"""A hundred tasks make two groups of this size. While the server works on one, the client encodes the other."""

MOST_BYTES: Final = 65_536
"""Of the arguments of a group. A larger call is a group of its own."""

_MOST_BY_SHORTCUT: Final = 16
"""Calls that are sent by their shortcut. More of them cost the server less by their own script."""


class NoReply(NamedTuple):
    """What the callers of a group get that has no reply.

    error   the group was never answered, and may have been executed; None: it was refused, so each call is sent alone
    """

    error: Exception | None = None


class GroupingFace(Protocol):
    """The members of the asyncio face's engine that groups use."""

    settings: Settings

    def first_attempt(self, round_trip: RoundTrip[Any]) -> FirstAttempt | None: ...
    def send_now(self, first: FirstAttempt, *, may_wait: bool = False) -> asyncio.Future[Any] | None: ...
    async def send(self, round_trip: RoundTrip[R], give_up_after: float, first: FirstAttempt | None = None) -> R: ...
    def succeeded(self, round_trip: RoundTrip[R], first: FirstAttempt, reply: Any) -> R: ...
    def take_key(self, calls: int) -> IdempotencyKey: ...
    def release_key(self, key: IdempotencyKey) -> None: ...


class Groups:
    """The calls of one event loop that may travel together."""

    def __init__(self, engine: GroupingFace) -> None:
        self.engine = engine
        self.senders: dict[tuple[Any, ...], _Sender] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, call: RoundTrip[Any]) -> asyncio.Future[Any] | None:
        """Let a call wait for the next group. Returns the future of its reply, or of a `NoReply`.

        None if no call of its kind is under way.
        """
        sender = self.senders.get(_kind(call)) if self.senders else None
        return None if sender is None else sender.add(call)

    async def call(self, call: RoundTrip[R], give_up_after: float) -> R:
        """Send a call at once, or, if one like it is under way, with others. Returns its result."""
        if (joined := self.join(call)) is not None:
            return await self.result(call, await joined)
        engine = self.engine
        first = engine.first_attempt(call)
        if first is not None and (reply := engine.send_now(first)) is not None:
            kind = _kind(call)
            sender = self.senders[kind] = _Sender(self, kind)
            try:
                answer = await reply
            finally:
                sender.ended()  # others wait for the first attempt, and for no more
            if first.answered(call, answer):
                return engine.succeeded(call, first, answer)
        return await engine.send(call, give_up_after, first)

    async def result(self, call: RoundTrip[R], reply: Any) -> R:
        """The result of a call that has joined a group."""
        if type(reply) is not NoReply:
            return read_reply(call, call.read, reply)
        if reply.error is not None:
            raise copy.copy(reply.error) from reply.error  # each caller adds its own lines to the traceback
        return await self.engine.send(call, self.engine.settings.give_up_after)

    def start(self, work: Coroutine[Any, Any, None], callers: Sequence[asyncio.Future[Any]]) -> None:
        """Send a group in a task while a caller waits. Closing the face does not end it: the next attempt connects."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        asyncio.gather(*callers, return_exceptions=True).add_done_callback(lambda _: task.cancel())


class _Sender:
    """Sends the calls of one kind. It exists while some of them wait or are under way."""

    def __init__(self, groups: Groups, kind: tuple[Any, ...]) -> None:
        self.groups = groups
        self._kind = kind
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._under_way = 1

    def add(self, call: RoundTrip[Any]) -> asyncio.Future[Any]:
        """Let a call wait for the next group. Returns the future of its answer."""
        size = sum(map(len, call.args[call.group_from :]))  # type: ignore[arg-type]
        if self._bytes and self._bytes + size > MOST_BYTES:
            self._send_waiting()
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        self._bytes += size
        if len(self._waiting) >= MOST_CALLS or self._bytes >= MOST_BYTES:
            self._send_waiting()
        return answer

    def ended(self) -> None:
        """The first call, which went alone, is answered or continues alone."""
        self._under_way -= 1
        if self._waiting:
            self._send_soon()
        else:
            self._forget_if_unused()

    def group_ended(self) -> None:
        """A group is answered, or continues in a task, for which no other call waits."""
        self._under_way -= 1
        self._send_soon()

    def _send_soon(self) -> None:
        # After the callbacks that are due now: tasks that have just got their answers may call again, and join.
        with contextlib.suppress(RuntimeError):  # the loop is closed
            asyncio.get_running_loop().call_soon(self._send_in_callback)

    def _send_in_callback(self) -> None:
        try:
            self._send_waiting()
        except Interruption as found:
            report(found)

    def _send_waiting(self) -> None:
        """Send the calls that wait as one group. A call whose caller was cancelled meanwhile is not sent."""
        group = None
        try:
            calls = [(call, answer) for call, answer in self._waiting if not answer.done()]
            if calls:
                group = _Group(self, calls)
                self._under_way += 1
            self._waiting, self._bytes = [], 0
            if group is not None:
                group.send()
        except BaseException as error:  # of a signal handler
            if group is None:
                self._send_soon()
            raise_if_interrupted(error)
            raise
        self._forget_if_unused()

    def _forget_if_unused(self) -> None:
        if not self._under_way and not self._waiting:
            self.groups.senders.pop(self._kind, None)


class _Group:
    """Calls that travel as one."""

    def __init__(self, sender: _Sender, calls: list[_Waiting]) -> None:
        self._sender = sender
        self._engine = sender.groups.engine
        self._calls = calls
        one = calls[0][0]
        args: list[Arg] = [*one.args[: one.group_from]]
        for call, _ in calls:
            args += call.args[one.group_from :]
        self._key = self._engine.take_key(len(calls))
        args[:2] = self._key.caller, self._key.number
        by_shortcut = len(calls) <= _MOST_BY_SHORTCUT and all(call.shortcut is one.shortcut for call, _ in calls)
        self._call = RoundTrip(one.script, one.keys, tuple(args), _same, shortcut=one.shortcut if by_shortcut else None)
        self._first: FirstAttempt | None = None

    def send(self) -> None:
        """Send the group on the open connection, behind what is unsent there; in a task if no connection is open."""
        reply = None
        try:
            self._first = self._engine.first_attempt(self._call)
            reply = None if self._first is None else self._engine.send_now(self._first, may_wait=True)
            if reply is not None:
                reply.add_done_callback(self._received)
        except BaseException as error:
            # An argument that cannot be sent, or a signal handler. The group may be sent already, so it is repeated.
            self._send_in_task()
            raise_if_interrupted(error)
            if not isinstance(error, Exception):
                raise
        else:
            if reply is None:
                self._send_in_task()

    def _received(self, reply: asyncio.Future[Any]) -> None:
        if (error := reply.exception()) is not None:
            self._interrupt_one(error)
        elif self._first is not None and self._first.answered(self._call, answer := reply.result()):
            self._engine.release_key(self._key)
            self._end(answer)
            return self._sender.group_ended()
        self._send_in_task()

    def _send_in_task(self) -> None:
        self._sender.group_ended()
        if callers := [caller for _, caller in self._calls if not caller.done()]:
            self._sender.groups.start(self._repeat(), callers)

    async def _repeat(self) -> None:
        """Send the group until it is answered, and answer its callers."""
        while True:
            try:
                answer = await self._engine.send(self._call, self._engine.settings.give_up_after, self._first)
            except Interruption as found:
                self._interrupt_one(found)
                self._first = None
            except Exception as error:
                return self._end(self._refused(error))
            except BaseException:  # the loop ends, and with it the callers
                for _, caller in self._calls:
                    caller.cancel()
                raise
            else:
                self._engine.release_key(self._key)
                return self._end(answer)

    def _refused(self, error: Exception) -> NoReply:
        """What the callers get after an error. After a lost reply, the first attempt may have been executed."""
        lost = self._first is not None and self._first.error is not None and error_code(self._first.error) in UNANSWERED
        if lost or isinstance(error, ServerUnavailable) or error_code(error.__cause__ or error) in UNANSWERED:
            return NoReply(error)
        self._engine.release_key(self._key)
        return NoReply()

    def _end(self, answer: object) -> None:
        for _, caller in self._calls:
            if not caller.done():
                caller.set_result(answer)

    def _interrupt_one(self, error: BaseException) -> None:
        """Let one caller raise the exception of a signal handler, as if the handler had interrupted that caller."""
        caller = next((caller for _, caller in self._calls if not caller.done()), None)
        if caller is not None:
            caller.set_exception(error)
        elif isinstance(error, Interruption):
            report(error)


def _kind(call: RoundTrip[Any]) -> tuple[Any, ...]:
    return call.script.sha, call.keys, call.args[: call.group_from]


def _same(reply: Any) -> Any:
    return reply
