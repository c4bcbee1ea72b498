"""Starlette, and every framework built on it: opens and closes an app with the web application that uses it.

    app = Penstock()
    web = Starlette(routes=[…], lifespan=lifespan(app))

Each request then finds the app by `app_of(request)`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from penstock.app import Penstock
from penstock.errors import ConfigurationError
from penstock.integrations.requirements import needs
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker

with needs("starlette", "starlette"):
    from starlette.requests import HTTPConnection

__all__ = ["app_of", "lifespan"]

log = logging.getLogger("penstock.worker")

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]

_STATE: Final = "penstock"


def lifespan(
    app: Penstock, *, worker: WorkerSettings | None = None, inner: Lifespan | None = None
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """The `lifespan` of a web application that uses `app`: at the end it closes the connections.

    worker  also run a worker inside the web process, on its event loop, with these settings. It starts with the
            application; at the end its running jobs finish first, for at most `stop_timeout` seconds. A `def` task runs
            in a thread, so no job blocks a request, but they share one process. None: run `penstock worker`
    inner   a lifespan of your own, entered after this one and left before it. Its state is kept

    Nothing is sent before the first request needs it, unless there is a worker. If that worker fails, a critical line
    is logged, and the end of the lifespan raises its error.
    """

    @asynccontextmanager
    async def opened(web: Any) -> AsyncIterator[dict[str, Any]]:
        async with app, AsyncExitStack() as stack:
            if worker is not None:
                await stack.enter_async_context(_working(Worker(app, worker)))
            state = None if inner is None else await stack.enter_async_context(inner(web))
            yield {_STATE: app, **(state or {})}

    return opened


def app_of(connection: HTTPConnection) -> Penstock:
    """The app that `lifespan` opened for this request or websocket. No round trip.

    Raises ConfigurationError if the web application was created without it.
    """
    app = getattr(connection.state, _STATE, None)
    if not isinstance(app, Penstock):
        raise ConfigurationError(
            "this request has no Penstock app: create the web application with lifespan=lifespan(app), and in a test "
            "enter its lifespan, as in `with TestClient(web) as client:`"
        )
    return app


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    run = asyncio.create_task(worker.run(), name="penstock-worker")
    run.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await run


def _report(run: asyncio.Task[None]) -> None:
    if not run.cancelled() and (error := run.exception()) is not None:
        log.critical("the worker inside this web process has failed, and no job runs here: %s", error, exc_info=error)
