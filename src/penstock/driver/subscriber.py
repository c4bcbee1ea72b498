"""Waiting without polling: each face has one connection per node on which the messages to all its listeners arrive.

    (none) ──listen──▶ subscribed ──10 s without listeners──▶ (none)
                         │    ▲
       connection lost,  │    │  subscribed again, at the node that has the slot now: all listeners of the channel get
       node silent,      ▼    │  "", because messages may have been lost meanwhile
       slot moved      looking for the node, with back-off

A silent connection may lead to a frozen machine, or to a server that has nothing to send. So one of the faces of the
process sends a PING to a node that was silent for 5 s. If the node does not answer within 2 s, the process closes all
its connections to the node, and the operations that wait look for the node again.

The code is written once. On the blocking face a subscriber runs in a thread, where no `await` ever suspends.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from penstock.core.slots import Node, slot
from penstock.driver.face import Connection, Face
from penstock.driver.interruption import Interruption, report
from penstock.driver.listening import FaceListener, Message, WakeChannel, channel_name
from penstock.driver.retrying import MOVED, Attempts, error_code
from penstock.errors import ServerError, ServerRefused, ServerUnavailable

L = TypeVar("L", bound=FaceListener)

log = logging.getLogger("penstock")

# A node has to answer a PING within this fraction of the setting `ping_interval`.
_PING_TIMEOUT = 0.4

# Seconds until a login that was accepted before, and is refused now, is tried again; and seconds between the warnings
# about it.
_REFUSED_PAUSE = 1.0
_WARN_INTERVAL = 60.0

# The channel on which a server reports that it has deleted all keys.
_INVALIDATED = b"__redis__:invalidate"

# A connection without listeners is kept for this many times `ping_interval`.
_KEEP_UNUSED = 2.0


class Subscriptions(Generic[L]):
    """The channels of one face, and a subscriber for each node that serves some of them."""

    def __init__(self, face: Face, name: str, listener_class: type[L]) -> None:
        self._face = face
        self._name = name
        self._listener_class = listener_class
        self._numbers = itertools.count(1)
        self.lock = threading.RLock()
        """Held while channels move from one subscriber to another."""
        self._channels: dict[str, WakeChannel] = {}
        self._subscribers: dict[Node | None, Subscriber] = {}
        # If a server has accepted a connection of the face, it will do so again: a password or a certificate is being
        # replaced.
        self.was_accepted = False

    def listen(self, key: str, *, shared: bool, is_cluster: bool) -> L:
        """Open a listener. Its first message confirms the subscription, unless the channel was subscribed before."""
        name = channel_name(self._name, key, is_cluster=is_cluster)
        with self.lock:
            channel = self._channels.get(name)
            is_new = channel is None
            if channel is None:
                channel = self._channels[name] = WakeChannel(name, key)
            shared_key = key if shared else ""
            number = channel.shared_numbers.get(shared_key) or next(self._numbers)
            listener = self._listener_class(self.remove, channel, number, shared_key)
            if shared:
                channel.shared_numbers[key] = number
            channel.listeners.setdefault(number, []).append(listener)
            channel.was_unused = False
            if is_new:
                try:
                    self.assign(channel)
                except BaseException:
                    self.remove(listener)
                    raise
            return listener

    def remove(self, listener: FaceListener) -> bool:
        """Close a listener. Returns whether no other listener has its address."""
        with self.lock:
            channel = listener.channel
            sharing = channel.listeners.get(listener.number, [])
            if listener in sharing:
                sharing.remove(listener)
            if sharing:
                return False
            channel.listeners.pop(listener.number, None)
            if channel.shared_numbers.get(listener.shared_key) == listener.number:
                del channel.shared_numbers[listener.shared_key]
            return True

    def assign(self, channel: WakeChannel) -> None:
        """Give a channel to the subscriber of its node; if the node is not known, to one that looks for it.

        If no subscriber can be started, the channel is forgotten, and its listeners get the error.
        """
        with self.lock:
            node = self._face.known_node(channel.key)
            subscriber = self._subscribers.get(node)
            if subscriber is not None:
                subscriber.add(channel)
                return
            subscriber = self._subscribers[node] = Subscriber(self, self._face, node)
            subscriber.add(channel)
            try:
                self._face.start_subscriber(subscriber)
            except Exception as error:
                del self._subscribers[node], self._channels[channel.name]
                channel.notify_all(error)
                raise

    def drop(self, channel: WakeChannel) -> bool:
        """Forget a channel, unless it has listeners."""
        with self.lock:
            if channel.listeners:
                return False
            if self._channels.get(channel.name) is channel:
                del self._channels[channel.name]
            return True

    def retire(self, subscriber: Subscriber, *, force: bool = False) -> bool:
        """Forget a subscriber, unless it has channels. `force`: forget it with its channels."""
        with self.lock:
            if subscriber.channels and not force:
                return False
            for name in subscriber.channels:
                self._channels.pop(name, None)
            if self._subscribers.get(subscriber.node) is subscriber:
                del self._subscribers[subscriber.node]
            return True


# The subscribers of this process. A forked child closes its copies of their sockets. Otherwise the server could not see
# that the parent has died, and would continue to send messages to it.
_subscribers: WeakSet[Subscriber] = WeakSet()


def _close_copies() -> None:
    for subscriber in list(_subscribers):
        subscriber.close_copy()
    _subscribers.clear()


os.register_at_fork(after_in_child=_close_copies)


class Subscriber:
    """The connection of one face to one node, on which messages arrive; and the channels that it subscribes to.

    Without a `node`, it finds the node of each channel, hands the channel to the subscriber of that node, and ends.
    """

    def __init__(self, subscriptions: Subscriptions[Any], face: Face, node: Node | None) -> None:
        self.node = node
        self.channels: dict[str, WakeChannel] = {}
        self._subscriptions = subscriptions
        self._face = face
        self._connection: Connection | None = None
        self._attempts = Attempts(face.settings.give_up_after)
        self._interval = face.settings.ping_interval
        self._pinged_at = 0.0
        self._used_at = self._checked_at = time.monotonic()
        self._is_stopped = False
        self._warned_at = -_WARN_INTERVAL
        _subscribers.add(self)

    def add(self, channel: WakeChannel) -> None:
        """Subscribe to a channel; now, or as soon as there is a connection. Called with the lock."""
        self.channels[channel.name] = channel
        channel.is_subscribed = channel.is_leaving = False
        if self._connection is not None:
            self._connection.push(("SSUBSCRIBE", channel.name))

    def stop(self) -> None:
        """End at once; the listeners get an error. Repeat it until `run` has ended: it may be connecting just now."""
        self._is_stopped = True
        if (connection := self._connection) is not None:
            connection.hang_up()

    def close_copy(self) -> None:
        """In a forked child: close the child's copy of the socket."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_copy()

    async def run(self) -> None:
        """Serve the channels until none is left. Reconnects to a lost server."""
        end: Exception = ServerUnavailable("the connection was closed while waiting")
        try:
            while not self._is_stopped and not self._subscriptions.retire(self):
                try:
                    try:
                        await self._serve()
                    except Exception as error:
                        await self._failed(error)
                except Interruption as found:
                    report(found)
                    self._disconnect()
        except Exception as error:
            end = error
        finally:
            self._disconnect()
            self._subscriptions.retire(self, force=True)
            self._notify_all(end)

    async def _serve(self) -> None:
        """Connect if necessary, and handle the next messages."""
        if self._connection is None:
            await self._pass_on_moved()
            if self.node is None or not self.channels:
                return
            await self._connect(self.node)
        assert self._connection is not None
        messages = await self._connection.receive(self._interval * (_PING_TIMEOUT if self._pinged_at else 1))
        if messages:
            self._pinged_at = 0.0
            for message in messages:
                await self._handle(message)
        else:
            self._check_silence()
        if time.monotonic() - self._checked_at > self._interval:
            self._checked_at = time.monotonic()
            self._drop_unused()
            for channel in list(self.channels.values()):
                self._leave_if_moved(channel)
            self._face.close_surplus()

    async def _pass_on_moved(self) -> None:
        """Find the node of each channel, and hand the channels of other nodes to the subscribers of those."""
        for channel in list(self.channels.values()):
            if await self._face.find_node(channel.key) != self.node:
                with self._subscriptions.lock:
                    del self.channels[channel.name]
                    self._subscriptions.assign(channel)

    async def _connect(self, node: Node) -> None:
        connection = await self._face.connect(node)
        try:
            (number,) = await connection.exchange(("CLIENT", "ID"))
            if not isinstance(number, Exception):
                # This connection reads no keys, so the server reports only that it deleted all keys. Some users lack
                # the right to these commands.
                await connection.exchange(("CLIENT", "TRACKING", "ON", "REDIRECT", number))
        except BaseException:  # such as a cancellation: no other code can close this connection yet
            connection.close()
            raise
        with self._subscriptions.lock:
            self._connection, self._pinged_at = connection, 0.0
            connection.push(*(("SSUBSCRIBE", name) for name in self.channels))
            connection.offer(self._take)
        if self._is_stopped:
            connection.close()

    def _take(self, message: Any) -> bool:
        """Deliver a message to its listeners. Returns False for anything else, and whenever `_serve` is due."""
        if isinstance(message, Exception) or time.monotonic() - self._checked_at > self._interval:
            return False
        kind, name, *rest = message
        if kind != b"smessage":
            return False
        self._deliver(name, rest[0])
        return True

    def _deliver(self, name: bytes, text: bytes) -> None:
        """Deliver a message to the listeners of its channel."""
        channel = self.channels.get(name.decode(errors="replace"))
        if channel is not None and text != b"":  # by "" a script asks whether this face is subscribed: `notify.reaches`
            channel.deliver(text)
            self._leave_if_moved(channel)

    async def _handle(self, message: Any) -> None:
        """Handle what arrived: a message, a confirmation, the end of a subscription, or an error."""
        if isinstance(message, Exception):
            if error_code(message) != MOVED:
                raise message
            number = int(str(message).split()[-2])
            moved = [channel for channel in self.channels.values() if slot(channel.key) == number]
            for one in moved:
                await self._face.recover(message, one.key, 0, self.node)
                self._move(one)
            return
        kind, name, *rest = message
        if kind == b"smessage":
            return self._deliver(name, rest[0])
        if name == _INVALIDATED:
            self._notify_all("")
            return
        channel = self.channels.get(name.decode(errors="replace"))
        if channel is None:
            return
        if kind == b"ssubscribe":
            self._attempts = Attempts(self._face.settings.give_up_after)
            with self._subscriptions.lock:
                channel.is_subscribed = True
                channel.notify_all("")
        elif kind == b"sunsubscribe":
            # Either the subscriber asked for it, or the slot has moved to another node.
            if not channel.is_leaving:
                self._face.slot_moved(channel.key)
            self._move(channel)

    def _move(self, channel: WakeChannel) -> None:
        """Subscribe to a channel again, at the node that has its slot now; or forget it, if it has no listeners."""
        with self._subscriptions.lock:
            del self.channels[channel.name]
            channel.is_subscribed = False
            if not self._subscriptions.drop(channel):
                self._subscriptions.assign(channel)

    def _check_silence(self) -> None:
        """Nothing arrived in time: send a PING, or raise TimeoutError if the last one was not answered."""
        assert self._connection is not None
        assert self.node is not None
        if self._pinged_at:
            raise TimeoutError(f"no reply to PING within {self._interval * _PING_TIMEOUT} s")
        is_used = any(channel.listeners for channel in self.channels.values())
        if is_used and self._face.may_ping(self.node):
            self._pinged_at = time.monotonic()
            self._connection.push(("PING",))
            self._face.check_primary(self.node)

    def _drop_unused(self) -> None:
        """End the subscriptions that have had no listeners for a while. If none is left, the connection is closed."""
        with self._subscriptions.lock:
            unused = [channel for channel in self.channels.values() if not channel.listeners]
            if len(unused) < len(self.channels):
                self._used_at = time.monotonic()
            elif time.monotonic() - self._used_at >= _KEEP_UNUSED * self._interval:
                for channel in unused:
                    del self.channels[channel.name]
                    self._subscriptions.drop(channel)
                return
            for channel in unused:
                if channel.was_unused:
                    self._leave(channel)
                channel.was_unused = True

    def _leave_if_moved(self, channel: WakeChannel) -> None:
        """End the subscription if a call has found that another node serves its slot. A replica would not end it."""
        if self._face.known_node(channel.key) not in (self.node, None):
            with self._subscriptions.lock:
                self._leave(channel)

    def _leave(self, channel: WakeChannel) -> None:
        """Ask the server once to end a subscription. Its confirmation completes the end. Called with the lock."""
        if not channel.is_leaving and self._connection is not None:
            channel.is_leaving = True
            self._connection.push(("SUNSUBSCRIBE", channel.name))

    async def _failed(self, error: Exception) -> None:
        """Wait before the next attempt. Raises where another attempt cannot help."""
        self._disconnect()
        if self._is_stopped:
            return
        try:
            pause = self._attempts.pause_after(error, self._face.address)
        except ServerError as final:
            # Each notified operation checks the state, meets the same error, and raises it to its caller.
            self._notify_all("")
            if isinstance(final, ServerUnavailable):
                self._attempts = Attempts(self._face.settings.give_up_after)
                pause = self._attempts.pause_after(error, self._face.address)
            elif isinstance(final, ServerRefused) and self._subscriptions.was_accepted:
                pause = _REFUSED_PAUSE
                self._warn(final)
            else:
                raise
        key = next((channel.key for channel in self.channels.values()), "")
        await self._face.recover(error, key, self._attempts.failures, self.node)
        await self._face.sleep(pause)

    def _warn(self, error: ServerRefused) -> None:
        if time.monotonic() - self._warned_at >= _WARN_INTERVAL:
            self._warned_at = time.monotonic()
            log.warning("wake-ups do not arrive, still trying: %s", error)

    def _disconnect(self) -> None:
        with self._subscriptions.lock:
            connection, self._connection = self._connection, None
            for channel in self.channels.values():
                channel.is_subscribed = channel.is_leaving = False
        if connection is not None:
            connection.close()

    def _notify_all(self, message: Message) -> None:
        for channel in list(self.channels.values()):
            channel.notify_all(message)
