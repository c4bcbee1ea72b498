"""The interface of an app that a worker uses, the queues that it serves, and a check of its settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, get_args

from penstock.core.operations import Driver
from penstock.errors import ConfigurationError
from penstock.jobs.keys import MOST_SHARDS
from penstock.jobs.middleware import MiddlewareStack
from penstock.jobs.queue import Queue
from penstock.jobs.registry import Registry
from penstock.jobs.shard import Shard
from penstock.settings import LogLevel, Settings, WorkerSettings

MOST_QUEUES = 254
"""The shared status of a process keeps the queue of a running job in one byte."""


class App(Protocol):
    """The interface of `penstock.Penstock` that a worker uses, because this package must not import that class."""

    settings: Settings
    registry: Registry
    middleware: MiddlewareStack

    @property
    def _driver(self) -> Driver: ...
    def queue(self, name: str) -> Queue: ...


NAME_THE_TASKS = (
    "name a module that imports all tasks; in Django, list each application with a module `tasks` in INSTALLED_APPS"
)
"""The remedy of a worker that knows no task."""


def named_queues(app: App, settings: WorkerSettings) -> tuple[str, ...]:
    """The names of the queues that a worker serves, in order. Raises ConfigurationError if it serves no queue."""
    names = settings.queues or app.registry.queues()
    if not names:
        raise ConfigurationError(f"nothing to do: no task is registered, and no queue was named; {NAME_THE_TASKS}")
    return tuple(dict.fromkeys(names))


def queues_of(app: App, settings: WorkerSettings) -> tuple[Queue, ...]:
    """The queues that a worker serves, in order. Raises ConfigurationError if it serves no queue."""
    return tuple(app.queue(name) for name in named_queues(app, settings))


def shards_of(queues: Iterable[Queue]) -> tuple[Shard, ...]:
    """All shards that these queues may ever have, each once. They are the same in each process.

    Raises ConfigurationError for more than `MOST_QUEUES` shards.
    """
    found = tuple({shard.name: shard for queue in queues for shard in queue.shards.possible}.values())
    if len(found) > MOST_QUEUES:
        raise ConfigurationError(
            f"{len(found)} queues, where each with shards counts as {MOST_SHARDS}: a worker serves {MOST_QUEUES}; "
            "name fewer with queues="
        )
    return found


def check_settings(settings: WorkerSettings) -> None:
    """Raises ConfigurationError for settings that cannot work."""
    if settings.job_log_level not in get_args(LogLevel):
        raise ConfigurationError(f"job_log_level={settings.job_log_level!r}: use {', '.join(get_args(LogLevel))}")
    for name, value in (("concurrency", settings.concurrency), ("isolated", settings.isolated)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{name}={value}: use 1 or more")
    if not 1 <= settings.max_batch <= 1000:
        raise ConfigurationError(f"max_batch={settings.max_batch}: use 1 to 1000")
    if settings.trials < 1:
        raise ConfigurationError(f"trials={settings.trials}: use 1 or more, or no job that killed a worker ever ends")
    if not 0 <= settings.host_deaths <= 63:
        raise ConfigurationError(f"host_deaths={settings.host_deaths}: use 1 to 63, or 0 for no limit")
    for name, value in (("max_jobs", settings.max_jobs), ("max_memory", settings.max_memory)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{name}={value}: use 1 or more, or None for no limit")
