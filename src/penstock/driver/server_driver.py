"""The driver of one server, which every component of an app holds."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from penstock.core.operations import RoundTrip
from penstock.driver.connector import Connector
from penstock.driver.library import add_command, is_cluster_pipeline, pipeline_commands
from penstock.errors import ConfigurationError
from penstock.settings import Settings

if TYPE_CHECKING:  # asyncio and the two faces are imported when they are first used
    import asyncio

    from penstock.driver.aio import AioEngine
    from penstock.driver.blocking import BlockingEngine
    from penstock.driver.sentinel_watch import SentinelWatch

# Pipeline -> its list of commands, and the scripts loaded in it. A pipeline begins a new list after each execute().
_loaded: WeakKeyDictionary[Any, tuple[list[Any], set[str]]] = WeakKeyDictionary()


class ServerDriver:
    """A server's driver: one blocking face for the threads of this process, and one face for each event loop.

    `server`: an address, a client of valkey-py or redis-py, or None (see `Connector`). Nothing is connected or started
    before the first operation.
    """

    def __init__(self, server: Any = None, settings: Settings | None = None) -> None:
        refuse_green_threads()
        self.connector = Connector(server, settings or Settings())
        self._blocking: BlockingEngine | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._aio: MutableMapping[asyncio.AbstractEventLoop, AioEngine] = WeakKeyDictionary()
        self._last_aio: AioEngine | None = None
        """The face that was used last. Most programs have one."""
        self._watch: SentinelWatch | None = None
        self.connector.follow_sentinels = partial(_follow_sentinels, weakref.ref(self))

    @property
    def blocking(self) -> BlockingEngine:
        """The face of this process. A forked child gets its own: two processes cannot share a connection.

        The system is asked each time, because a program in C may fork without Python's hooks.
        """
        if self._blocking is None or self._pid != os.getpid():
            from penstock.driver.blocking import BlockingEngine

            with self._lock:
                if self._blocking is None or self._pid != os.getpid():
                    refuse_green_threads()
                    self._blocking, self._pid = BlockingEngine(self.connector), os.getpid()
        return self._blocking

    @property
    def aio(self) -> AioEngine:
        """The face of the running event loop."""
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "`.aio` needs a running event loop of asyncio. Under trio, call the blocking form in a thread, as in "
                "`await trio.to_thread.run_sync(queue.put, 1)`; in code without a loop, leave `.aio` out"
            ) from None
        engine = self._last_aio
        if engine is not None and engine.loop() is loop:
            return engine
        engine = self._aio.get(loop)
        if engine is None:
            from penstock.driver.aio import AioEngine

            with self._lock:
                for closed in [known for known in self._aio if known.is_closed()]:
                    del self._aio[closed]
                engine = self._aio[loop] = AioEngine(self.connector)
        self._last_aio = engine
        return engine

    def on_takeover(self, notify: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Call a method, in any thread, when another node has taken over from one that this process used."""
        self.connector.on_takeover.append(notify)

    def follow_sentinels(self) -> None:
        """Watch the Sentinels from now on, in this process, if the address names any."""
        if self.connector.route is None or not self.connector.route.uses_sentinels:
            return
        from penstock.driver.sentinel_watch import SentinelWatch

        with self._lock:
            if self._watch is None or self._watch.pid != os.getpid():
                self._watch = SentinelWatch(self.connector, self)
        self._watch.start()

    def add_to_pipeline(self, pipeline: Any, round_trip: RoundTrip[Any]) -> None:
        """Add a script call to a pipeline or MULTI of the user's own client, blocking or asyncio.

        Its execute() returns one reply for the call. Before the first call of a script the pipeline gets a SCRIPT LOAD,
        which has a reply of its own. Without it, an EVALSHA of an unknown script would fail while EXEC executes the
        rest. On a cluster SCRIPT LOAD might go to other nodes, so each call carries its script instead.
        """
        words = (len(round_trip.keys), *round_trip.keys, *round_trip.args)
        if is_cluster_pipeline(pipeline):
            pipeline.execute_command("EVAL", round_trip.script.source, *words)
            return
        stack, loaded = _loaded.get(pipeline, (None, set()))
        commands = pipeline_commands(pipeline)
        if stack is not commands or not stack:
            stack, loaded = _loaded[pipeline] = commands, set()
        if round_trip.script.sha not in loaded:
            loaded.add(round_trip.script.sha)
            add_command(pipeline, "SCRIPT LOAD", round_trip.script.source)
        add_command(pipeline, "EVALSHA", round_trip.script.sha, *words)

    def close(self) -> None:
        """Close the blocking face, and detach from an embedded server. The next use connects again."""
        watch, self._watch = self._watch, None
        if watch is not None and watch.pid == os.getpid():
            watch.close()
        if self._blocking is not None and self._pid == os.getpid():
            self._blocking.close()
        self.connector.close()

    async def aclose_loop(self) -> None:
        """Close only the face of the running event loop: call it before a loop ends while others still use the app."""
        import asyncio

        engine, self._last_aio = self._aio.pop(asyncio.get_running_loop(), None), None
        if engine is not None:
            await engine.aclose()
        await self.connector.aclose()

    async def aclose(self) -> None:
        """Close the face of the running event loop, then everything that `close` closes."""
        await self.aclose_loop()
        self.close()


def _follow_sentinels(driver: weakref.ref[ServerDriver]) -> None:
    # The connector must not keep its driver alive, because the thread of `SentinelWatch` ends when the driver is gone.
    if (owner := driver()) is not None:
        owner.follow_sentinels()


def refuse_green_threads() -> None:
    """Raise ConfigurationError if gevent or eventlet has replaced this process's threads or sockets.

    Leases are renewed in a thread with an event loop of its own. Under a monkey patch that thread is a coroutine of the
    main thread: its loop looks as if it ran in every caller, and a caller that computes keeps it from renewing.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    names = ("thread", "threading", "socket", "select")
    if gevent is not None and any(gevent.is_module_patched(name) for name in names):
        library, patch = "gevent", "gevent.monkey.patch_all()"
    elif eventlet is not None and any(eventlet.is_monkey_patched(name) for name in names):
        library, patch = "eventlet", "eventlet.monkey_patch()"
    else:
        return
    raise ConfigurationError(
        f"Penstock does not work under {patch}: it renews leases in a real thread. Leave the patch out here "
        f"and use threads or asyncio; or call Penstock from a process that {library} has not patched"
    )
