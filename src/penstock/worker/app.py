"""The part of an app that a worker needs, the queues that it serves, and a check of its settings."""

from __future__ import annotations

from typing import Protocol

from penstock.core.operations import Driver
from penstock.errors import ConfigurationError
from penstock.jobs.middleware import MiddlewareStack
from penstock.jobs.queue import Queue
from penstock.jobs.registry import Registry
from penstock.settings import Settings, WorkerSettings


class App(Protocol):
    """The part of `penstock.Penstock` that a worker uses. A Protocol: this package must not import that class."""

    settings: Settings
    registry: Registry
    middleware: MiddlewareStack

    @property
    def _driver(self) -> Driver: ...
    def queue(self, name: str) -> Queue: ...


def queues_of(app: App, settings: WorkerSettings) -> tuple[str, ...]:
    """The names of the queues that a worker serves, in order; of a queue with shards, the names of its shards.

    Raises ConfigurationError if it serves no queue.
    """
    names = settings.queues or app.registry.queues()
    if not names:
        raise ConfigurationError("nothing to do: no task is registered, and no queue was named")
    return tuple(dict.fromkeys(part.name for name in names for part in app.queue(name).parts))


def check_settings(settings: WorkerSettings) -> None:
    """Raises ConfigurationError for numbers that cannot work."""
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
