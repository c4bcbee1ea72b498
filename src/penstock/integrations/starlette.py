"""Starlette, and every framework built on it: opens and closes an app with the web application that uses it.

    app = Penstock()
    web = Starlette(routes=[…], lifespan=lifespan(app))

Each request then finds the app by `app_of(request)`. `event_stream(job)` serves what a job emits to a browser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

import msgspec

from penstock.app import Penstock
from penstock.core.arguments import check_number
from penstock.errors import BadCall, ConfigurationError, JobNotFound
from penstock.integrations.requirements import needs
from penstock.jobs.job import Job
from penstock.jobs.output import JobOutput, OutputPart
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker

with needs("starlette", "starlette"):
    from starlette.requests import HTTPConnection
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.types import Receive, Scope, Send

__all__ = ["app_of", "event_stream", "lifespan"]

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


def event_stream(job: Job[Any], *, keepalive: float = 15.0) -> Response:
    """What a job emits, as Server-Sent Events: return it from a route, and read it with a browser's `EventSource`.

    Each part is an event with its `id`, and with `{"chunk": …, "attempt": 1}` as data. If chunks before it are gone,
    the data also has `"missed"`, their number. The last event has the type `end` and the status of the job as data,
    such as `{"status": "completed"}`. The client must then close the source, which would connect again otherwise. A
    client that reconnects sends `Last-Event-ID`, and gets the parts after it, from any process.

    keepalive  seconds after which a quiet stream sends a comment, so that proxies keep the connection

    Answers 404 for an unknown job, and 400 for a malformed `Last-Event-ID`. Round trips: as `JobOutput.fetch`.
    """
    check_number("event_stream", "keepalive", keepalive, 0.1, 3600, "seconds from 0.1 to an hour")
    return _EventStream(job, keepalive)


class _EventStream(StreamingResponse):
    """Reads when it is sent, because the position is a header of the request. The framework and the route may add
    headers, cookies and background tasks to it before.
    """

    media_type = "text/event-stream"

    def __init__(self, job: Job[Any], keepalive: float) -> None:
        super().__init__((), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._job, self._keepalive = job, keepalive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        after = HTTPConnection(scope).headers.get("last-event-id")
        try:
            output = self._job.output(after=after or None)
            parts = await output.fetch.aio(0)
        except (BadCall, JobNotFound) as error:
            status = 404 if isinstance(error, JobNotFound) else 400
            await PlainTextResponse(str(error), status, background=self.background)(scope, receive, send)
            return
        self.body_iterator = self._events(output, parts, only_headers=scope["method"] == "HEAD")
        await super().__call__(scope, receive, send)

    async def _events(self, output: JobOutput, parts: list[OutputPart], *, only_headers: bool) -> AsyncIterator[bytes]:
        yield b": output\n\n"
        if only_headers:
            return
        while True:
            yield b"".join(map(_event, parts))
            if output.has_ended:
                break
            parts = await output.fetch.aio(self._keepalive)
            if not parts:
                yield b": \n\n"
        status = await self._job.status.aio()
        yield b"event: end\ndata: %b\n\n" % msgspec.json.encode({"status": status})


def _event(part: OutputPart) -> bytes:
    missed = {"missed": part.missed} if part.missed else {}
    data = {"chunk": part.chunk, "attempt": part.attempt, **missed}
    return b"id: %b\ndata: %b\n\n" % (part.id.encode(), msgspec.json.encode(data))


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
