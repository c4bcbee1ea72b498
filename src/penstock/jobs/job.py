"""A handle on one enqueued job: its result, its status, cancel."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from penstock import codec
from penstock.core.operations import Driver, Listen, Operation, RoundTrip, Wait, verb
from penstock.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    PenstockError,
    ResultNotKept,
    ResultTimeout,
)
from penstock.jobs.bindings import Found, QueueBindings

R = TypeVar("R")


class Home(Protocol):
    """The queue a job is in."""

    name: str
    bindings: QueueBindings

    @property
    def _driver(self) -> Driver: ...


H = TypeVar("H", bound=Home)


class OfQueue(Generic[H]):
    """Something that belongs to a queue, and reaches the server the way the queue does."""

    __slots__ = ("_queue",)
    _queue: H

    @property
    def _driver(self) -> Driver:
        return self._queue._driver


class Status(StrEnum):
    """The states of a job; the last five are ends."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DROPPED = "dropped"
    UNKNOWN = "unknown"
    """Never enqueued here, or finished longer ago than its `result_ttl`."""


_STATES = {b"s": Status.SCHEDULED, b"r": Status.READY, b"x": Status.RUNNING, b"d": Status.DEAD}
_ENDS = {b"c": Status.COMPLETED, b"x": Status.CANCELLED, b"e": Status.EXPIRED, b"d": Status.DROPPED}


class Reason(msgspec.Struct, omit_defaults=True):
    """Why a job failed last, as it is kept in the server."""

    reason: str
    traceback: str = ""
    worker: str = ""
    unknown_limit: int = 0

    @classmethod
    def read(cls, data: bytes | None) -> Reason:
        """Never raises: what is kept may have been written by hand."""
        try:
            return msgspec.json.decode(data or b"", type=cls)
        except (ValueError, RecursionError):
            return cls((data or b"").decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class JobInfo:
    """All the server knows of a job. Times are seconds since 1970 by the server's clock; None where unknown."""

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
    result: Any = None


def status_of(found: Found) -> Status:
    if found.record is not None:
        return _STATES.get(found.record.state, Status.UNKNOWN)
    return _ENDS.get(found.done[:1], Status.UNKNOWN) if found.done else Status.UNKNOWN


class Job(OfQueue[Home], Generic[R]):
    """A job that was enqueued: `id` is all one needs to find it again (`app.job(id)`)."""

    __slots__ = ("_returns", "_ttl", "key")

    def __init__(
        self,
        queue: Home,
        key: str,
        *,
        returns: msgspec.json.Decoder[Any] | None = None,
        ttl: float | None = None,
    ) -> None:
        self._queue = queue
        self.key = key
        self._returns = returns
        self._ttl = ttl

    @property
    def id(self) -> str:
        """`queue:key`, unique in the app."""
        return f"{self._queue.name}:{self.key}"

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @verb
    def result(self, timeout: float | None = None) -> Operation[R]:
        """What the task returned, as its return annotation says. Waits without polling.

        timeout: seconds; None for ever, 0 answers at once. Raises ResultTimeout when it is not done by then,
        JobFailed for a dead letter, JobCancelled, JobExpired, JobNotFound, and ResultNotKept at once for a job
        that was enqueued with result_ttl=0. One round trip when it is done.
        """
        if self._ttl == 0:
            raise ResultNotKept(f"job {self.id} was enqueued with result_ttl=0: its result is not kept")
        bindings = self._queue.bindings
        if timeout is not None and timeout <= 0:
            return self._answer((yield bindings.result(self.key, "")), waited=False)
        deadline = None if timeout is None or timeout == math.inf else time.monotonic() + timeout
        waiter = yield Listen(bindings.keys.inbox)
        seen = False
        try:
            while True:
                found = yield bindings.result(self.key, waiter.address)
                left = None if deadline is None else deadline - time.monotonic()
                if found.done or found.record is None or found.record.state == b"d" or (left is not None and left <= 0):
                    break
                if found.record.ttl == 0:
                    break
                seen = True
                yield Wait(waiter, left)
            if found.done is None and found.record is not None and found.record.state != b"d":
                yield bindings.forget(self.key, waiter.address)
        except BaseException:
            yield bindings.forget(self.key, waiter.address)
            raise
        finally:
            waiter.close()
        return self._answer(found, waited=seen)

    def _answer(self, found: Found, *, waited: bool) -> R:
        status = status_of(found)
        text = (found.done or b"")[1:]
        match status:
            case Status.COMPLETED:
                try:
                    answer: R = self._returns.decode(text) if self._returns else codec.decode(text, what="the result")
                except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
                    raise PenstockError(f"the result of job {self.id} does not fit its annotation: {error}") from error
                return answer
            case Status.DEAD:
                why = Reason.read(found.reason)
                raise JobFailed(f"job {self.id} failed: {why.reason}", reason=why.reason, traceback=why.traceback)
            case Status.CANCELLED:
                raise JobCancelled(f"job {self.id} was cancelled")
            case Status.DROPPED:
                raise JobCancelled(f"job {self.id} was dropped by its task: {text.decode(errors='replace')}")
            case Status.EXPIRED:
                raise JobExpired(f"job {self.id} expired before a worker was free")
            case Status.UNKNOWN:
                gone = "it finished and its result is gone" if waited else "never enqueued here, or its result is gone"
                raise JobNotFound(f"no job {self.id}: {gone}")
            case _ if found.record is not None and found.record.ttl == 0:
                raise ResultNotKept(f"job {self.id} was enqueued with result_ttl=0: its result is not kept")
            case Status.READY:
                raise ResultTimeout(
                    f"job {self.id} is ready, nobody has started it yet: does a worker serve queue {self._queue.name} "
                    "on this server (the same address, or the same folder's .penstock)?"
                )
            case _:
                raise ResultTimeout(f"job {self.id} is {status}, not finished yet; ask again later")

    @verb
    def status(self) -> RoundTrip[Status]:
        """Where the job is now. One round trip."""
        return self._queue.bindings.show(self.key).then(status_of)

    @verb
    def info(self) -> RoundTrip[JobInfo]:
        """Everything the server knows of the job. One round trip; the body may be large."""
        return self._queue.bindings.show(self.key).then(lambda found: info_of(self.id, found))

    @verb
    def cancel(self) -> RoundTrip[bool]:
        """Take a job that waits out of the queue. True: it will not run (also when it was cancelled before).

        False: it runs, is done, or is unknown; a running job goes on. One round trip.
        """
        return self._queue.bindings.cancel([self.key]).then(lambda words: words == ["cancelled"])


def info_of(job_id: str, found: Found) -> JobInfo:
    status, record = status_of(found), found.record
    why = Reason.read(found.reason) if found.reason else Reason("")
    done = (found.done or b"")[1:]
    if record is None:
        result = _readable(done) if status is Status.COMPLETED else None
        reason = done.decode(errors="replace") if status in (Status.DROPPED, Status.CANCELLED) else ""
        return JobInfo(job_id, status, reason=reason, result=result)
    return JobInfo(
        job_id, status, record.tenant, record.priority, record.enqueued / 1000, record.since / 1000,
        record.expires / 1000 or None, record.attempts, record.deliveries, record.crashes, _readable(record.payload),
        why.reason, why.traceback,
    )  # fmt: skip


def _readable(data: bytes) -> Any:
    """For people to look at: damaged bytes are shown, not raised."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return data.decode(errors="backslashreplace")
