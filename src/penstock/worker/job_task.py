"""The asyncio tasks of jobs. Each remembers which job's code has cancelled it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from penstock.jobs.current import Run, running


class JobTask(asyncio.Task[None]):
    """The asyncio task of a job.

    cancellers  for each call of `cancel`, the job whose code has called it; None: other code, such as the program's.
                A timer or a callback that a job has set belongs to the job, because it runs in a copy of its context
    """

    __slots__ = ("cancellers",)

    cancellers: tuple[Run | None, ...]

    def cancel(self, msg: Any | None = None) -> bool:
        self.cancellers = (*self.cancellers, running.get(None))
        return super().cancel(msg)


def create_job_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], context: contextvars.Context
) -> asyncio.Task[None]:
    """Create a JobTask or, if the loop has a task factory, a task of that factory.

    The task never starts before this function returns, so that the worker can note it first. An eager factory is
    therefore not used: it would start the task at once.
    """
    factory = loop.get_task_factory()
    if factory is not None and not getattr(factory, "__qualname__", "").startswith("create_eager_task_factory"):
        return loop.create_task(work, context=context)
    task = JobTask(work, loop=loop, context=context)
    task.cancellers = ()
    return task


def cancelled_by_others(run: Run) -> bool:
    """Whether code other than this job's may have cancelled the current asyncio task."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    return not isinstance(task, JobTask) or any(one is not run for one in task.cancellers)
