"""The blocking face: each call takes an idle connection, or opens one, and waits for the reply on it.

Threads share the driver. `async` in here is a matter of form (see `sending.py`): nothing suspends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.core.operations import Operation, RoundTrip, Wait
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector, packer
from penstock.driver.engine import Engine, complete
from penstock.driver.listening import BlockingListener, Inbox
from penstock.driver.retrying import answered

R = TypeVar("R")
T = TypeVar("T")

# A reader's thread that is being told to stop may be connecting just then.
_STOPPING = 1.0


class BlockingConnection:
    """One connection of the client library."""

    __slots__ = ("_closed", "_connection", "_pack")

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._pack = packer()
        self._closed = False
        connection.connect()
        self.allow(timeout)

    async def exchange(self, *commands: Command) -> list[Any]:
        return self.send(commands)

    def send(self, commands: tuple[Command, ...]) -> list[Any]:
        if self._closed:
            raise ConnectionError("the connection was closed")
        pack = self._pack
        self._connection.send_packed_command([pack(command) for command in commands], check_health=False)
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except Exception as error:
            if answered(error):
                return error
            raise

    def allow(self, seconds: float) -> None:
        # The libraries have no word for it; both call their socket so.
        if (socket := self._connection._sock) is not None:
            socket.settimeout(seconds)

    def close(self) -> None:
        self._closed = True
        self._connection.disconnect()


class BlockingEngine(Engine[BlockingConnection, BlockingListener]):
    """The `BlockingFace` of one process."""

    listener_class = BlockingListener

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self._idle: dict[Node, list[BlockingConnection]] = {}
        self._readers: dict[Inbox, threading.Thread] = {}

    def run(self, work: RoundTrip[R] | Operation[R]) -> R:
        """Do a step or a generator of steps, and answer with its result."""
        if isinstance(work, RoundTrip):
            return complete(self.send(work, self.settings.give_up_after))
        return complete(self.drive(work))

    def close(self) -> None:
        """Stop the readers, close the idle connections. The next use opens new ones."""
        for inbox, thread in list(self._readers.items()):
            until = time.monotonic() + _STOPPING
            while thread.is_alive() and time.monotonic() < until:
                inbox.stop()
                thread.join(0.01)
        for node in list(self._idle):
            self.drop(node)

    # --- what the sender needs ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        idle = self._idle.setdefault(node, [])
        try:
            line = idle.pop()
        except IndexError:
            line = await self.admitted(node)
        try:
            replies = line.send(commands)
        except BaseException as error:
            line.close()
            if isinstance(error, Exception):
                self.drop(node)
            raise
        idle.append(line)
        return replies

    async def open(self, node: Node, *, sentinel: bool = False) -> BlockingConnection:
        # The greeting is a part of the attempt to connect.
        timeout = self.settings.connect_timeout
        connection = self._connector.connection("blocking", node, timeout=timeout, sentinel=sentinel)
        return BlockingConnection(connection, self.settings.reply_timeout)

    def drop(self, node: Node) -> None:
        for line in self._idle.pop(node, ()):
            line.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no loop runs here

    async def wait(self, effect: Wait) -> list[str]:
        assert isinstance(effect.listener, BlockingListener)
        return effect.listener.wait(effect.timeout)

    async def aside(self, work: Callable[[], T], *, to_its_end: bool = False) -> T:
        return work()

    async def to_the_end(self, work: Coroutine[Any, Any, R]) -> R:
        return await work

    def start(self, inbox: Inbox) -> None:
        thread = threading.Thread(target=self._serve, args=(inbox,), name=f"penstock wakes {inbox.key}", daemon=True)
        self._readers[inbox] = thread
        thread.start()

    def _serve(self, inbox: Inbox) -> None:
        try:
            complete(inbox.read())
        finally:
            del self._readers[inbox]
