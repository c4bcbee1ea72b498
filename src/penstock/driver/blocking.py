"""The blocking face: each call takes an idle connection, or opens one, and waits for its reply.

Threads share the engine. Methods are `async def` only to fit the shared code of `engine.py`: none of them suspends.
"""

from __future__ import annotations

import _thread
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from penstock.core.operations import Operation, RoundTrip, Wait
from penstock.core.slots import Node
from penstock.driver.connector import Command, Connector
from penstock.driver.engine import Engine
from penstock.driver.face import Outcome
from penstock.driver.first_attempt import FirstAttempt
from penstock.driver.interruption import Interruption, raise_if_interrupted
from penstock.driver.listening import BlockingListener
from penstock.driver.pooled_connection import BlockingConnection
from penstock.driver.subscriber import Subscriber

R = TypeVar("R")
T = TypeVar("T")

# The idle connections to a node that are kept. Many threads that call at once leave more; those are closed after some
# seconds, while some operation waits.
_MOST_IDLE = 8

# `close` waits this many seconds for each subscriber's thread to end.
_STOP_TIMEOUT = 1.0


def run_to_completion(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: R = done.value
        return answer
    work.close()
    raise RuntimeError("the blocking face has awaited something that suspends")


class BlockingOutcomeQueue:
    """Passes the outcomes of a look-up from the threads that ask to the one that waits."""

    def __init__(self) -> None:
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self.put = self._outcomes.put

    async def get(self, timeout: float | None) -> Outcome | None:
        try:
            return self._outcomes.get(timeout=timeout if timeout is None else max(0.0, timeout))
        except Empty:
            return None
        except Exception as error:
            raise_if_interrupted(error)
            raise


class BlockingUnanswered:
    """A call that was sent on a connection of its own. If it could not be sent at once, `receive` sends it."""

    def __init__(self, engine: BlockingEngine, round_trip: RoundTrip[Any], give_up_after: float) -> None:
        self._engine = engine
        self._round_trip = round_trip
        self._give_up_after = give_up_after
        self._first = engine.first_attempt(round_trip, followed=True)
        self._connection = None if self._first is None else engine._take_idle(self._first.node)

    def send(self) -> None:
        if self._first is not None and self._connection is not None:
            following = self._round_trip.followed_by
            commands = (self._first.command, following) if following else (self._first.command,)
            self._attempt(self._first, self._connection, lambda connection: connection.start(commands))

    async def receive(self) -> Any:
        first, connection = self._first, self._connection
        if first is not None and connection is not None:
            number = 2 if self._round_trip.followed_by else 1
            replies = self._attempt(first, connection, lambda connection: connection.replies(number))
            if self._connection is not None:
                self._connection = None
                self._engine._idle[first.node].append(connection)
                error = next((reply for reply in replies if isinstance(reply, Exception)), None)
                if error is None:
                    reply = tuple(replies) if self._round_trip.followed_by else replies[0]
                    return self._engine.succeeded(self._round_trip, first, reply)
                first.failed(error)
        return await self._engine.send(self._round_trip, self._give_up_after, first)

    def _attempt(
        self, first: FirstAttempt, connection: BlockingConnection, do: Callable[[BlockingConnection], Any]
    ) -> Any:
        try:
            return do(connection)
        except BaseException as error:
            self._connection = None
            self._engine._drop(connection, first.node, error)
            if not isinstance(error, Exception):
                raise
            first.failed(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Uninterrupted(Generic[R]):
    """Work that another thread does, once, while this one waits, because Ctrl-C interrupts only the main thread.

    An interrupt of `run` may come before the other thread has claimed the work, or later. In either case, `run` can be
    called again.
    """

    __slots__ = ("_has_ended", "_is_started", "_outcomes", "_unclaimed")

    def __init__(self, work: Callable[[], R]) -> None:
        self._unclaimed = [work]
        self._outcomes: list[Future[R]] = []
        self._has_ended: SimpleQueue[None] = SimpleQueue()
        self._is_started = False

    def run(self) -> Future[R]:
        """Start the work in another thread, unless it was started, and wait for its end."""
        while not self._outcomes:
            try:
                if not self._is_started:
                    _thread.start_new_thread(copy_context().run, (self._work,))
                    self._is_started = True
                self._has_ended.get()  # an interrupt may lose what it returns
            except KeyboardInterrupt:  # the work ends soon, and then the first interrupt is raised
                continue
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                self._work()
        return self._outcomes[0]

    def _work(self) -> None:
        try:
            work = self._unclaimed.pop()
        except IndexError:  # an interrupt just after the start has started a second thread
            return
        outcome = Future[R]()
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)
        self._outcomes.append(outcome)
        self._has_ended.put(None)


class _Unfinished:
    """An operation that the blocking face drives.

    Ctrl-C raises KeyboardInterrupt between any two lines, also in the driver itself. Then the operation is still at its
    last effect, and cleans up from there. `__del__` is for an interrupt at the start of the clean-up.
    """

    operation: Operation[Any] | None = None  # an interrupt may come before `__init__`
    _clean_up: _Uninterrupted[None] | None = None

    def __init__(self, engine: BlockingEngine, operation: Operation[Any]) -> None:
        self._engine = engine
        self.operation = operation

    def clean_up(self) -> None:
        operation = self.operation
        if operation is None:
            return
        # Once the clean-up has begun, the operation may be at one of its effects.
        if self._clean_up is None and inspect.getgeneratorstate(operation) == inspect.GEN_SUSPENDED:
            cleanup = partial(self._engine.drive, operation, KeyboardInterrupt())
            self._clean_up = _Uninterrupted(lambda: run_to_completion(cleanup()))
        if self._clean_up is not None:
            self._clean_up.run()
        self.operation = None

    def __del__(self) -> None:
        if self.operation is None:
            return
        try:
            self.clean_up()
        finally:
            self.clean_up()


class BlockingEngine(Engine[BlockingConnection, BlockingListener]):
    """The `BlockingFace` of one process."""

    listener_class = BlockingListener

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        # A list stays the same: a thread could add a connection to one that another thread has replaced.
        self._idle: defaultdict[Node, list[BlockingConnection]] = defaultdict(list)
        self._subscriber_threads: dict[Subscriber, threading.Thread] = {}
        # All connections that are open or being opened.
        self._open: dict[Node, WeakValueDictionary[int, BlockingConnection]] = {}
        self._running: dict[object, Future[None]] = {}
        self._running_lock = threading.Lock()

    def run(self, work: RoundTrip[R] | Operation[R]) -> R:
        """Run one script call or an operation, and return its result."""
        try:
            return self._call(work) if isinstance(work, RoundTrip) else self._run_operation(work)
        except Interruption as stop:
            raise stop.error  # noqa: B904 - what the signal handler raised, as if nothing had been between

    def _run_operation(self, operation: Operation[R]) -> R:
        """Run an operation. Most consist of script calls only, and need none of the coroutines of `drive`."""
        unfinished = _Unfinished(self, operation)
        try:
            effect = next(operation)
            while isinstance(effect, RoundTrip):
                try:
                    answer = self._call(effect)
                except Exception as error:
                    return run_to_completion(self.drive(operation, error))
                effect = operation.send(answer)
            return run_to_completion(self.drive(operation, effect=effect))
        except StopIteration as done:
            unfinished.operation = None
            result: R = done.value
            return result
        finally:
            if unfinished.operation is not None:
                unfinished.clean_up()

    def _call(self, round_trip: RoundTrip[R], give_up_after: float | None = None) -> R:
        first = FirstAttempt.of(round_trip, self._connector.route, self._idempotency_keys)
        if first is not None and (connection := self._take_idle(first.node)) is not None:
            try:
                reply = connection.call(first.command)
            except BaseException as error:
                self._drop(connection, first.node, error)
                if not isinstance(error, Exception):
                    raise
                reply = error
            else:
                self._idle[first.node].append(connection)
            if first.answered(round_trip, reply):
                return self.succeeded(round_trip, first, reply)
        if give_up_after is None:
            give_up_after = self.settings.give_up_after
        return run_to_completion(self.send(round_trip, give_up_after, first))

    async def call(self, round_trip: RoundTrip[R], give_up_after: float) -> R:
        return self._call(round_trip, give_up_after)

    def close(self) -> None:
        """Stop the subscribers and close the idle connections. The next use opens new ones."""
        for subscriber, thread in list(self._subscriber_threads.items()):
            until = time.monotonic() + _STOP_TIMEOUT
            while thread.is_alive() and time.monotonic() < until:
                subscriber.stop()
                thread.join(0.01)
        for node in list(self._idle):
            self.close_connections(node)

    # --- what the engine needs ---

    async def exchange(self, node: Node, *commands: Command, own_connection: bool = False) -> list[Any]:
        return self._exchange_on(self._take_idle(node) or await self.connect(node), node, commands)

    async def exchange_each(self, nodes: Sequence[Node], command: Command) -> dict[Node, Any]:
        replies: dict[Node, Any] = {}
        sent: dict[Node, BlockingConnection] = {}
        for node in nodes:
            try:
                connection = sent[node] = self._take_idle(node) or await self.connect(node)
                connection.start((command,))
            except Exception as error:
                replies[node] = error
        for node, connection in sent.items():
            try:
                if node not in replies:
                    replies[node] = connection.replies(1)[0]
                    self._idle[node].append(connection)
            except Exception as error:
                replies[node] = error
            finally:
                if isinstance(replies.get(node), Exception):
                    self._drop(connection, node, replies[node])
        return replies

    def _take_idle(self, node: Node) -> BlockingConnection | None:
        idle = self._idle.get(node)
        try:
            return idle.pop() if idle else None
        except IndexError:  # another thread has taken the last one
            return None

    def _exchange_on(self, connection: BlockingConnection, node: Node, commands: tuple[Command, ...]) -> list[Any]:
        try:
            replies = connection.send(commands)
        except BaseException as error:
            self._drop(connection, node, error)
            raise
        self._idle[node].append(connection)
        return replies

    def _drop(self, connection: BlockingConnection, node: Node, error: BaseException) -> None:
        # A hang-up has closed the idle connections already: those that are there now are new, and stay.
        if isinstance(error, Exception) and not connection._closed:
            self.close_connections(node)
        connection.close()

    async def send_ahead(self, round_trip: RoundTrip[Any], give_up_after: float) -> BlockingUnanswered:
        sent = BlockingUnanswered(self, round_trip, give_up_after)
        sent.send()
        return sent

    async def open_connection(self, node: Node, *, sentinel: bool = False) -> BlockingConnection:
        # The library logs in while it connects, so connect_timeout is the timeout for those replies too.
        timeout = self.settings.connect_timeout
        connection = BlockingConnection(
            self._connector.connection("blocking", node, timeout=timeout, sentinel=sentinel)
        )
        self._open.setdefault(node, WeakValueDictionary())[id(connection)] = connection
        connection.open(self.settings.reply_timeout)
        return connection

    def close_connections(self, node: Node) -> None:
        while (connection := self._take_idle(node)) is not None:
            connection.close()

    def close_surplus(self) -> None:
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # other threads take connections meanwhile
                while len(idle) > _MOST_IDLE:
                    idle.pop(0).close()

    def hang_up(self, node: Node) -> None:
        self.close_connections(node)
        for reference in self._open.get(node, WeakValueDictionary()).valuerefs():
            if (connection := reference()) is not None:
                connection.hang_up()

    def close_copies(self) -> None:
        for opened in list(self._open.values()):
            for connection in list(opened.values()):
                connection.close_copy()

    def outcome_queue(self) -> BlockingOutcomeQueue:
        return BlockingOutcomeQueue()

    def start(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        try:
            threading.Thread(
                target=run_to_completion, args=(work,), name="penstock in the background", daemon=True
            ).start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            run_to_completion(work)
        return lambda: None

    async def share(self, what: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._running_lock:
            running = self._running.get(what)
            mine = Future[None]()
            if running is None:
                self._running[what] = mine
        if running is not None:
            return running.result()
        try:
            await work()
        except BaseException as error:
            mine.set_exception(error if isinstance(error, Exception) else ConnectionError("interrupted"))
            raise
        else:
            mine.set_result(None)
        finally:
            del self._running[what]

    async def gather(self, works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        try:
            return [await work for work in works]
        finally:
            for work in works:
                work.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no loop runs here

    async def wait(self, effect: Wait) -> list[str]:
        assert isinstance(effect.listener, BlockingListener)
        return effect.listener.wait(effect.timeout)

    async def run_in_thread(self, work: Callable[[], T], *, to_completion: bool = False) -> T:
        return work()

    async def run_uncancelled(self, work: Coroutine[Any, Any, R]) -> R:
        if threading.current_thread() is not threading.main_thread():
            return await work
        return _Uninterrupted(partial(run_to_completion, work)).run().result()

    def start_subscriber(self, subscriber: Subscriber) -> None:
        name = f"penstock listens to {subscriber.node}"
        thread = threading.Thread(target=self._subscribe, args=(subscriber,), name=name, daemon=True)
        self._subscriber_threads[subscriber] = thread
        try:
            thread.start()
        except BaseException:  # no more threads
            del self._subscriber_threads[subscriber]
            raise

    def _subscribe(self, subscriber: Subscriber) -> None:
        try:
            run_to_completion(subscriber.run())
        finally:
            del self._subscriber_threads[subscriber]
