"""The asyncio face: all tasks of an event loop share one connection to each node.

Commands are sent one after another without waiting for replies, which arrive in the same order. So a thousand tasks
do not need a thousand connections, and the reply to a cancelled task's command is simply dropped. A command that blocks
its connection (a blocked read, WAIT or WAITAOF) gets a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from penstock.core.idempotency import IdempotencyKey
from penstock.core.operations import Operation, RoundTrip, Wait
from penstock.core.slots import Node
from penstock.driver.aio_connection import AioConnection
from penstock.driver.connector import Command, Connector
from penstock.driver.engine import Engine
from penstock.driver.face import Outcome
from penstock.driver.first_attempt import FirstAttempt
from penstock.driver.grouping import Groups
from penstock.driver.interruption import Interruption, raise_if_interrupted
from penstock.driver.listening import AioListener
from penstock.driver.subscriber import Subscriber

R = TypeVar("R")
T = TypeVar("T")


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
        self.loop = weakref.ref(asyncio.get_running_loop())
        self._groups = Groups(self)

    async def run(self, work: RoundTrip[R] | Operation[R]) -> R:
        """Run one script call or an operation, and return its result."""
        try:
            if not isinstance(work, RoundTrip):
                return await self.drive(work)
            return await self.call(work, self.settings.give_up_after)
        except Interruption as stop:
            raise stop.error  # noqa: B904 - what the signal handler raised, as if nothing had been between

    async def call(self, round_trip: RoundTrip[R], give_up_after: float) -> R:
        if round_trip.group_from:
            return await self._groups.call(round_trip, give_up_after)
        first = self.first_attempt(round_trip)
        if first is not None and (future := self.send_now(first)) is not None:
            reply = await future
            if first.answered(round_trip, reply):
                return self.succeeded(round_trip, first, reply)
        return await self.send(round_trip, give_up_after, first)

    def send_now(self, first: FirstAttempt, *, may_wait: bool = False) -> asyncio.Future[Any] | None:
        """Send a first attempt, if the connection is open. See `AioConnection.send_now`."""
        connection = self._shared.get(first.node)
        return None if connection is None else connection.send_now(first.command, may_wait=may_wait)

    def take_key(self, calls: int) -> IdempotencyKey:
        """A key with the last of as many consecutive numbers as there are calls. Release it when they are answered."""
        key = self._idempotency_keys.take()
        key.number += calls - 1
        return key

    def release_key(self, key: IdempotencyKey) -> None:
        self._idempotency_keys.release(key)

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
            raise_if_interrupted(error)
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
        connection = self._take_idle(node) or await self.connect(node)
        try:
            replies = await connection.exchange(*commands)
        except BaseException:
            connection.close()
            raise
        self._idle.setdefault(node, []).append(connection)
        return replies

    def _take_idle(self, node: Node) -> AioConnection | None:
        idle = self._idle.get(node, [])
        while idle:
            if not (connection := idle.pop()).closed:
                return connection
        return None

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
        loop = self.loop()
        if loop is asyncio._get_running_loop():
            self.close_connections(node)
            for connection in self._open.pop(node, ()):
                connection.close()
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.hang_up, node)

    def close_copies(self) -> None:
        for opened in list(self._open.values()):
            for connection in list(opened):
                connection.close_copy()

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
