"""The asyncio face: all tasks of an event loop share one connection to each node.

Commands are sent one after another without waiting for replies, which arrive in the same order. So a thousand tasks
do not need a thousand connections, and the reply to a cancelled task's command is simply dropped. A command that blocks
its connection (a blocked read, WAIT or WAITAOF) gets a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from penstock.core.operations import Operation, RoundTrip, Wait
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector, packer
from penstock.driver.engine import Engine
from penstock.driver.library import copied_socket, stream_writer
from penstock.driver.listening import AioListener
from penstock.driver.lookup import Outcome
from penstock.driver.retrying import SILENT, UNANSWERED, error_code, is_error_reply, is_of_asyncio
from penstock.driver.subscriber import Subscriber

R = TypeVar("R")
T = TypeVar("T")

# While the event loop is blocked, replies may arrive, but no task reads them. So an overdue reply counts as lost only
# after this many more seconds, in which the reader may find it.
_LAST_CHANCE = 0.1

# A command of at most this many bytes is written to an empty buffer without waiting until the socket took it.
_SENT_AT_ONCE = 65_536


class AioConnection:
    """One connection of the client library, and the task that reads it."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._pack = packer()
        self._loop = asyncio.get_running_loop()
        # For each reply that has not arrived, in the order of the commands: its future, and when it is overdue.
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._sending = False
        # Replies that no command waits for: those to `push`, and messages. `_received` is set when some arrive.
        self._pushed: list[Any] = []
        self._received = asyncio.Event()
        self._push_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening: asyncio.Timeout | None = None
        self._heard_at = 0.0
        self.closed = False

    async def open(self, timeout: float) -> asyncio.Task[None]:
        """Connect within `timeout` seconds. Returns the task that reads the replies."""
        if self.closed:
            raise ConnectionError("the connection was closed")
        timer = self._loop.call_later(timeout, self._opening_overdue, self._loop.time() + timeout)
        try:
            async with asyncio.timeout(None) as self._opening:
                await self._connection.connect()
                self._reader = asyncio.create_task(self._read())
                # Let the reader start. A task that is cancelled before it has started would never disconnect.
                await asyncio.sleep(0)
        except BaseException as error:
            self.close()
            await self._disconnect()
            if is_of_asyncio(error):
                raise ConnectionError(_reason(error)) from error
            raise
        finally:
            timer.cancel()
            self._opening = None
        return self._reader

    def _opening_overdue(self, due: float) -> None:
        # If the loop was blocked until now, the socket may hold replies of the server that were not read yet.
        now = self._loop.time()
        self._end_opening(now + max(_LAST_CHANCE, now - due))

    def _end_opening(self, at: float) -> None:
        if self._opening is not None:
            with contextlib.suppress(RuntimeError):  # it is ending already
                self._opening.reschedule(at)

    async def exchange(self, *commands: Command) -> list[Any]:
        if self.closed:
            raise ConnectionError("the connection was closed")
        # Pack first, because it may raise: each future in `_pending` must belong to a command that is sent.
        packed = [self._pack(command) for command in commands]
        until = self._loop.time() + self._timeout
        replies = [self._loop.create_future() for _ in commands]
        self._pending.extend((reply, until) for reply in replies)
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._check_overdue)
        self._unsent += packed
        if not self._sending:
            await self._send()
        return [_raise_if_lost(await reply) for reply in replies]

    def send_now(self, command: Command) -> asyncio.Future[Any] | None:
        """Send a command without waiting for the socket. Returns the future of its reply; an error is its result.

        None if the command would have to wait: other commands are unsent, or it is large.
        """
        if self.closed or self._sending or self._unsent:
            return None
        packed = self._pack(command)
        writer = self._open_writer()
        if writer is None or len(packed) > _SENT_AT_ONCE or writer.transport.get_write_buffer_size():
            return None
        until = self._loop.time() + self._timeout
        reply = self._loop.create_future()
        self._pending.append((reply, until))
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._check_overdue)
        try:
            writer.write(packed)
        except Exception as error:
            self._fail(_reason(error))
        return reply

    def _open_writer(self) -> asyncio.StreamWriter | None:
        """The writer to the server; None if the connection is lost. The reader may not have seen that yet."""
        writer = stream_writer(self._connection)
        if writer is None or writer.is_closing():
            self._fail("the connection was lost")
            return None
        return writer

    def push(self, *commands: Command) -> None:
        """Send commands whose replies are returned by `receive`."""
        self._unsent += [self._pack(command) for command in commands]
        if not self._sending and (self._push_task is None or self._push_task.done()):
            self._push_task = asyncio.create_task(self._send_pushed())

    async def _send_pushed(self) -> None:
        with contextlib.suppress(Exception):  # if the connection has failed, `receive` raises
            await self._send()

    async def receive(self, timeout: float) -> list[Any]:
        """The replies to `push` and the messages that have arrived; waits for the first one. [] after `timeout`."""
        until = self._loop.time() + timeout
        while not self._pushed:
            if self.closed:
                raise ConnectionError("the connection was closed")
            self._received.clear()
            left = until - self._loop.time()
            timer = self._loop.call_later(max(left, _LAST_CHANCE), self._received.set)
            try:
                await self._received.wait()
            finally:
                timer.cancel()
            if left <= 0:
                break
        pushed, self._pushed = self._pushed, []
        return pushed

    async def _send(self) -> None:
        """Send what is unsent, including what other tasks add while this one waits for the socket.

        Only one task sends at a time. Whatever the transport raises means that the connection is lost.
        """
        self._sending = True
        try:
            while self._unsent and not self.closed:
                packed, self._unsent = self._unsent, []
                if (writer := self._open_writer()) is None:
                    raise ConnectionError("the connection was lost")
                writer.write(b"".join(packed))
                await writer.drain()
        except BaseException as error:
            self._fail(_reason(error))
            if isinstance(error, Exception):
                raise ConnectionError(_reason(error)) from error
            raise
        finally:
            self._sending = False

    def set_reply_timeout(self, seconds: float) -> None:
        self._timeout = seconds

    def hang_up(self) -> None:
        """Close; the task that uses the connection gets an error."""
        self.close()

    def close(self) -> None:
        self._end_opening(0.0)
        self._fail("the connection was closed")

    def close_copy(self) -> None:
        if (copy := copied_socket(self._connection)) is not None:
            copy.close()

    async def _read(self) -> None:
        end: Exception = ConnectionError("the connection was closed")
        try:
            read = self._connection.read_response
            while True:
                try:
                    reply = await read()
                except Exception as error:
                    if not is_error_reply(error):
                        raise
                    reply = error
                self._heard_at = self._loop.time()
                if not self._pending:
                    self._pushed.append(reply)
                    self._received.set()
                    continue
                future, _ = self._pending.popleft()
                if not future.done():
                    future.set_result(reply)
        except Exception as error:
            # After some error replies, such as NOAUTH, the libraries close the connection. The reply explains more than
            # the lost connection.
            code = error_code(error)
            end = error if code not in {"", *UNANSWERED} else _lost(_reason(error), silent=code == SILENT)
        finally:
            self._fail(end)
            await self._disconnect()

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):  # of a transport that is lost
            await self._connection.disconnect(nowait=True)

    def _check_overdue(self, found_at: float | None = None) -> None:
        """Fail if the oldest command's reply is overdue; otherwise set the timer for the command that is oldest now.

        One timer serves all commands. `found_at`: when the last check found an overdue reply. The reader may have been
        kept from reading it until then, so the connection fails only if nothing was read since.
        """
        self._timer = None
        if not self._pending:
            return
        now, until = self._loop.time(), self._pending[0][1]
        if until > now:
            self._timer = self._loop.call_at(until, self._check_overdue)
        elif found_at is None or self._heard_at > found_at:
            self._timer = self._loop.call_at(now + _LAST_CHANCE, self._check_overdue, now)
        else:
            self._fail(_lost(f"no reply within {self._timeout} s", silent=now - self._heard_at >= self._timeout))

    def _fail(self, end: Exception | str) -> None:
        """Close the connection, and give each pending reply this error, so that its command is sent again."""
        self.closed = True
        self._received.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        while self._pending:
            future, _ = self._pending.popleft()
            if not future.done():
                future.set_result(ConnectionError(end) if isinstance(end, str) else end)


def _lost(reason: str, *, silent: bool) -> Exception:
    return TimeoutError(reason) if silent else ConnectionError(reason)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _raise_if_lost(reply: Any) -> Any:
    # The error is the future's result, not its exception: asyncio logs an exception that no task retrieves.
    if isinstance(reply, ConnectionError | TimeoutError):
        raise reply
    return reply


class AioOutcomeQueue:
    """Passes the outcomes of a look-up from the tasks that ask to the one that waits."""

    def __init__(self) -> None:
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.put = self._outcomes.put_nowait

    async def get(self, timeout: float | None) -> Outcome | None:
        try:
            async with asyncio.timeout(timeout):
                return await self._outcomes.get()
        except TimeoutError:
            return None


class AioUnanswered:
    """A call that runs in a task of its own."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # `receive` may never be called

    async def receive(self) -> Any:
        return await self._task

    def close(self) -> None:
        self._task.cancel()


class AioEngine(Engine[AioConnection, AioListener]):
    """The `AioFace` of one event loop."""

    listener_class = AioListener

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self._shared: dict[Node, AioConnection] = {}
        self._opening: dict[Node, asyncio.Task[AioConnection]] = {}
        # Idle connections for commands that need one of their own.
        self._idle: dict[Node, list[AioConnection]] = {}
        self._subscriber_tasks: dict[Subscriber, asyncio.Task[None]] = {}
        self._connection_readers: set[asyncio.Task[None]] = set()
        # All connections that are open or being opened.
        self._open: dict[Node, weakref.WeakSet[AioConnection]] = {}
        self._running: dict[object, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._loop = weakref.ref(asyncio.get_running_loop())

    async def run(self, work: RoundTrip[R] | Operation[R]) -> R:
        """Run one script call or an operation, and return its result."""
        if not isinstance(work, RoundTrip):
            return await self.drive(work)
        first = self.first_attempt(work)
        if first is not None and (connection := self._shared.get(first.node)) is not None:
            future = connection.send_now(first.command)
            if future is not None:
                reply = await future
                if first.answered(work, reply):
                    return self.succeeded(work, first, reply)
        return await self.send(work, self.settings.give_up_after, first)

    async def aclose(self) -> None:
        """Stop the subscribers and close the connections. The next use opens new ones."""
        for subscriber, task in self._subscriber_tasks.items():
            subscriber.stop()
            task.cancel()
        for task in self._background:
            task.cancel()
        await asyncio.gather(
            *self._subscriber_tasks.values(), *self._opening.values(), *self._background, return_exceptions=True
        )
        for node in {*self._shared, *self._idle}:
            self.close_connections(node)
        await asyncio.gather(*self._connection_readers, return_exceptions=True)

    # --- what the engine needs ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        if own_connection:
            return await self._exchange_on_own_connection(node, commands)
        connection = self._shared.get(node)
        if connection is None or connection.closed:
            connection = await asyncio.shield(self._open_once(node))
        return await connection.exchange(*commands)

    async def exchange_each(self, nodes: Sequence[Node], command: Command) -> dict[Node, Any]:
        sent: dict[Node, asyncio.Future[Any]] = {}
        for node in nodes:
            connection = self._shared.get(node)
            reply = None if connection is None else connection.send_now(command)
            sent[node] = asyncio.create_task(self._exchange_one(node, command)) if reply is None else reply
        return {node: await reply for node, reply in sent.items()}

    async def _exchange_one(self, node: Node, command: Command) -> Any:
        try:
            return (await self.exchange(node, command))[0]
        except Exception as error:
            return error

    def _open_once(self, node: Node) -> asyncio.Task[AioConnection]:
        """The task that opens the shared connection. All callers share it, and cancelling one does not cancel it."""
        opening = self._opening.get(node)
        if opening is None or opening.done():  # its callbacks run a little later
            opening = self._opening[node] = asyncio.create_task(self._open_shared(node))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may be gone
            opening.add_done_callback(lambda done: self._opening.get(node) is done and self._opening.pop(node))
        return opening

    async def _open_shared(self, node: Node) -> AioConnection:
        connection = self._shared[node] = await self.connect(node)
        return connection

    async def _exchange_on_own_connection(self, node: Node, commands: tuple[Command, ...]) -> list[Any]:
        idle = self._idle[node] = [connection for connection in self._idle.get(node, ()) if not connection.closed]
        connection = idle.pop() if idle else await self.connect(node)
        try:
            replies = await connection.exchange(*commands)
        except BaseException:
            connection.close()
            raise
        idle.append(connection)
        return replies

    async def send_ahead(self, round_trip: RoundTrip[Any], give_up_after: float) -> AioUnanswered:
        sent = AioUnanswered(asyncio.create_task(self.send(round_trip, give_up_after)))
        try:
            await asyncio.sleep(0)  # the task writes the call
            await asyncio.sleep(0)  # uvloop sends it at the end of the round in which it was written
        except BaseException:
            sent.close()
            raise
        return sent

    async def open_connection(self, node: Node, *, sentinel: bool = False) -> AioConnection:
        # The library's own timeout would cost a task for each command, so AioConnection checks the time instead.
        made = self._connector.connection("aio", node, timeout=None, sentinel=sentinel)
        connection = AioConnection(made, self.settings.reply_timeout)
        self._open.setdefault(node, weakref.WeakSet()).add(connection)
        reader = await connection.open(self.settings.connect_timeout)
        self._connection_readers.add(reader)
        reader.add_done_callback(self._connection_readers.discard)
        return connection

    def close_connections(self, node: Node) -> None:
        for connection in (*self._idle.pop(node, ()), self._shared.pop(node, None)):
            if connection is not None:
                connection.close()

    def hang_up(self, node: Node) -> None:
        loop = self._loop()
        if loop is asyncio._get_running_loop():
            self.close_connections(node)
            for connection in self._open.pop(node, ()):
                connection.close()
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.hang_up, node)

    def outcome_queue(self) -> AioOutcomeQueue:
        return AioOutcomeQueue()

    def start(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task.cancel

    async def share(self, what: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        running = self._running.get(what)
        if running is None or running.done():  # its callbacks run a little later
            running = self._running[what] = asyncio.create_task(work())
            self._background.add(running)
            running.add_done_callback(self._background.discard)
            running.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may be gone
            running.add_done_callback(lambda done: self._running.get(what) is done and self._running.pop(what))
        try:
            await asyncio.shield(running)  # cancelling one caller does not cancel it for the others
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if running.cancelled() and task is not None and not task.cancelling():
                raise ConnectionError("the connection was closed") from None
            raise

    async def gather(self, works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        if len(works) == 1:
            return [await works[0]]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, effect: Wait) -> list[str]:
        assert isinstance(effect.listener, AioListener)
        return await effect.listener.wait(effect.timeout)

    async def run_in_thread(self, work: Callable[[], T], *, to_completion: bool = False) -> T:
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if to_completion:
                await self.run_uncancelled(asyncio.wait([task]))
            raise

    async def run_uncancelled(self, work: Coroutine[Any, Any, R]) -> R:
        # In a task of its own, because a cancelled scope of anyio cancels every further await of the current task.
        task = asyncio.ensure_future(work)
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        return task.result()

    def start_subscriber(self, subscriber: Subscriber) -> None:
        task = self._subscriber_tasks[subscriber] = asyncio.create_task(subscriber.run())
        task.add_done_callback(lambda _: self._subscriber_tasks.pop(subscriber))
