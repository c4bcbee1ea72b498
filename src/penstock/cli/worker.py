"""`penstock worker`: runs the jobs of an app until it is stopped. It is a supervisor, except with `--processes 0`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

from penstock.app import Penstock
from penstock.cli import DEBUG, RELOADED, metrics, version
from penstock.cli.app_outline import AppOutline, supervised_app
from penstock.cli.exits import Exit, exit_for
from penstock.cli.loading import load_app
from penstock.cli.parameter import Parameter
from penstock.config import Configuration
from penstock.errors import ConfigurationError, PenstockError, ServerUnavailable
from penstock.jobs.worker_requests import ask_workers
from penstock.settings import LogLevel, MiB, WorkerSettings
from penstock.terminal.signals import not_ignored
from penstock.worker.app import NAME_THE_TASKS, named_queues
from penstock.worker.event_loop import loop_factory
from penstock.worker.init_process import continue_in_child
from penstock.worker.logs import LogFormat, start_logging
from penstock.worker.parent_pipe import StopRequests
from penstock.worker.shared_status import VARIABLE as STATUS_VARIABLE
from penstock.worker.shared_status import SharedStatus
from penstock.worker.supervisor import Supervisor
from penstock.worker.trials import VARIABLE as TRIAL_VARIABLE

if TYPE_CHECKING:  # a supervisor does not import what runs jobs
    from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")


def worker(
    app: str,
    /,
    *,
    concurrency: Annotated[int | None, Parameter(name=["--concurrency", "-c"])] = None,
    processes: int | None = None,
    queues: str | None = None,
    burst: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    reload_: Annotated[bool, Parameter(name="--reload", negative=(), show_default=False)] = False,
    check: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    url: str | None = None,
    log_format: LogFormat | None = None,
    log_level: LogLevel = "info",
    job_log_level: LogLevel | None = None,
    stop_timeout: float | None = None,
    max_jobs: int | None = None,
    max_memory: int | None = None,
    release: str | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> int:
    """Run the jobs of an app's queues.

    On the first Ctrl-C or SIGTERM the worker claims nothing new and lets running jobs finish. On the second it hands
    them back at once.

    Parameters
    ----------
    app
        The Penstock app: `module:name` or `path/to/file.py:name`. The name is `app` by default.
    concurrency
        Jobs that run at the same time in one process (10 by default).
    processes
        Number of worker processes (1 by default). This command is their supervisor: it replaces each one that dies, and
        returns its jobs at once. With 0 the command itself is the worker, and no process sees it die.
    queues
        Queues, for example `mail,raw`, in strict order: the second is served when the first has no ready jobs. Without
        it, every queue that has a task, in rotation.
    burst
        Stop when no job is ready any more.
    reload_
        For development: restart when a Python file below the working directory changes.
    check
        Run nothing: exit code 0 if a worker of this machine is alive on each queue, else 1. For containers. Also 0 if
        the server does not answer, because a restart of the worker would not help.
    url
        The server, for example valkey://host:6379/0, for an app that does not name one.
    log_format
        `plain` (the default), or `json`: one object per line.
    log_level
        The lowest level that is logged.
    job_log_level
        The level of the lines that say that a job starts, and that it has completed (debug by default).
    stop_timeout
        Seconds that running jobs have to finish (30 by default).
    max_jobs
        Replace a worker process after this many jobs, gracefully. For code that leaks.
    max_memory
        Replace a worker process that uses more MiB of memory than this, gracefully.
    release
        The name of the release that the worker runs, for example a version or a commit. By default, a digest of its
        tasks and their parameters. A date, or seconds since 1970, also says which release is the newer one.
    metrics_port
        Serve metrics of jobs and queues for Prometheus on this port. Needs the extra `prometheus`.
    metrics_host
        The address on which metrics are served.
    """
    configuration = Configuration()
    style = cast("LogFormat", configuration.text("log_format", log_format, ("plain", "json")) or "plain")
    start_logging(style, log_level)
    try:
        configuration.export("url", url)
        configuration.export("prefix")
        configuration.export("release", release)
        memory = configuration.number("max_memory", max_memory)
        given: dict[str, Any] = {
            "concurrency": configuration.number("concurrency", concurrency),
            "stop_timeout": stop_timeout,
            "job_log_level": job_log_level,
            "max_jobs": configuration.number("max_jobs", max_jobs),
            "max_memory": None if memory is None else _mebibytes(memory),
        }
        settings = WorkerSettings(burst=burst, queues=configuration.names("queues", queues))
        settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
        _check(settings)
        # A process started by a reloader does not reload itself, and neither do the children of its supervisor.
        is_reloaded = os.environ.pop(RELOADED, None) is not None or STATUS_VARIABLE in os.environ
        if not check:
            continue_in_child()
        if reload_ and not is_reloaded:
            from penstock.cli import reload

            return reload.run((*_THIS, *sys.argv[1:]))
        if check:
            loaded = load_app(app)
            return Exit.OK if check_health(loaded, named_queues(loaded, settings)) else Exit.FAILED
        count = configuration.number("processes", processes)
        if count is None:
            count = _PROCESSES
        if count < 0:
            raise ConfigurationError(f"--processes {count}: use 1 or more, or 0 for a worker without a supervisor")
        at = None if metrics_port is None else (metrics_port, metrics_host)
        return _run(app, settings, count, at, style, log_level)
    except PenstockError as error:
        if style == "plain":
            raise
        log.critical("%s", error, exc_info=bool(os.environ.get(DEBUG)))
        return exit_for(error)


def _run(
    app: str,
    settings: WorkerSettings,
    processes: int,
    metrics_at: tuple[int, str] | None,
    style: LogFormat,
    level: LogLevel,
) -> int:
    """Run as the supervisor of this number of processes, as one of them, or as a worker without a supervisor (0)."""
    is_child = STATUS_VARIABLE in os.environ
    strict = bool(settings.queues)
    with contextlib.ExitStack() as stack:
        if processes and not is_child:
            if metrics_at:  # now, because the app may import the client of Prometheus
                stack.enter_context(metrics.folder_of_processes())
            served, tasks = supervised_app(app)
            if not settings.queues:
                settings = replace(settings, queues=tuple(tasks))
        else:
            served = load_app(app)
            tasks = AppOutline.of(served).tasks
            if metrics_at:
                metrics.measure_jobs(served)
        if metrics_at and not is_child:
            stack.enter_context(metrics.served(served, *metrics_at))
        served._driver.connector.import_library()
        command = _Command(served, tasks, settings, strict, style, level)
        # A supervisor is idle, and need not be fast. The loop of asyncio starts a process without the hooks of a fork,
        # which would import everything (`lazy.py`).
        runs_jobs = is_child or not processes
        with asyncio.Runner(loop_factory=loop_factory() if runs_jobs else None) as runner:
            return runner.run(command.run(processes))


def check_health(app: Penstock, queues: Iterable[str]) -> bool:
    """Print the workers of this machine that serve each queue. Returns whether every queue has one.

    Also True if the server does not answer: all workers would be restarted for that, and none would be better.
    """
    # Imported here, because a worker that runs jobs needs neither, nor cyclopts, which the first one imports.
    from penstock.cli.where import REPLY_TIMEOUT
    from penstock.ops.inspect import Inspector

    connector, seconds = app._driver.connector, REPLY_TIMEOUT  # soon, because a probe has a timeout of its own
    connector.settings = replace(connector.settings, reply_timeout=seconds, give_up_after=seconds)
    inspector = Inspector(app)
    try:
        with app:
            workers = {queue: inspector.workers.here(queue) for queue in queues}
    except ServerUnavailable as error:
        print(f"{error}\nSo it is not known whether a worker is alive. A restart would not help.", file=sys.stderr)
        return True
    for queue, names in workers.items():
        print(f"queue {queue}: {', '.join(names) or 'no worker of this machine is alive'}", file=sys.stderr)
    return all(workers.values())


def _check(settings: WorkerSettings) -> None:
    """Check now, before a reloader or a supervisor starts processes that cannot work."""
    if settings.concurrency < 1:
        raise ConfigurationError(f"concurrency={settings.concurrency}: use 1 or more")
    if settings.max_jobs is not None and settings.max_jobs < 1:
        raise ConfigurationError(f"max_jobs={settings.max_jobs}: use 1 or more")
    if not 0 <= settings.stop_timeout <= _LONGEST_STOP:
        raise ConfigurationError(f"stop_timeout={settings.stop_timeout:g}: use seconds from 0 to a week")


def _mebibytes(count: int) -> int:
    if count < 1:
        raise ConfigurationError(f"max_memory={count} MiB: use 1 or more")
    return count * MiB


_LONGEST_STOP = 7 * 86400.0

_PROCESSES = 1
"""Worker processes by default. One, because a second one helps only where tasks use more than a CPU."""

_THIS = (sys.executable, "-m", "penstock")


@dataclass(frozen=True)
class _Command:
    """The command in one of its three roles: a supervisor, a supervisor's child, or a worker without a supervisor."""

    app: Penstock
    """Of a supervisor: without tasks."""
    tasks: dict[str, list[str]]
    """The names of the app's tasks by queue."""
    settings: WorkerSettings
    strict: bool
    """Whether queues are served in strict order, because they were named."""
    style: LogFormat
    level: LogLevel

    async def run(self, processes: int) -> int:
        status = SharedStatus.from_environment()
        try:
            if status is not None:
                return await self._run_as_child(status)
            if processes == 0:
                worker = self._worker()
                worker._owns_process = True
                return await self._run_until_stopped(worker.run(), worker.stop, "")
            supervisor = Supervisor(self.app, (*_THIS, *sys.argv[1:]), processes, self.settings)
            where = f" in each of {processes} processes" if processes > 1 else ""
            return await self._run_until_stopped(supervisor.run(), supervisor.stop, where)
        finally:
            await self.app.aclose()

    @property
    def _start_logging(self) -> Callable[[], None]:
        return partial(start_logging, self.style, self.level)

    def _worker(self) -> Worker:
        from penstock.worker.worker import Worker

        return Worker(self.app, self.settings, start_logging=self._start_logging)

    async def _run_as_child(self, status: SharedStatus) -> int:
        logging.getLogger("penstock.embedded").setLevel(logging.WARNING)  # its supervisor has named the server
        if os.environ.pop(TRIAL_VARIABLE, None):
            from penstock.worker.trial_process import trial_worker

            worker = trial_worker(self.app, self.settings, status, self._start_logging)
        else:
            worker = self._worker()
            worker._share_status(status)
        worker._owns_process = True
        self._stop_on(worker.stop, signal.SIGTERM)
        await worker.run()
        return Exit.OK

    async def _run_until_stopped(
        self, work: Coroutine[Any, Any, int | None], stop: Callable[[], None], where: str
    ) -> int:
        # Signals are handled only after this: until a server answers, Ctrl-C simply ends the program.
        try:
            # A script that may write, so that a server that refuses writes is reported here; and a small one, because
            # a supervisor has to make its text from the Lua files first.
            queue = self.app.queue(named_queues(self.app, self.settings)[0])
            await self.app._driver.aio.run(ask_workers(queue.first.bindings, "quiet", []))
        except BaseException:
            work.close()
            raise
        self._announce(where)
        self._stop_on(stop, signal.SIGINT, signal.SIGTERM)
        code = await work
        log.info("stopped")
        return code or Exit.OK

    def _stop_on(self, stop: Callable[[], None], *signals: signal.Signals) -> None:
        """Call `stop` on these signals, and when the parent process ends."""
        requests, loop = StopRequests(stop), asyncio.get_running_loop()
        for number in not_ignored(*signals):
            loop.add_signal_handler(number, requests.signalled)
        requests.follow_parent(
            self.settings.stop_timeout + 5, lambda: log.warning("the parent process ended: stopping")
        )

    def _announce(self, where: str) -> None:
        """Log or print the server, the queues with their tasks, and how to stop the worker."""
        queues = named_queues(self.app, self.settings)
        tasks = {queue: self.tasks.get(queue, []) for queue in queues}
        server, concurrency = describe_server(self.app), self.settings.concurrency
        if self.style == "json":
            facts = {"version": version(), "server": server, "pid": os.getpid(), "concurrency": concurrency}
            log.info("started", extra={**facts, "queues": list(tasks), "tasks": tasks})
        else:
            print(
                _banner(server, f"{concurrency} jobs at a time{where}", tasks, self.strict), file=sys.stderr, flush=True
            )
        for queue in (name for name in tasks if name not in self.tasks):
            others = ", ".join(self.tasks) or "none"
            log.warning("queue %s has no task in this app, its jobs are handed back; the app has: %s", queue, others)
        if self.tasks and not any(self.tasks.values()):
            log.warning("this app has no task, so all jobs are handed back: %s", NAME_THE_TASKS)


def describe_server(app: Penstock) -> str:
    """`valkey 9.1.2 at unix:///…`, without the password. Valid after the first reply."""
    connector = app._driver.connector
    name, number = connector.version or ("unknown", ())
    kind = "embedded " if connector.is_embedded else ""
    return f"{kind}{name} {'.'.join(map(str, number))} at {connector.address}"


def _banner(server: str, concurrency: str, tasks: dict[str, list[str]], strict: bool) -> str:
    width = max(map(len, tasks))
    rows = [
        f"{f'{position}. ' if strict else ''}{name:{width}}  {', '.join(tasks[name]) or '-'}"
        for position, name in enumerate(tasks, 1)
    ]
    queues = "\n           ".join(rows)
    return f"""\
penstock {version()}, worker {os.getpid()}
  server   {server}
  runs     {concurrency}
  queues   {queues}
  stop     Ctrl-C lets running jobs finish, a second one hands them back
"""
