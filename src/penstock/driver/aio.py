"""The asyncio face: all tasks of a loop share one connection to each node.

Commands are written behind one another and their replies come in the same order, so a thousand tasks need no
thousand connections, and a cancelled one only leaves a reply behind that nobody takes. What blocks its connection
(a blocked read, a confirmed write) has one to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.core.operations import Operation, RoundTrip, Wait
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector, packer
from penstock.driver.engine import Engine
from penstock.driver.listening import AioListener, Inbox
from penstock.driver.retrying import answered

R = TypeVar("R")
T = TypeVar("T")


class AioConnection:
    """One connection of the client library, and the task that reads it."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._pack = packer()
        self._loop = asyncio.get_running_loop()
        # Who waits for a reply, and until when; in the order of the commands.
        self._awaited: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._sending = False
        self._alarm: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self.closed = False

    async def open(self, timeout: float) -> asyncio.Task[None]:
        try:
            async with asyncio.timeout(timeout):
                await self._connection.connect()
                self._reader = asyncio.create_task(self._read())
                await asyncio.sleep(0)  # a reader that is cancelled before it began would not disconnect
        except BaseException:
            self.close()
            await self._connection.disconnect(nowait=True)
            raise
        return self._reader

    async def exchange(self, *commands: Command) -> list[Any]:
        if self.closed:
            raise ConnectionError("the connection was closed")
        # First, for it may raise: each future in the line must stand for a command that is sent.
        packed = [self._pack(command) for command in commands]
        until = self._loop.time() + self._timeout
        replies = [self._loop.create_future() for _ in commands]
        self._awaited.extend((reply, until) for reply in replies)
        if self._alarm is None:
            self._alarm = self._loop.call_at(until, self._look_at_the_clock)
        self._unsent += packed
        if not self._sending:
            await self._send()
        return [_told(await reply) for reply in replies]

    async def _send(self) -> None:
        """One task sends, and sends along what others bring while it waits for the socket: the library would open
        the connection anew for a second one that comes just when it broke."""
        self._sending = True
        try:
            while self._unsent:
                packed, self._unsent = self._unsent, []
                await self._connection.send_packed_command(packed, check_health=False)
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        finally:
            self._sending = False

    def allow(self, seconds: float) -> None:
        self._timeout = seconds

    def close(self) -> None:
        self._fail("the connection was closed")

    async def _read(self) -> None:
        why = "the connection was closed"
        try:
            read = self._connection.read_response
            while True:
                try:
                    reply = await read()
                except Exception as error:
                    if not answered(error):
                        raise
                    reply = error
                future, _ = self._awaited.popleft()
                if not future.done():
                    future.set_result(reply)
        except Exception as error:
            why = str(error) or type(error).__name__
        finally:
            self._fail(why)
            await self._connection.disconnect(nowait=True)

    def _look_at_the_clock(self) -> None:
        """One alarm for all: set for the oldest command, and when it rings for the one that is the oldest then."""
        self._alarm = None
        if not self._awaited:
            return
        until = self._awaited[0][1]
        if until <= self._loop.time():
            self._fail(f"no reply within {self._timeout} s")
        else:
            self._alarm = self._loop.call_at(until, self._look_at_the_clock)

    def _fail(self, why: str) -> None:
        """The end of this line: whoever waits for a reply is told to send again elsewhere."""
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        while self._awaited:
            future, _ = self._awaited.popleft()
            if not future.done():
                future.set_result(ConnectionError(why))


def _told(reply: Any) -> Any:
    # No exception of the future itself: nobody may be there to take it, and asyncio would complain.
    if isinstance(reply, ConnectionError):
        raise reply
    return reply


class AioEngine(Engine[AioConnection, AioListener]):
    """The `AioFace` of one event loop."""

    listener_class = AioListener

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self._lines: dict[Node, AioConnection] = {}
        self._opening: dict[Node, asyncio.Task[AioConnection]] = {}
        self._spare: dict[Node, list[AioConnection]] = {}
        self._inbox_readers: dict[Inbox, asyncio.Task[None]] = {}
        self._line_readers: set[asyncio.Task[None]] = set()

    async def run(self, work: RoundTrip[R] | Operation[R]) -> R:
        """Do a step or a generator of steps, and answer with its result."""
        if isinstance(work, RoundTrip):
            return await self.send(work, self.settings.give_up_after)
        return await self.drive(work)

    async def aclose(self) -> None:
        """Stop the readers and close the connections. The next use opens new ones."""
        for inbox, reader in self._inbox_readers.items():
            inbox.stop()
            reader.cancel()
        await asyncio.gather(*self._inbox_readers.values(), *self._opening.values(), return_exceptions=True)
        for node in {*self._lines, *self._spare}:
            self.drop(node)
        await asyncio.gather(*self._line_readers, return_exceptions=True)

    # --- what the sender needs ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        if own_connection:
            return await self._exchange_on_own(node, commands)
        line = self._lines.get(node)
        if line is None or line.closed:
            line = await asyncio.shield(self._opened(node))
        return await line.exchange(*commands)

    def _opened(self, node: Node) -> asyncio.Task[AioConnection]:
        """The one attempt to open a shared line, however many wait for it, and whoever of them gives up."""
        opening = self._opening.get(node)
        if opening is None:
            opening = self._opening[node] = asyncio.create_task(self._open_shared(node))
        return opening

    async def _open_shared(self, node: Node) -> AioConnection:
        try:
            line = self._lines[node] = await self.admitted(node)
            return line
        finally:
            del self._opening[node]

    async def _exchange_on_own(self, node: Node, commands: tuple[Command, ...]) -> list[Any]:
        spare = self._spare[node] = [line for line in self._spare.get(node, ()) if not line.closed]
        line = spare.pop() if spare else await self.admitted(node)
        try:
            replies = await line.exchange(*commands)
        except BaseException:
            line.close()
            raise
        spare.append(line)
        return replies

    async def open(self, node: Node, *, sentinel: bool = False) -> AioConnection:
        # The line has a clock of its own: the library's costs a task for each command.
        connection = self._connector.connection("aio", node, timeout=None, sentinel=sentinel)
        line = AioConnection(connection, self.settings.reply_timeout)
        reader = await line.open(self.settings.connect_timeout)
        self._line_readers.add(reader)
        reader.add_done_callback(self._line_readers.discard)
        return line

    def drop(self, node: Node) -> None:
        for line in (*self._spare.pop(node, ()), self._lines.pop(node, None)):
            if line is not None:
                line.close()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, effect: Wait) -> list[str]:
        assert isinstance(effect.listener, AioListener)
        return await effect.listener.wait(effect.timeout)

    async def aside(self, work: Callable[[], T], *, to_its_end: bool = False) -> T:
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if to_its_end:
                await self.to_the_end(asyncio.wait([task]))
            raise

    async def to_the_end(self, work: Coroutine[Any, Any, R]) -> R:
        # In a task of its own, because a cancelled scope of anyio cancels each further await of this one.
        task = asyncio.ensure_future(work)
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        return task.result()

    def start(self, inbox: Inbox) -> None:
        reader = self._inbox_readers[inbox] = asyncio.create_task(inbox.read())
        reader.add_done_callback(lambda _: self._inbox_readers.pop(inbox))
