"""Changing a waiting job (when it is due, its priority, its arguments) or a dead letter (its arguments)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Operation, RoundTrip
from penstock.errors import BadCall, SealError, UniqueKeyHeld
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.constants import TAGS
from penstock.jobs.options import Options
from penstock.jobs.record import POWERS_AT, StoredJob, read_sections
from penstock.jobs.sealed import seal_payload


class EncodedCall(Protocol):
    """A task with its arguments, as `task.call(…)` returns it."""

    @property
    def payload(self) -> bytes: ...
    @property
    def powers(self) -> bytes: ...
    @property
    def task(self) -> Any: ...
    def draft(self) -> tuple[str, bytes]: ...
    def belonging_to(self, queue: Any, tenant: str, priority: int, tags: Sequence[str]) -> EncodedCall: ...
    def job(self, key: str) -> Any: ...


def requeue_edited(bindings: QueueBindings, key: str, call: EncodedCall) -> Operation[bool]:
    """See `DeadLetters.requeue` with a call."""
    check_call("requeue", call)
    stored: StoredJob = yield bindings.show(key)
    if (was := stored.record) is not None:
        call = call.belonging_to(call.task.queue, was.tenant, was.priority, was.tags)
    _, draft = call.draft()
    job = f"{bindings.keys.queue}:{key}"
    answer = yield requeue_with(bindings, key, draft)
    if isinstance(answer, list):
        holder = f"{bindings.keys.queue}:{answer[0]}"
        raise UniqueKeyHeld(
            f"job {job} stays a dead letter: job {holder} holds the unique key of the new arguments", holder=holder
        )
    if answer == "fixed":
        raise BadCall(
            f"job {job} has results of other jobs among its arguments, which cannot change: enqueue the call anew, and "
            "remove the dead letter"
        )
    if answer == "task":
        raise other_task(job, call)
    if answer == "sealed":
        raise without_seal(job)
    return bool(answer == "requeued")


def requeue_with(bindings: QueueBindings, key: str, draft: bytes) -> RoundTrip[str | list[str]]:
    """Give a dead letter the arguments of a draft, and make it ready again (see `editing.lua`)."""
    return bindings._call("requeue_edited", (*UNNUMBERED, bindings.clock.now_ms, key, draft), _read_answer)


def _read_answer(reply: Any) -> Any:
    return [one.decode(errors="replace") for one in reply] if isinstance(reply, list) else reply.decode()


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
    if call is not None:
        check_call("edit", call)
    due = delay if at is None else at
    if call is None:
        word = yield bindings.edit(key, due=due, priority=priority)
    else:
        tags = read_sections(call.task.record_start[POWERS_AT], call.powers)[0].get(TAGS, b"")
        sealed_by, payload = seal_payload(call.payload, call.task.queue.settings, f"{call.task.name}()")
        word = yield bindings.edit(
            key, due=due, priority=priority, task=call.task.name, payload=payload, tags=tags, key=sealed_by
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
        raise other_task(f"{bindings.keys.queue}:{key}", call)
    if word == "sealed":
        raise without_seal(f"{bindings.keys.queue}:{key}")
    return bool(word == "edited")


def check_call(verb: str, call: Any) -> None:
    """Raise BadCall for what is no call."""
    if not isinstance(getattr(call, "payload", None), bytes):
        raise BadCall(f"{verb}(call={call!r}): give a call, as in task.call(…)")


def without_seal(job: str) -> SealError:
    """The error for arguments that would take the place of sealed ones without being sealed."""
    return SealError(
        f"the arguments of job {job} are sealed, and this program has no codec to seal other ones: give it that of the "
        "app with seal= or PENSTOCK_SEAL, or start it with --app"
    )


def other_task(job: str, call: EncodedCall) -> BadCall:
    """The error for the call of another task than that of the job."""
    return BadCall(f"job {job} is not of task {call.task.name!r}: its arguments are others")
