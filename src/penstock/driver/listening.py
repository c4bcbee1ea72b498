"""Listeners: how one waiting operation receives messages from scripts.

An operation opens a listener and passes its address, `channel/number`, to a script. To notify the listener, a script
publishes `number text` on the channel. Each face has one channel, or on a cluster one for each slot in which it waits,
because a script may publish only in the slot of its keys. `subscriber.py` receives the messages.

A message is only a hint to check the state. Scripts write the state first, so a lost or late message costs time, never
a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import Empty, SimpleQueue
from typing import TypeAlias

from penstock.core.keys import wake_channel
from penstock.core.slots import SLOTS, slot

Message: TypeAlias = str | Exception


def channel_name(face: str, key: str, *, is_cluster: bool) -> str:
    """The channel on which a face receives the messages that scripts send from the slot of a key."""
    return wake_channel(face, _slot_tag(slot(key)) if is_cluster else "")


def _slot_tag(number: int) -> str:
    with _making_tags:  # else each of the threads that begin at once would make all the tags
        return _slot_tags()[number]


_making_tags = threading.RLock()


def _make_lock() -> None:
    """A child may be forked while another thread holds the lock, which nobody would release in the child.

    A hook before the fork would not do: this module may be imported by one, and the lock would be released unlocked.
    """
    global _making_tags  # noqa: PLW0603 - there is no other thread in a child
    _making_tags = threading.RLock()


os.register_at_fork(after_in_child=_make_lock)


@cache
def _slot_tags() -> list[str]:
    """A short hash tag for each slot. Takes 25 ms, once."""
    tags: dict[int, str] = {}
    for letters in itertools.product("0123456789abcdefghijklmnopqrstuvwxyz", repeat=4):
        tag = "".join(letters)
        tags.setdefault(slot(tag), tag)
        if len(tags) == SLOTS:
            break
    return [tags[number] for number in range(SLOTS)]


class WakeChannel:
    """One channel of a face, and its listeners by the number in their address. A shared number has several listeners.

    `key`: any key in its slot.
    """

    __slots__ = ("is_leaving", "is_subscribed", "key", "listeners", "name", "shared_numbers", "was_unused")

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.key = key
        self.listeners: dict[int, list[FaceListener]] = {}
        self.shared_numbers: dict[str, int] = {}
        self.is_subscribed = False
        """Whether the server has confirmed the subscription, and the connection was not lost since."""
        self.is_leaving = False
        """Whether the subscription is being cancelled."""
        self.was_unused = False
        """Whether the last check found no listeners."""

    def deliver(self, data: bytes) -> None:
        """Deliver a message to the listeners with its number, or to all (`*`). The listeners may be closed by now."""
        number, _, text = data.decode(errors="replace").partition(" ")
        if number == "*":
            self.notify_all(text)
        elif number.isdecimal():
            for listener in list(self.listeners.get(int(number), ())):
                listener.notify(text)

    def notify_all(self, message: Message) -> None:
        """Notify every listener: "" asks it to check the state, an error is raised where it waits."""
        for listeners in list(self.listeners.values()):
            for listener in list(listeners):
                listener.notify(message)


class FaceListener:
    """The code that the listeners of both faces share. A listener is open from its creation until `close`."""

    def __init__(
        self, remove: Callable[[FaceListener], bool], channel: WakeChannel, number: int, shared_key: str
    ) -> None:
        """`remove`: closes it (see `Subscriptions.remove`)."""
        self.channel = channel
        self.number = number
        self.shared_key = shared_key
        """The key for which several listeners share this address, or "" if it belongs to this listener alone."""
        self.address = f"{channel.name}/{number}"
        self.needs_confirmation = not channel.is_subscribed
        """Whether its first message confirms that the channel is subscribed to."""
        self.beside: FaceListener | None = None
        """A listener that gets an empty message with each message of this one."""
        self._remove = remove

    def close(self) -> bool:
        """Stop listening; sends nothing to the server. Returns whether no other listener has this address."""
        return self._remove(self)

    def notify(self, message: Message) -> None:
        self.put(message)
        if self.beside is not None:
            self.beside.put("")

    def put(self, message: Message) -> None:
        """Add a message to those that the next wait returns."""
        raise NotImplementedError

    def wake(self) -> None:
        self.put("")


class BlockingListener(FaceListener):
    """A listener on which one thread waits."""

    def __init__(
        self, remove: Callable[[FaceListener], bool], channel: WakeChannel, number: int, shared_key: str
    ) -> None:
        self._messages: SimpleQueue[Message] = SimpleQueue()
        super().__init__(remove, channel, number, shared_key)

    def put(self, message: Message) -> None:
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


class AioListener(FaceListener):
    """A listener on which one asyncio task waits."""

    def __init__(
        self, remove: Callable[[FaceListener], bool], channel: WakeChannel, number: int, shared_key: str
    ) -> None:
        self._messages: list[Message] = []
        self._sleeping: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: Callable[[Message], None] | None = None
        super().__init__(remove, channel, number, shared_key)

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._wake()

    def call(self, receive: Callable[[Message], None]) -> None:
        """From now on, call `receive` on the loop with each message, which may be an error. No task may wait then."""
        self._loop, self._call = asyncio.get_running_loop(), receive
        self._wake()

    async def wait(self, timeout: float | None) -> list[str]:
        """Sleep until a message arrives, and return all that are there; [] after `timeout` seconds."""
        if not self._messages:
            loop = self._loop = asyncio.get_running_loop()
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

    def wake(self) -> None:
        self._messages.append("")
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._call is not None:
            messages, self._messages = self._messages, []
            for message in messages:
                self._call(message)
        elif self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)


def _texts(messages: list[Message]) -> list[str]:
    """The messages. Raises the first error among them."""
    for message in messages:
        if isinstance(message, Exception):
            raise message
    return [message for message in messages if isinstance(message, str)]
