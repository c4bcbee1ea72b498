"""Learns from the Sentinels that a replica takes over, in one thread per process, even if no operation waits.

The thread runs an event loop of its own. It subscribes to the announcements of every Sentinel, because the one that
leads the fail-over makes them first. An announcement is only a hint: the thread then asks that Sentinel for the
primary, as it does whenever it has connected again. It sends nothing else, and ends with its driver.

    +selected-slave   calls are held, and the replica is watched until it is promoted
    promoted          it is the primary now; all leases are checked there (`Connector.took_over`)
    +switch-master    the same, if this process missed the rest
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from typing import Any

from penstock.core.slots import Node
from penstock.driver.aio import AioEngine
from penstock.driver.connector import Connector
from penstock.driver.route import Answer, Route

# A Sentinel that leads a fail-over announces the replica that it is about to promote and, up to a second after that,
# the promotion. The other Sentinels announce only that there is another primary.
_SELECTED = b"+selected-slave"
_CHANNELS = ("+selected-slave", "+promoted-slave", "+failover-state-reconf-slaves", "+switch-master")

# From the choice of a replica until its promotion, some 0.1 s, calls are held, because the old primary would accept
# them and lose them. They are held for at most this many seconds, even if the fail-over takes longer.
_HOLD_FOR = 1.0

# The promotion closes all connections to the replica. In case it does not, the thread asks the replica for its role at
# this interval, in seconds.
_ROLE_INTERVAL = 0.2
_PROMOTION_TIMEOUT = 10.0

# Pauses before a lost Sentinel is connected to again, in seconds: the first, and the longest, to which they double.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0

# Seconds between the checks whether the driver is still in use.
_LOOK_INTERVAL = 10.0


class SentinelWatch:
    """Follows the Sentinels in a thread. `owner`: the thread ends when this object was garbage-collected."""

    def __init__(self, connector: Connector, owner: object) -> None:
        self.pid = os.getpid()
        self._connector = connector
        self._owner = weakref.ref(owner)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="penstock watches Sentinels", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads: the next look-up tries again
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        loop, stop, thread = self._loop, self._stop, self._thread
        if loop is not None and stop is not None and thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stop.set)
            thread.join(1.0)

    # --- in the thread ---

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the next look-up starts it again
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        engine = AioEngine(self._connector)
        route = self._connector.route
        tasks = [asyncio.create_task(self._follow(engine, one)) for one in (route.sentinels if route else ())]
        try:
            while self._owner() is not None and not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_INTERVAL):
                        await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await engine.aclose()

    async def _follow(self, engine: AioEngine, sentinel: Node) -> None:
        """Follow one Sentinel, and connect again whenever the connection fails."""
        pause = _FIRST_PAUSE
        while True:
            with contextlib.suppress(Exception):
                connection = await engine.open_connection(sentinel, sentinel=True)
                try:
                    connection.push(("SUBSCRIBE", *_CHANNELS))
                    while True:
                        messages = await connection.receive(_LOOK_INTERVAL)
                        for message in messages:
                            if message[:2] == [b"message", _SELECTED]:
                                await self._await_promotion(engine, message[2].decode().split(), sentinel)
                        if messages:  # a confirmation, or an announcement
                            await self._check(engine, sentinel)
                            pause = _FIRST_PAUSE
                finally:
                    connection.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _check(self, engine: AioEngine, sentinel: Node) -> None:
        """Switch to another primary if the Sentinel names one."""
        route = self._connector.route
        if route is None:
            return
        replies: list[Any] = await engine.exchange(sentinel, *route.lookup_commands)
        answer = route.read(replies, sentinel)
        if answer.table[0] not in (*route.primaries(), None) and not route.is_outdated(answer):
            self._take_over(route, answer)

    async def _await_promotion(self, engine: AioEngine, words: list[str], sentinel: Node) -> None:
        """`words`: `slave <name> <host> <port> @ <service> …`, the replica that the Sentinel is about to promote."""
        route = self._connector.route
        if route is None or not route.is_service(words[5]) or not route.primaries():
            return
        heir = route.reachable((words[2].encode(), words[3]), sentinel)
        route.hold(_HOLD_FOR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROMOTION_TIMEOUT):
                while heir not in route.primaries() and not await self._is_promoted(engine, heir):
                    pass
                if heir not in route.primaries():
                    self._take_over(route, route.promoted(heir))

    async def _is_promoted(self, engine: AioEngine, heir: Node) -> bool:
        """Whether `heir` is the primary now. Returns False only after a pause, or when `heir` closes the connection."""
        try:
            connection = await engine.open_connection(heir)
        except Exception:
            await asyncio.sleep(_ROLE_INTERVAL)
            return False
        with contextlib.suppress(ConnectionError), contextlib.closing(connection):
            (role,) = await connection.exchange(("ROLE",))
            if not isinstance(role, Exception) and role[0] == b"master":
                return True
            await connection.receive(_ROLE_INTERVAL)
        return False

    def _take_over(self, route: Route, answer: Answer) -> None:
        if (left := route.take_over(answer)) is not None:
            self._connector.took_over(left)
