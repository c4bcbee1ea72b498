"""The facts of an app that a supervisor needs, read without importing the app into the supervisor's own process.

A module may bind a port, start threads or load a gigabyte when it is imported. The worker process needs all of that. A
supervisor that imported the module as well would take the port away. So another process imports the app, reports the
facts, and ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import NamedTuple

from penstock.app import Penstock
from penstock.cli.loading import load_app
from penstock.driver.address import ServerAddress
from penstock.settings import Settings


class AppOutline(NamedTuple):
    """The parts of an app that a supervisor needs."""

    address: ServerAddress | None
    """None: it is found in the environment, as by the app itself."""
    settings: Settings
    tasks: dict[str, list[str]]
    """The names of the tasks of each queue that a worker serves by default, in its order."""

    shards: dict[str, int]
    """The number of shards of each queue that has several."""

    @classmethod
    def of(cls, app: Penstock) -> AppOutline:
        # Also queues without a task of their own, as the settings of Django name them: a call chooses one of them.
        tasks: dict[str, list[str]] = {queue: [] for queue in app.registry.queues()}
        for definition in app.registry:
            tasks.setdefault(definition.queue, []).append(definition.name)
        shards = {name: named for name, queue in app._queues.items() if (named := queue.shards.named) is not None}
        return cls(app._driver.connector.given_address, app.settings, tasks, shards)

    def app(self) -> Penstock:
        """An app without tasks on the same server, with the same settings."""
        made = Penstock(settings=self.settings)
        if self.address is not None:
            made._driver.connector.use(self.address)
        for queue, shards in self.shards.items():
            made.queue(queue, shards=shards)
        return made


def supervised_app(spec: str) -> tuple[Penstock, dict[str, list[str]]]:
    """An app without tasks on the server of the app `spec`, and the names of its tasks by queue.

    Imports the app here if that fails in another process, or if the app was made from a client that cannot be pickled.
    Raises what `load_app` raises.
    """
    found = _read_in_another_process(spec)
    if found is not None:
        return found.app(), found.tasks
    app = load_app(spec)
    return app, AppOutline.of(app).tasks


def _read_in_another_process(spec: str) -> AppOutline | None:
    if not hasattr(os, "fork"):
        return None
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        # No error is reported from here: this process imports the app itself then, and reports the error.
        with contextlib.suppress(BaseException):
            os.close(ours)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            with open(theirs, "wb") as pipe:
                pickle.dump(AppOutline.of(load_app(spec)), pipe)
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    try:
        found: AppOutline = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return None
    return found
