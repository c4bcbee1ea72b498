"""Changing a waiting job: when it is due, its priority, its arguments."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from penstock.core.operations import Operation
from penstock.errors import BadCall
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.options import Options


class EncodedCall(Protocol):
    """A task with its arguments, as `task.call(…)` returns it."""

    @property
    def payload(self) -> bytes: ...
    @property
    def task(self) -> Any: ...


def edit_job(
    bindings: QueueBindings,
    key: str,
    *,
    delay: float | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    call: EncodedCall | None = None,
) -> Operation[bool]:
    """See `Job.edit`, `Job.promote` and `Job.reschedule`."""
    if delay is not None and at is not None:
        raise ValueError("delay and at: give one of them")
    Options(delay=0.0 if delay is None else delay, at=at, priority=5 if priority is None else priority)  # checks them
    if call is not None and not isinstance(getattr(call, "payload", None), bytes):
        raise BadCall(f"edit(call={call!r}): give a call, as in task.call(…)")
    word = yield bindings.edit(
        key,
        due=delay if at is None else at,
        priority=priority,
        task="" if call is None else call.task.name,
        payload=None if call is None else call.payload,
    )
    if word == "fixed":
        raise BadCall(
            f"job {bindings.keys.queue}:{key} has a limit or a unique key, or waits for others, which follows from its "
            "arguments: cancel it, and enqueue it again"
        )
    if word == "waits":
        raise BadCall(f"job {bindings.keys.queue}:{key} waits for other jobs: it has no date that could change")
    if word == "task":
        assert call is not None
        raise BadCall(f"job {bindings.keys.queue}:{key} is not of task {call.task.name!r}: its arguments are others")
    return bool(word == "edited")
