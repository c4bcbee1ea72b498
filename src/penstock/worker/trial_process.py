"""The program of a trial process (see `trials.py`) of a worker that runs inside another program."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
from collections.abc import Callable

from penstock.settings import WorkerSettings
from penstock.worker.app import App
from penstock.worker.event_loop import loop_factory
from penstock.worker.parent_pipe import StopRequests
from penstock.worker.shared_status import SharedStatus
from penstock.worker.standard_streams import open_closed_streams
from penstock.worker.trials import VARIABLE, load, trial_settings
from penstock.worker.worker import Worker

_GRACE = 5.0
"""Seconds beyond `stop_timeout` that the process has to end after its parent."""


def main() -> None:
    """Run suspects until none waits. The parent passes app, settings and logging in the environment."""
    open_closed_streams()
    given = json.loads(os.environ.pop(VARIABLE))
    start_logging = pickle.loads(base64.b64decode(given["logging"]))
    if start_logging is not None:
        start_logging()
    settings = WorkerSettings(**{**given["settings"], "queues": tuple(given["settings"]["queues"])})
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(load(given["app"]), settings, start_logging))


async def _run(app: App, settings: WorkerSettings, start_logging: Callable[[], None] | None) -> None:
    status = SharedStatus.from_environment()
    assert status is not None
    worker = trial_worker(app, settings, status, start_logging)
    worker._owns_process = True
    requests = StopRequests(worker.stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, requests.signalled)
    requests.follow_parent(settings.stop_timeout + _GRACE)
    await worker.run()
    await app._driver.aio.aclose()


def trial_worker(
    app: App, settings: WorkerSettings, status: SharedStatus, start_logging: Callable[[], None] | None
) -> Worker:
    """A worker that runs suspects one at a time until none waits, for a worker with these settings."""
    worker = Worker(app, trial_settings(settings), start_logging=start_logging)
    worker._share_status(status)
    worker._try_suspects(settings.host_deaths, status.is_sole_trial)
    return worker
