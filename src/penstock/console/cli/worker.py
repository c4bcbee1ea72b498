"""`penstock worker`: run the jobs of an app until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, cast

from cyclopts import Parameter

from penstock.app import Penstock
from penstock.console.cli import DEBUG, version
from penstock.console.cli.loading import load_app
from penstock.console.exits import Exit, exit_for
from penstock.console.logs import LogFormat, LogLevel, start_logging
from penstock.errors import PenstockError
from penstock.outside import Outside
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")


def worker(
    app: str,
    /,
    *,
    concurrency: Annotated[int | None, Parameter(name=["--concurrency", "-c"])] = None,
    queues: str | None = None,
    burst: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    url: str | None = None,
    log_format: LogFormat | None = None,
    log_level: LogLevel = "info",
    stop_timeout: float | None = None,
) -> int:
    """Run the jobs of an app's queues.

    Ctrl-C or SIGTERM: claim no more and let running jobs finish. The same again: hand them back now.

    Parameters
    ----------
    app
        Where the Penstock app is: `module:name` or `path/to/file.py:name`; the name is `app` unless given.
    concurrency
        Jobs that run at once; 10 unless given.
    queues
        Names as in `mail,raw`, in strict order: the second is asked when the first has nothing. Without it, every
        queue that has a task.
    burst
        Stop when nothing is ready any more.
    url
        The server, as in valkey://host:6379/0, for an app that names none.
    log_format
        `plain` unless given; `json` is one object a line.
    log_level
        The least level that is shown.
    stop_timeout
        Seconds that running jobs have to finish; 30 unless given.
    """
    outside = Outside()
    style = cast("LogFormat", outside.text("log_format", log_format, ("plain", "json")) or "plain")
    start_logging(style, log_level)
    try:
        outside.hand_on("url", url)
        outside.hand_on("prefix")
        said: dict[str, Any] = {
            "concurrency": outside.number("concurrency", concurrency),
            "stop_timeout": stop_timeout,
        }
        settings = WorkerSettings(burst=burst, queues=outside.names("queues", queues))
        settings = replace(settings, **{name: value for name, value in said.items() if value is not None})
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(_work(load_app(app), settings, style))
    except PenstockError as error:
        if style == "plain":
            raise
        log.critical("%s", error, exc_info=bool(os.environ.get(DEBUG)))
        return exit_for(error)
    return Exit.OK


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


async def _work(app: Penstock, settings: WorkerSettings, style: LogFormat) -> None:
    worker = Worker(app, settings)
    try:
        queues = settings.queues or app.registry.queues()
        # Before the signals are ours: until a server answers, Ctrl-C just ends the program.
        await app.queue(queues[0]).count.aio()
        _introduce(app, queues, settings.concurrency, style)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, worker.stop)
        await worker.run()
        log.info("stopped")
    finally:
        await app.aclose()


def _introduce(app: Penstock, queues: Sequence[str], concurrency: int, style: LogFormat) -> None:
    """Who works, where, at what, and how to stop it."""
    tasks = {queue: [task.name for task in app.registry if task.queue == queue] for queue in queues}
    server = describe_server(app)
    if style == "json":
        facts = {"version": version(), "server": server, "pid": os.getpid(), "concurrency": concurrency}
        log.info("started", extra={**facts, "queues": list(tasks), "tasks": tasks})
    else:
        print(_screen(server, concurrency, tasks), file=sys.stderr, flush=True)
    for queue in (name for name, known in tasks.items() if not known):
        others = ", ".join(app.registry.queues()) or "none"
        log.warning("queue %s has no task in this app, jobs found there are handed back; it has: %s", queue, others)


def describe_server(app: Penstock) -> str:
    """`valkey 9.1.2 at unix:///…`, without the password. After the first answer."""
    connector = app._driver.connector
    name, number = connector.version or ("unknown", ())
    kind = "embedded " if connector.is_embedded else ""
    return f"{kind}{name} {'.'.join(map(str, number))} at {connector.address}"


def _screen(server: str, concurrency: int, tasks: dict[str, list[str]]) -> str:
    width = max(map(len, tasks))
    rows = [f"{place}. {name:{width}}  {', '.join(tasks[name]) or '-'}" for place, name in enumerate(tasks, 1)]
    queues = "\n           ".join(rows)
    return f"""\
penstock {version()}, worker {os.getpid()}
  server   {server}
  at once  {concurrency} jobs
  queues   {queues}
  stop     Ctrl-C lets running jobs finish, a second one hands them back
"""
