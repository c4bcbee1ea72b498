"""The asyncio tasks of jobs. They remember whose code has cancelled them."""

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
    """A JobTask, or what the task factory of the loop makes, if it has one.

    It never starts before this function has returned: a worker notes the task first. An eager factory would start it.
    """
    factory = loop.get_task_factory()
    if factory is not None and not getattr(factory, "__qualname__", "").startswith("create_eager_task_factory"):
        return loop.create_task(work, context=context)
    task = JobTask(work, loop=loop, context=context)
    task.cancellers = ()
    return task


def cancelled_by_others(run: Run, task: asyncio.Task[Any] | None = None) -> bool:
    """Whether the asyncio task, or the current one, is cancelled, and not for certain by the code of this job alone."""
    task = task or asyncio.current_task()
    if task is None or not task.cancelling():
        return False
    return not isinstance(task, JobTask) or any(one is not run for one in task.cancellers)
