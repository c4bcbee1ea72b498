"""Waiting without polling: one blocked read per process and inbox wakes everyone who waits there.

A component asks for a waiter and tells a script its address, `name/number`. The name is this process's (this
loop's, for asyncio), and the scripts push `number message` to the list at `inbox + name`; a reader blocks on that
one key and hands each message to the waiter of its number. A message is only a hint to look again: state is
written first, so one that is lost or came too late costs time, never a job.

    (no reader) ──listen──> reading ──a block passed and nobody waits──> (no reader)
                              │  ▲
             connection lost  ▼  │  open again: wake everyone with "", for what was sent meanwhile may be gone
                            trying, with back-off

The reader is written once. On the blocking face it is a thread in which no `await` ever suspends.
"""

from __future__ import annotations

import asyncio
import os
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from penstock.driver.connector import Command
from penstock.driver.retrying import Attempts
from penstock.errors import ServerUnavailable
from penstock.settings import Settings

Message: TypeAlias = str | Exception

# A wake-up of thousands (an event all wait for) needs some tens of reads, and each stays a small reply.
_AT_ONCE = 100

# The blocks of many readers grow longer, so that together they send one command per `block`; up to this many.
_MOST_SHARED = 16


class Connection(Protocol):
    """A connection to one node."""

    async def exchange(self, *commands: Command) -> list[Any]:
        """Send the commands, answer their replies in order; an error reply is an exception in the list.
        Raises when the connection failed; the line is of no use then."""
        ...

    def allow(self, seconds: float) -> None:
        """How long a reply may take from now on; at first it is `reply_timeout`."""

    def close(self) -> None:
        """At once, even while another thread is in `exchange`."""


class Face(Protocol):
    """What a reader needs of the driver it reads for."""

    @property
    def settings(self) -> Settings: ...
    @property
    def address(self) -> str: ...
    async def line_to(self, key: str) -> Connection: ...
    async def recover(self, error: Exception, key: str, tries: int) -> object: ...
    async def sleep(self, seconds: float) -> None: ...
    def retire(self, inbox: Inbox, *, even_if_awaited: bool) -> bool: ...


class Inbox:
    """The waiters of one face at one inbox key, and the reader that serves them."""

    def __init__(self, face: Face, prefix: str, name: str, block_multiplier: int = 1) -> None:
        self.prefix = prefix
        self.key = prefix + name
        self.waiters: dict[int, InboxListener] = {}
        self._face = face
        self._block = face.settings.block * block_multiplier
        self._line: Connection | None = None
        self._attempts = Attempts(face.settings.give_up_after)
        self._lost = self._stopped = False

    def wake(self, message: Message) -> None:
        """Tell all who wait: "" to look again, an error to give up."""
        for waiter in list(self.waiters.values()):
            waiter.notify(message)

    def stop(self) -> None:
        """End the reader at once, and have it tell those who wait. To be said again until it has ended."""
        self._stopped = True
        if self._line is not None:
            self._line.close()

    async def read(self) -> None:
        """Serve the waiters until a block passed in which nobody waited. A server that is gone is tried again."""
        end: Exception = ServerUnavailable("the connection was closed while waiting")
        _reading.add(self)
        try:
            while not self._stopped:
                try:
                    messages = await self._next()
                except Exception as error:
                    await self._failed(error)
                    continue
                self._deliver(messages)
                if not messages and self._face.retire(self, even_if_awaited=False):
                    return
        except Exception as error:
            end = error
        finally:
            _reading.discard(self)
            self._hang_up()
            self._face.retire(self, even_if_awaited=True)
            self.wake(end)

    async def _next(self) -> list[bytes]:
        """What came within one block."""
        settings = self._face.settings
        if self._line is None:
            self._line = await self._face.line_to(self.key)
            if self._lost:
                self._lost = False
                self.wake("")
        block = self._block * min(_MOST_SHARED, len(_reading))
        if self._stopped:
            return []
        self._line.allow(block + settings.reply_timeout)
        (reply,) = await self._line.exchange(("BLMPOP", block, 1, self.key, "LEFT", "COUNT", _AT_ONCE))
        if isinstance(reply, Exception):
            raise reply
        if self._attempts.tries:
            self._attempts = Attempts(settings.give_up_after)
        return reply[1] if reply else []

    async def _failed(self, error: Exception) -> None:
        """Wait before the next attempt; raises what none will mend."""
        self._hang_up()
        self._lost = True
        if self._stopped:
            return
        try:
            pause = self._attempts.pause(error, self._face.address)
        except ServerUnavailable:
            # Who waits looks again, meets the same silence in a step, and raises that to its caller.
            self.wake("")
            self._attempts = Attempts(self._face.settings.give_up_after)
            pause = self._attempts.pause(error, self._face.address)
        await self._face.recover(error, self.key, self._attempts.tries)
        await self._face.sleep(pause)

    def _deliver(self, messages: list[bytes]) -> None:
        for message in messages:
            number, _, text = message.decode(errors="replace").partition(" ")
            # An unknown number is of a waiter that has gone.
            if number.isdecimal() and (waiter := self.waiters.get(int(number))) is not None:
                waiter.notify(text)

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


# The readers of this process.
_reading: set[Inbox] = set()
os.register_at_fork(after_in_child=_reading.clear)


class InboxListener:
    """One waiter's place in an inbox; what both faces of it share."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        self.address = f"{name}/{number}"
        self.full_address = f"{inbox.key}/{number}"
        self._inbox = inbox
        self._number = number
        inbox.waiters[number] = self

    def close(self) -> None:
        """Give the place up; no I/O."""
        self._inbox.waiters.pop(self._number, None)

    def notify(self, message: Message) -> None:
        raise NotImplementedError


class BlockingListener(InboxListener):
    """A place where a thread sleeps."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        # Before the place is taken: the reader may notify it at once.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        super().__init__(inbox, name, number)

    def notify(self, message: Message) -> None:
        self._messages.put(message)

    def wait(self, timeout: float | None) -> list[str]:
        """Sleep until a message came, or for `timeout` seconds: then []."""
        came: list[Message] = []
        try:
            came.append(self._messages.get(timeout=timeout if timeout is None else max(0.0, timeout)))
            while True:
                came.append(self._messages.get_nowait())
        except Empty:
            return _texts(came)


class AioListener(InboxListener):
    """A place where one task sleeps."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        self._messages: list[Message] = []
        self._asleep: asyncio.Future[None] | None = None
        super().__init__(inbox, name, number)

    def notify(self, message: Message) -> None:
        self._messages.append(message)
        self._rouse()

    async def wait(self, timeout: float | None) -> list[str]:
        """Sleep until a message came, or for `timeout` seconds: then []."""
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._asleep = loop.create_future()
            alarm = None if timeout is None else loop.call_later(timeout, self._rouse)
            try:
                await self._asleep
            finally:
                self._asleep = None
                if alarm is not None:
                    alarm.cancel()
        came, self._messages = self._messages, []
        return _texts(came)

    def _rouse(self) -> None:
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


def _texts(came: list[Message]) -> list[str]:
    for message in came:
        if isinstance(message, Exception):
            raise message
    return [message for message in came if isinstance(message, str)]
