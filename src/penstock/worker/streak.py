"""A streak: `async def` jobs that never suspend, one after another in one asyncio task.

    streak ──▶ job, job, job … ─┬─▶ a job suspends: the asyncio task is its own from then on  ─┐
       ▲                        └─▶ 64 jobs, 1 ms, or a job that leaves a trace in the task   ─┤
       └──────────────────────────────── a new asyncio task ◀─────────────────────────────────┘

To create an asyncio task and to let the loop start it costs several times as much as to run a short job. A job
notices no difference: it has a context of its own, and the asyncio task is either its own or untouched by the jobs
before it. `places.py` runs the streaks; this module knows which jobs fit into one.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final

MOST_JOBS: Final = 64
"""The most jobs of one streak."""

LONGEST: Final = 0.001
"""Seconds after which a streak starts no further job, so that the loop soon does its other work."""

ALONE: Final = 31
"""After a job that did not fit into its streak, this many further jobs of its task run outside of streaks."""


class StreakHabits:
    """Remembers which tasks fit into streaks, judged by their last jobs.

    A task whose job has suspended, or whose jobs take longer than a streak may, probably does so again. So its next
    jobs get an asyncio task each, which the loop starts all at once, before one job tries the streak again.
    """

    def __init__(self) -> None:
        self._alone: dict[str, int] = {}
        """How many further jobs of a task, by its name, run outside of streaks."""
        self._overlong = ""
        """The task whose last job in a streak took longer than a streak may; '' if that job was short enough."""

    def admit(self, task: str) -> bool:
        """Whether a streak runs the next job of this task. Otherwise the job gets an asyncio task of its own."""
        left = self._alone.get(task, 0)
        if left:
            self._alone[task] = left - 1
        return not left

    def suspended(self, task: str) -> None:
        """A job of this task has suspended."""
        self._alone[task] = ALONE

    def ended(self, task: str, seconds: float) -> None:
        """A job of this task has ended in the streak."""
        if seconds > LONGEST:
            if self._overlong == task:  # twice in a row, so the system did not just interrupt one job
                self._alone[task] = ALONE
            self._overlong = task
        elif self._overlong == task:
            self._overlong = ""


@coroutine
def rest_of(
    started: Coroutine[Any, Any, Any], awaited: object, context: contextvars.Context | None = None
) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that has yielded `awaited`. `await` could only run a coroutine that has not started."""
    send: Callable[[Any], Any] = started.send
    throw: Callable[[BaseException], Any] = started.throw
    if context is not None:
        run: Any = context.run
        send, throw = partial(run, send), partial(run, throw)
    while True:
        thrown = value = None
        try:
            value = yield awaited
        except BaseException as error:
            thrown = error
        # Outside of `except`, so that what the coroutine raises later does not get `thrown` as its context.
        try:
            awaited = send(value) if thrown is None else throw(thrown)
        except StopIteration as done:
            return done.value
        finally:
            del thrown  # which refers to this frame


def traces(task: asyncio.Task[Any]) -> tuple[object, ...]:
    """Everything about the asyncio task of a streak that one job can change and a later job in it would notice.

    These are references to the task, through which code can later cancel it or attach data to it, a cancellation of the
    task, its name, and its callbacks.
    """
    return (
        sys.getrefcount(task),
        weakref.getweakrefcount(task),
        task.cancelling(),
        getattr(task, "_must_cancel", False),
        task.get_name(),
        len(getattr(task, "_callbacks", None) or ()),
    )
