"""A handle on one enqueued job: wait for its result, read its status, cancel it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock import codec, sealing
from penstock.core.arguments import check_callback, check_number, check_wait
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, Wait, verb
from penstock.errors import (
    CancelTimeout,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    PenstockError,
    ResultNotKept,
    ResultTimeout,
)
from penstock.jobs import constants
from penstock.jobs.editing import EncodedCall, edit_job
from penstock.jobs.enqueue_reply import OnDouble
from penstock.jobs.failures import Attempt, Failures
from penstock.jobs.notes import JobProgress, LogLine, ProgressReports, read_notes
from penstock.jobs.record import Record, Seen, StoredJob
from penstock.jobs.stalls import warn_of_stall
from penstock.jobs.status import Status, status_of
from penstock.settings import Seal

if TYPE_CHECKING:
    from penstock.jobs.durable_bindings import StepInfo
    from penstock.jobs.flow_tree import FlowNode
    from penstock.jobs.log_lines import JobLines
    from penstock.jobs.output import JobOutput, OutputPart
    from penstock.jobs.shard import Shard
    from penstock.jobs.why import Explanation

R_co = TypeVar("R_co", covariant=True)


class ShardHandle:
    """A handle on something in one shard. It reaches the server through the shard's driver."""

    __slots__ = ("shard",)
    shard: Shard

    @property
    def _driver(self) -> Driver:
        return self.shard._driver


@dataclass(frozen=True, slots=True)
class JobInfo:
    """Everything the server has stored about a job. Times are seconds since 1970 by the server's clock.

    since              when it became ready, is due, or died
    attempts           runs that failed
    deliveries         how often it was handed to a worker
    crashes            how often in a row its process died while no other job ran there
    task               its name; "" for a value that was put
    started, ended, release  of a job that has ended: its last run, and the release of its worker
    tags               as `using(tags=…)` and its task have set them
    body               the value that was put; for the call of a task `[task, arguments]`. What is sealed and cannot be
                       opened here is a `Sealed`
    reason, traceback  of the last failure
    failures           the last five attempts that did not complete it, the latest first, as far as 16 KiB hold them
    result             of a completed job, as JSON types
    worker, claimed    of a running job: `host:pid` of its worker ("": a program without one), and when it got the job
    limit, limit_key   of a parked job: the limit that has no place for it, and the key that it has there. `limit` is ""
                       if the job's task or tenant is paused
    progress, log      as the job reported them; the last 16 KiB of its lines, the oldest first

    Of a finished job only `id`, `status`, `result` or `reason`, `progress` and `log` are known.
    """

    id: str
    status: Status
    tenant: str = ""
    priority: int | None = None
    enqueued: float | None = None
    since: float | None = None
    expires: float | None = None
    attempts: int = 0
    deliveries: int = 0
    crashes: int = 0
    body: Any = None
    reason: str = ""
    traceback: str = ""
    failures: tuple[Attempt, ...] = ()
    result: Any = None
    progress: JobProgress | None = None
    log: tuple[LogLine, ...] = ()
    worker: str = ""
    claimed: float | None = None
    task: str = ""
    limit: str = ""
    limit_key: str = ""
    tags: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    release: str = ""


class Job(ShardHandle, Generic[R_co]):
    """A handle on one job. Its `id` is all that another process needs to find the job again: `app.job(id)`."""

    __slots__ = ("_returns", "_ttl", "key")

    def __init__(
        self,
        shard: Shard,
        key: str,
        returns: msgspec.json.Decoder[Any] | None = None,
        ttl: float | None = None,
    ) -> None:
        self.shard = shard
        self.key = key
        self._returns = returns
        self._ttl = ttl

    @property
    def id(self) -> str:
        """`queue:key`, unique within the app."""
        return f"{self.shard.name}:{self.key}"

    @property
    def keeps_no_result(self) -> bool:
        """Whether the job was enqueued with result_ttl=0, as far as this handle knows."""
        return self._ttl == 0

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @verb
    def result(
        self, timeout: float | None = None, *, on_progress: Callable[[JobProgress], object] | None = None
    ) -> Operation[R_co]:
        """Wait until the job is done, and return what the task returned, decoded by its return annotation.

        timeout      seconds to wait; None: no limit, 0: do not wait
        on_progress  called with each new progress that the job reports while this call waits, without a round trip;
                     first with the present one. It must not block an event loop; an exception that it raises ends the
                     call

        Raises ResultTimeout if the job is not done by then; the job is unaffected, so ask again. Raises JobFailed for a
        dead letter, JobCancelled (also for a job that its task dropped), JobExpired, JobNotFound, and ResultNotKept
        at once for a job that was enqueued with result_ttl=0.

        One round trip if the job is done. Else two or three; in between, the call waits for a message and never polls.
        """
        if self._ttl == 0:
            raise ResultNotKept(f"job {self.id} was enqueued with result_ttl=0: its result is not kept")
        bindings, seal = self.shard.bindings, self.shard.settings.seal
        check_callback("result", "on_progress", on_progress)
        if timeout is not None:
            check_number("result", "timeout", timeout, -math.inf, math.inf, "seconds, or None for ever")
        if timeout is not None and timeout <= 0:
            return self._result_or_raise((yield bindings.result(self.key, "")), was_pending=False)
        deadline = None if timeout is None or timeout == math.inf else time.monotonic() + timeout
        listener = yield Listen(bindings.keys.base + self.key, shared=True)
        was_pending, known_done, reports = False, False, ProgressReports(on_progress, seal)
        try:
            while True:
                stored: StoredJob = yield bindings.result(self.key, listener.address)
                known_done = not _in_progress(stored)
                left = None if deadline is None else deadline - time.monotonic()
                if known_done or (left is not None and left <= 0):
                    break
                if stored.record is not None and stored.record.ttl == 0:
                    break
                if not was_pending and stored.owner is None:
                    warn_of_stall(self.id)
                was_pending = True
                if on_progress is not None and (progress := read_notes(stored.notes, seal).progress) is not None:
                    reports.show(progress)
                ends = math.inf if stored.expires_in is None else time.monotonic() + stored.expires_in
                until = ends if deadline is None else min(ends, deadline)
                while (messages := (yield Wait(listener, _seconds_until(until)))) and all(map(reports.read, messages)):
                    pass
        finally:
            # While other waiters in this process share the address, it stays registered.
            if listener.close() and not known_done:
                yield bindings.forget(self.key, listener.address)
        return self._result_or_raise(stored, was_pending=was_pending)

    def _result_or_raise(self, stored: StoredJob, *, was_pending: bool) -> R_co:
        """Return the result, or raise the error that explains why there is no result.

        `was_pending`: the caller saw the job before it ended, so a job that is missing now has ended.
        """
        status, seal = status_of(stored), self.shard.settings.seal
        text = (stored.done or b"")[1:]
        match status:
            case Status.COMPLETED:
                try:
                    text = sealing.open_body(text, seal, f"the result of job {self.id}")
                    answer: R_co = (
                        self._returns.decode(text) if self._returns else codec.decode(text, what="the result")
                    )
                except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
                    raise PenstockError(
                        f"the result of job {self.id} does not fit its annotation: {error}"
                    ) from error.__cause__
                return answer
            case Status.DEAD:
                why = Failures.read(stored.failures, seal)
                raise JobFailed(f"job {self.id} failed: {why.reason}", reason=why.reason, traceback=why.traceback)
            case Status.CANCELLED:
                cause = f": {text.decode(errors='replace')}" if text else ""
                raise JobCancelled(f"job {self.id} was cancelled{cause}")
            case Status.DROPPED:
                raise JobCancelled(f"job {self.id} was dropped by its task: {_said(text, seal)}")
            case Status.EXPIRED:
                raise JobExpired(f"job {self.id} expired before a worker was free")
            case Status.UNKNOWN:
                gone = (
                    "it finished and its result is gone"
                    if was_pending
                    else "never enqueued here, or its result is gone"
                )
                raise JobNotFound(f"no job {self.id}: {gone}")
            case Status.BLOCKED:
                raise ResultTimeout(
                    f"job {self.id} waits for other jobs, of which one is a dead letter: requeue that or remove it; "
                    "`penstock job tree` shows it"
                )
            case _ if stored.record is not None and stored.record.ttl == 0:
                raise ResultNotKept(f"job {self.id} was enqueued with result_ttl=0: its result is not kept")
            case Status.READY:
                raise ResultTimeout(
                    f"job {self.id} is ready, nobody has started it yet: does a worker serve queue {self.shard.name} "
                    "on this server (the same address, or the same folder's .penstock)?"
                )
            case Status.DELAYED if (failures := Failures.read(stored.failures, seal)).unread_since is not None:
                raise ResultTimeout(
                    f"job {self.id} waits for a worker that can read it: the last one handed it back "
                    f"({failures.reason}). "
                    f"Does each worker of queue {self.shard.name} import the module that defines the task?"
                )
            case _:
                raise ResultTimeout(f"job {self.id} is {status}, not finished yet; ask again later")

    @verb
    def status(self) -> RoundTrip[Status]:
        """The state of the job now. One round trip."""
        return self.shard.bindings.show(self.key).then(status_of)

    @verb
    def info(self) -> RoundTrip[JobInfo]:
        """Everything the server has stored about the job. One round trip; the body may be large."""
        return self.shard.bindings.show(self.key).then(
            lambda stored: info_of(self.id, stored, self.shard.settings.seal)
        )

    @verb
    def why(self) -> Operation[Explanation]:
        """Why the job does not run: a kind, a sentence, and facts. It answers for a job that runs or has ended, too.

        Raises JobNotFound for an unknown job. One round trip; for a job that waits for others one more, and one for
        each of their queues; for one that has ended, one more for each 2000 rows of its queue.
        """
        from penstock.jobs.why import explain

        return explain(self.shard, self.key)

    @verb
    def cancel(self, wait: float | None = 0.0) -> Operation[bool]:
        """Cancel the job. If it runs, its worker is asked to end it.

        A coroutine is cancelled at its `await`, a thread gets an exception at its next line of Python, and a process of
        its own (isolate=True) is killed. The job ends as cancelled, whatever its code does then.

        wait: seconds to wait for the end of a running job; 0: do not wait, None: no limit

        Returns True if the job is cancelled, by this or an earlier call; an earlier cancel is known for the job's
        `result_ttl`. Returns False if it is dead, done or unknown, and without `wait` also if it still runs. Raises
        CancelTimeout if it still runs after `wait` seconds, because its code cannot be interrupted.

        One round trip; with `wait` and a running job three or more, between which it waits for a message. If the result
        is not kept (result_ttl=0), any end of a running job counts as cancelled.
        """
        return cancel_job(self.shard, self.key, wait)

    def output(self, *, after: OutputPart | str | None = None, wait: float | None = None) -> JobOutput:
        """Chunks that the job emits by `current().emit`: `for part in job.output()`, or `async for`; while it runs too.

        after  a part, or its `id`: begin after it, for instance where a client's last connection ended. None: begin
               with the oldest part that is stored
        wait   seconds to wait for each further part, after which the loop ends; 0: only what there is, None: until the
               job is done

        The loop ends when the job is done or a dead letter; `job.result()` says how it ended. A job that runs again
        emits again: compare `part.attempt`. If `after` is of an earlier job with this id, the loop begins with the
        oldest part. Raises BadCall for an `after` that is no part; the loop raises JobNotFound for an unknown job.
        Round trips: see `JobOutput.fetch`.
        """
        from penstock.jobs.output import JobOutput

        return JobOutput(self.shard, self.key, after, wait)

    def log(self, *, after: LogLine | str | None = None, wait: float | None = None) -> JobLines:
        """Lines that the job logs by `current().log`: `for line in job.log()`, or `async for`; while it runs too.

        after  a line, or its `id`: begin after it. None: begin with the oldest line that is kept
        wait   seconds to wait for each further line, after which the loop ends; 0: only what there is, None: until the
               job is done

        The server keeps the last 16 KiB of lines, and the log as long as the result. Raises BadCall for an `after` that
        is no line; the loop raises JobNotFound for an unknown job. Round trips: see `JobLines.fetch`.
        """
        from penstock.jobs.log_lines import JobLines

        return JobLines(self.shard, self.key, after, wait)

    @verb
    def signal(self, name: str, payload: Any = None) -> RoundTrip[None]:
        """Send the job a signal, which its task receives with `wait_for(name)`: now, or when it reaches that call.

        payload  anything JSON can hold

        Raises JobNotFound if the job does not exist, or has ended, and PayloadTooLarge if its steps and signals would
        take more than 1 MiB. One round trip.
        """
        from penstock.jobs.durable_bindings import signal_job

        return signal_job(self.shard, self.key, name, payload)

    @verb
    def steps(self) -> RoundTrip[list[StepInfo]]:
        """The durable steps that the job has recorded, in their order; none once it is done. One round trip."""
        from penstock.jobs.durable_bindings import StepBindings

        return StepBindings(self.shard.bindings).show(self.key)

    @verb
    def tree(self, most: int = 1000) -> Operation[FlowNode]:
        """The job with the jobs that it waits or waited for, and with those that wait for it.

        Predecessors have theirs, and dependents have theirs: at most `most` jobs in each direction, the job included,
        the nearest first. Predecessors are known while the job waits, and then for an hour longer than its
        `result_ttl`; dependents of a job that has ended, and tasks of such jobs, from the latest 20,000 rows of their
        queue. Raises JobNotFound for a job that is gone. One round trip for the job, one for each 250 jobs that another
        one waits for, one for each 250 that wait for another one, and one for each 2000 rows.
        """
        from penstock.jobs.flow_tree import read_tree

        return read_tree(self.shard, self.key, most)

    @verb
    def cancel_tree(self) -> Operation[int]:
        """Cancel the job, the jobs that it waits for, their predecessors, and so on. Running ones are asked to end.

        Returns how many were cancelled or asked. Two round trips for each 250 jobs that another one waits for.
        """
        from penstock.jobs.flow_tree import cancel_tree

        return cancel_tree(self.shard, self.key)

    @verb
    def promote(self) -> Operation[bool]:
        """Make a delayed job ready now. Returns whether it waits for a worker now: False once it has started or ended.

        One round trip.
        """
        return edit_job(self.shard.bindings, self.key, delay=0.0)

    @verb
    def reschedule(self, delay: float | None = None, *, at: datetime | None = None) -> Operation[bool]:
        """Give a waiting job another due time: `delay` seconds from now, or the date `at`, with a time zone.

        Returns False, and changes nothing, once the job has started or ended. One round trip.
        """
        if (delay is None) == (at is None):
            raise ValueError("reschedule(): give a delay in seconds, or a date at=")
        return edit_job(self.shard.bindings, self.key, delay=delay, at=at)

    @verb
    def edit(self, *, priority: int | None = None, call: EncodedCall | None = None) -> Operation[bool]:
        """Change the priority or the arguments of a waiting job: `job.edit(call=send_email.call("bo@example.com",
        "Hi"))`.

        The job goes behind the other jobs of its tenant and priority. Returns False, and changes nothing, once the job
        has started or ended. Raises BadCall if the call is of another task than the job, and for the arguments of a
        job that has a limit or a unique key, or waits for others. One round trip.
        """
        if priority is None and call is None:
            raise ValueError("edit(): give a priority, or a call with new arguments")
        return edit_job(self.shard.bindings, self.key, priority=priority, call=call)


_ASK_AGAIN = 1.0
"""Seconds after which a caller that waits for the end of a cancelled job asks again: it may have been retried."""


def cancel_job(shard: Shard, key: str, wait: float | None) -> Operation[bool]:
    """See `Job.cancel`."""
    bindings = shard.bindings
    check_wait("cancel", wait)
    (word,) = yield bindings.cancel([key])
    if word != "running" or wait == 0:
        return bool(word == "cancelled")
    deadline = math.inf if wait is None else time.monotonic() + wait
    listener = yield Listen(bindings.keys.base + key, shared=True)
    has_ended = False
    try:
        while word == "running":
            stored: StoredJob = yield bindings.result(key, listener.address)
            if stored.record is None:
                has_ended = True
                return status_of(stored) in (Status.CANCELLED, Status.UNKNOWN)
            left = deadline - time.monotonic()
            if left <= 0:
                raise CancelTimeout(
                    f"job {shard.name}:{key} still runs, {wait:g} s after it was cancelled: code that blocks the event "
                    "loop, a thread in C code, or a program without a worker cannot be interrupted; isolate=True makes "
                    "a task that can. The job ends as cancelled as soon as its code returns"
                )
            yield Wait(listener, min(left, _ASK_AGAIN))
            (word,) = yield bindings.cancel([key])
        has_ended = True
        return word in ("cancelled", "none")
    finally:
        if listener.close() and not has_ended:
            yield bindings.forget(key, listener.address)


def becomes_double_of(jobs: Sequence[Job[Any]]) -> OnDouble:
    """Returns a callback that turns the handle of a double into a handle on the job that holds the key."""

    def change(position: int, key: str) -> None:
        jobs[position].key = key

    return change


def _seconds_until(time_: float) -> float | None:
    """Seconds until this `time.monotonic()`; None: no limit."""
    return None if time_ == math.inf else max(0.0, time_ - time.monotonic())


def _in_progress(stored: StoredJob) -> bool:
    """Whether the job is in the queue and not a dead letter."""
    return stored.done is None and stored.record is not None and stored.record.state != constants.DEAD


def _said(text: bytes, seal: Seal | None) -> str:
    """The words with which a job was dropped or cancelled."""
    return sealing.open_text(text.decode(errors="replace"), seal)


def shown_body(record: Record, seal: Seal | None) -> Any:
    """The value of a record, or `[task, arguments]`, for `JobInfo`."""
    body = codec.readable(record.payload, seal)
    return [record.task, body] if record.is_call else body


def info_of(job_id: str, stored: StoredJob, seal: Seal | None = None) -> JobInfo:
    """`seal`: opens what is sealed."""
    status, record = status_of(stored), stored.record
    why = Failures.read(stored.failures, seal)
    done, notes = (stored.done or b"")[1:], read_notes(stored.notes, seal)
    if record is None:
        result = codec.readable(done, seal) if status is Status.COMPLETED else None
        reason = _said(done, seal) if status in (Status.DROPPED, Status.CANCELLED) else ""
        return JobInfo(job_id, status, reason=reason, result=result, progress=notes.progress, log=notes.log)
    parked_at = record.parked_at if status is Status.PARKED else None
    limit, limit_key = parked_at or ("", "")
    return JobInfo(
        id=job_id,
        status=status,
        body=shown_body(record, seal),
        reason=why.reason,
        traceback=why.traceback,
        failures=why.attempts,
        progress=notes.progress,
        log=notes.log,
        worker=stored.worker,
        claimed=stored.claimed,
        limit=limit.partition(":")[2],
        limit_key=limit_key,
        **Seen(record, stored.owner is not None).values(JobInfo),
    )
