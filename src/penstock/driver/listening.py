"""Waiting without polling: one blocked read per face and inbox serves all operations that wait there.

An operation opens a listener and passes its address, `face/number`, to a script. `face` is the random name of this
process's blocking face, or of one of its event loops. To notify the listener, a script pushes `number message` to the
list at `inbox + face`. A reader blocks on that one key and passes each message to the listener of its number.

A message is only a hint to check the state. Scripts write the state first, so a lost or late message costs time, never
a job.

    (no reader) ──listen──> reading ──a block passed without listeners──> (no reader)
                              │  ▲
             connection lost  ▼  │  connected again: notify all with "", for messages may have been lost meanwhile
                          retrying, with back-off

The reader is written once. On the blocking face it runs in a thread, where no `await` ever suspends.
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

# At most this many messages per read, so that each reply is small. An event that thousands await takes tens of reads.
_READ_AT_MOST = 100

# With n readers in the process each blocks n times longer, so that together they send one command per `block`; n is at
# most this.
_MAX_STRETCH = 16


class Connection(Protocol):
    """A connection to one node."""

    async def exchange(self, *commands: Command) -> list[Any]:
        """Send the commands and return their replies in order; an error reply is an exception in the list.

        Raises if the connection has failed, after which it cannot be used again.
        """
        ...

    def set_reply_timeout(self, seconds: float) -> None:
        """Set how long each reply may take from now on. Initially that is the setting `reply_timeout`."""

    def close(self) -> None:
        """Close at once, even while another thread is in `exchange`."""


class Face(Protocol):
    """What an inbox needs from the engine of its face."""

    @property
    def settings(self) -> Settings: ...
    @property
    def address(self) -> str: ...
    async def connect_to(self, key: str) -> Connection: ...
    async def recover(self, error: Exception, key: str, failures: int) -> object: ...
    async def sleep(self, seconds: float) -> None: ...
    def retire(self, inbox: Inbox, *, force: bool) -> bool: ...


class Inbox:
    """The listeners of one face at one inbox key, and the reader that serves them."""

    def __init__(self, face: Face, prefix: str, name: str, block_multiplier: int = 1) -> None:
        self.prefix = prefix
        self.key = prefix + name
        self.listeners: dict[int, InboxListener] = {}
        self._face = face
        self._block = face.settings.block * block_multiplier
        self._connection: Connection | None = None
        self._attempts = Attempts(face.settings.give_up_after)
        self._lost = self._stopped = False

    def notify_all(self, message: Message) -> None:
        """Notify every listener: "" asks it to check the state, an error is raised where it waits."""
        for listener in list(self.listeners.values()):
            listener.notify(message)

    def stop(self) -> None:
        """End the reader at once; its listeners get an error. Call it again until the reader has ended: it may be
        connecting just now."""
        self._stopped = True
        if self._connection is not None:
            self._connection.close()

    async def read(self) -> None:
        """Serve the listeners, and return when a block has passed without any. Reconnects to a lost server."""
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
                if not messages and self._face.retire(self, force=False):
                    return
        except Exception as error:
            end = error
        finally:
            _reading.discard(self)
            self._disconnect()
            self._face.retire(self, force=True)
            self.notify_all(end)

    async def _next(self) -> list[bytes]:
        """The messages of one blocked read; [] if none arrived."""
        settings = self._face.settings
        if self._connection is None:
            self._connection = await self._face.connect_to(self.key)
            if self._lost:
                self._lost = False
                self.notify_all("")
        block = self._block * min(_MAX_STRETCH, len(_reading))
        if self._stopped:
            return []
        self._connection.set_reply_timeout(block + settings.reply_timeout)
        (reply,) = await self._connection.exchange(("BLMPOP", block, 1, self.key, "LEFT", "COUNT", _READ_AT_MOST))
        if isinstance(reply, Exception):
            raise reply
        if self._attempts.failures:
            self._attempts = Attempts(settings.give_up_after)
        return reply[1] if reply else []

    async def _failed(self, error: Exception) -> None:
        """Wait before the next attempt. Raises where another attempt cannot help."""
        self._disconnect()
        self._lost = True
        if self._stopped:
            return
        try:
            pause = self._attempts.pause_after(error, self._face.address)
        except ServerUnavailable:
            # Each notified operation checks the state, finds the server unavailable too, and raises that to its caller.
            self.notify_all("")
            self._attempts = Attempts(self._face.settings.give_up_after)
            pause = self._attempts.pause_after(error, self._face.address)
        await self._face.recover(error, self.key, self._attempts.failures)
        await self._face.sleep(pause)

    def _deliver(self, messages: list[bytes]) -> None:
        for message in messages:
            number, _, text = message.decode(errors="replace").partition(" ")
            # A number without a listener belongs to a listener that was closed.
            if number.isdecimal() and (listener := self.listeners.get(int(number))) is not None:
                listener.notify(text)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# The inboxes of this process that are being read.
_reading: set[Inbox] = set()
os.register_at_fork(after_in_child=_reading.clear)


class InboxListener:
    """A listener at an inbox; what both faces share. It is registered from its creation until `close`."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        self.address = f"{name}/{number}"
        self.full_address = f"{inbox.key}/{number}"
        self._inbox = inbox
        self._number = number
        inbox.listeners[number] = self

    def close(self) -> None:
        """Stop listening. Sends nothing to the server."""
        self._inbox.listeners.pop(self._number, None)

    def notify(self, message: Message) -> None:
        raise NotImplementedError


class BlockingListener(InboxListener):
    """A listener on which one thread waits."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        # Before super(), which registers the listener: the reader may notify it at once.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        super().__init__(inbox, name, number)

    def notify(self, message: Message) -> None:
        self._messages.put(message)

    def wait(self, timeout: float | None) -> list[str]:
        """Sleep until a message arrives, and return all that are there; [] after `timeout` seconds."""
        messages: list[Message] = []
        try:
            messages.append(self._messages.get(timeout=timeout if timeout is None else max(0.0, timeout)))
            while True:
                messages.append(self._messages.get_nowait())
        except Empty:
            return _texts(messages)


class AioListener(InboxListener):
    """A listener on which one asyncio task waits."""

    def __init__(self, inbox: Inbox, name: str, number: int) -> None:
        self._messages: list[Message] = []
        self._sleeping: asyncio.Future[None] | None = None
        super().__init__(inbox, name, number)

    def notify(self, message: Message) -> None:
        self._messages.append(message)
        self._wake()

    async def wait(self, timeout: float | None) -> list[str]:
        """Sleep until a message arrives, and return all that are there; [] after `timeout` seconds."""
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._sleeping = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, self._wake)
            try:
                await self._sleeping
            finally:
                self._sleeping = None
                if timer is not None:
                    timer.cancel()
        messages, self._messages = self._messages, []
        return _texts(messages)

    def _wake(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)


def _texts(messages: list[Message]) -> list[str]:
    """The messages. Raises the first error among them."""
    for message in messages:
        if isinstance(message, Exception):
            raise message
    return [message for message in messages if isinstance(message, str)]
