"""Both ways to one server, as every component holds them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from penstock.core.operations import RoundTrip
from penstock.driver.aio import AioEngine
from penstock.driver.blocking import BlockingEngine
from penstock.driver.connector import Connector
from penstock.driver.pipeline import add_to_pipeline
from penstock.settings import Settings


class ServerDriver:
    """The drivers of one server: the blocking one of this process, and one for each event loop.

    `server`: an address, a client of valkey-py or redis-py, or None (see `Connector`). No I/O before the first step.
    """

    def __init__(self, server: Any = None, settings: Settings | None = None) -> None:
        self.connector = Connector(server, settings or Settings())
        self._blocking: BlockingEngine | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._aio: MutableMapping[asyncio.AbstractEventLoop, AioEngine] = WeakKeyDictionary()

    @property
    def blocking(self) -> BlockingEngine:
        """A forked child gets its own: two processes must not share a connection, nor a producer's numbers."""
        if self._blocking is None or self._pid != os.getpid():
            with self._lock:
                if self._blocking is None or self._pid != os.getpid():
                    self._blocking, self._pid = BlockingEngine(self.connector), os.getpid()
        return self._blocking

    @property
    def aio(self) -> AioEngine:
        """The running loop's."""
        loop = asyncio.get_running_loop()
        runner = self._aio.get(loop)
        if runner is None:
            with self._lock:
                for gone in [known for known in self._aio if known.is_closed()]:
                    del self._aio[gone]
                runner = self._aio[loop] = AioEngine(self.connector)
        return runner

    def add_to_pipeline(self, pipeline: Any, round_trip: RoundTrip[Any]) -> None:
        """Put a step into a pipeline or MULTI of the user's (see `pipeline.py`)."""
        add_to_pipeline(pipeline, round_trip)

    def close(self) -> None:
        """Close the blocking face, and let go of an embedded server. The next use begins anew."""
        if self._blocking is not None and self._pid == os.getpid():
            self._blocking.close()
        self.connector.close()

    async def leave(self) -> None:
        """Close the running loop's face; a loop that ends must do so, and the others go on."""
        runner = self._aio.pop(asyncio.get_running_loop(), None)
        if runner is not None:
            await runner.aclose()
        await self.connector.aclose()

    async def aclose(self) -> None:
        """Close the running loop's face, then everything that `close` does."""
        await self.leave()
        self.close()
