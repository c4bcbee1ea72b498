"""A warning for a job that waits for another one in a worker that runs one job at a time, and cannot run the other."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, Final

log = logging.getLogger("penstock.worker")


running: ContextVar[Any] = ContextVar("penstock_job")
"""The `Run` of the job that runs here; see `current.running`, which is this variable."""

_warned: Final[set[str]] = set()
"""The tasks that were warned of in this process. A run that is isolated has a process of its own."""


def warn_of_stall(job_id: str) -> None:
    """Warn, once per task and process, if the caller may stall: it is about to wait for a job that does not run."""
    run = running.get(None)
    task = "" if run is None else run.sole_task
    if not task or task in _warned:
        return
    _warned.add(task)
    log.warning(
        "task %s waits for the result of job %s in a process that runs one job at a time: unless another process is "
        "free, that job never starts, and both wait for ever. Write `await run(task.call(…))`, which runs the other "
        "job as a child and frees the process meanwhile; or enqueue what needs the result with using(after=job); or "
        "run the worker with a higher concurrency",
        task,
        job_id,
    )
