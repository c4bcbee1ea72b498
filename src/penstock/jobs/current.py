"""`current()`: the job that the calling code runs in.

The worker sets a context variable before it calls a task. So the task, its middleware, and the asyncio tasks that it
creates all see the job that they belong to. A thread that the task starts by itself sees it if it runs in a copy of the
context, as with `asyncio.to_thread`.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock.core.arguments import check_number, shown
from penstock.core.cost import MOST_UNITS
from penstock.core.operations import Driver, Operation, verb
from penstock.errors import BadCall, LeaseLost, NoCurrentJob, StepError
from penstock.jobs import stalls
from penstock.jobs.claims import Claim
from penstock.jobs.constants import LONGEST_HOLD
from penstock.jobs.definition import Definition
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.notes import encode_line, encode_progress
from penstock.jobs.output import encode_chunk
from penstock.jobs.record import Record, RecordView

if TYPE_CHECKING:
    from penstock.jobs.shard import Shard
    from penstock.jobs.stage import Stage


class Run(Protocol):
    """The worker's side of a running job."""

    @property
    def claim(self) -> Claim: ...
    @property
    def definition(self) -> Definition: ...
    @property
    def queue(self) -> str: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def shard(self) -> Shard: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def sole_task(self) -> str: ...
    def note(self, progress: bytes = b"", line: bytes | None = None) -> None:
        """Keep what the job reports until it is sent. Any thread may call it."""

    def emit(self, chunk: bytes) -> None:
        """Keep a chunk of the job's output until it is sent. Any thread may call it."""

    stage: Stage | None
    steps: Any
    """A `Steps`, once the task has called a durable step."""


running = cast("ContextVar[Run]", stalls.running)
"""The worker sets it to the run, before it calls the task."""

in_step: ContextVar[str] = ContextVar("penstock_step", default="")
"""The durable step whose function runs in this context."""


class CurrentJob(RecordView):
    """The job that the calling code runs in, from `current()`. Its attributes cost no round trip; verbs say what they
    cost.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id}>"

    @property
    def id(self) -> str:
        """`queue:key`, unique within the app."""
        return f"{self._run.queue}:{self._run.claim.id}"

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._run.definition.name

    @property
    def queue(self) -> str:
        """The name of its queue; in a queue with shards that of its shard, such as `mail~1`."""
        return self._run.queue

    @property
    def _record(self) -> Record:
        return self._run.claim.record

    @property
    def _runs(self) -> bool:
        return True

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` at which the task's timeout ends this run; None: the task has no timeout."""
        return self._run.deadline

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled. Code that cannot be interrupted asks from time to time."""
        return self._run.cancelled

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress of the job: a fraction from 0 to 1, and a text of at most 500 characters.

        `job.info()` has it, and `job.result(on_progress=…)` is called with it. The worker sends the latest report
        within half a second, in a round trip that it makes anyway or together with the reports of other jobs; so call
        it as often as you like. The report is lost if the process dies before that. Any thread may call it. Raises
        ValueError for a fraction out of range.
        """
        self._run.note(encode_progress(fraction, text))

    @property
    def stage(self) -> Stage:
        """Writes and calls that the server applies when it completes this job: all of them or none. See `Stage`.

        Raises StepError inside a durable step, whose function a later run does not call again.
        """
        if in_step.get():
            raise StepError(
                f"stage: step {in_step.get()!r} is not called again when the job runs again, so what it stages would "
                "be lost: stage in the task itself, from the step's result"
            )
        if self._run.stage is None:
            from penstock.jobs.stage import Stage

            self._run.stage = Stage(self._run.shard)
        return self._run.stage

    def emit(self, chunk: Any) -> None:
        """Append a chunk to the output of the job, which others read while it runs: `for part in job.output()`.

        chunk  anything JSON can hold: a token of a language model, a line of a build's log, a row; at most 256 KiB

        The worker sends what was emitted within 50 ms, in a round trip that it makes anyway or together with that of
        other jobs, and always before it settles the job; so call it as often as you like. The server keeps the last 1
        MiB or 100,000 chunks of a job, for as long as its result. What was not sent is lost if the process dies, and so
        is what a run emits that has lost its lease. Any thread may call it.

        A job that runs again emits again; each part names its run. Raises BadCall for a value that JSON cannot
        hold, and PayloadTooLarge.
        """
        self._run.emit(encode_chunk(chunk))

    def log(self, text: str) -> None:
        """Keep a line with the job, for `job.info()` and `penstock job show`. Sent as `progress` is.

        The server keeps the last 16 KiB of a job's lines, for as long as it keeps the job or its result. A line is cut
        after 2000 characters. Any thread may call it.
        """
        self._run.note(line=encode_line(text))

    # --- its limits ---

    @property
    def _driver(self) -> Driver:
        return self._run.shard._driver

    @verb
    def hold(self, name: str, *, seconds: float) -> Operation[None]:
        """Close the job's key of a rate, so that no job of the key starts: `current().hold("crm", seconds=30)`.

        For a service that answers "too many requests", and says when to come again. Jobs that run continue, and so
        does this one; to let it wait as well, raise `RetryLater` afterwards. An earlier hold that lasts longer stays.
        `name`: that of the limit, which is the name of the task unless it has another.

        One round trip. Raises BadCall for a name that is not that of a `Rate` of this job, ValueError for seconds that
        are not above 0 and at most a year, and LeaseLost if another worker has the job now.
        """
        check_number("hold", "seconds", seconds, 0.001, LONGEST_HOLD / 1000, "seconds above 0, up to a year")
        key = self._rate(f"hold({shown(name)})", name)
        bindings = LimitBindings(self._run.shard.bindings)
        until: int = yield bindings.hold(self._run.incarnation, self._run.claim.token, key, round(seconds * 1000))
        if until < 0:
            raise self._lost()

    @verb
    def used(self, name: str, units: float) -> Operation[None]:
        """Book what this run really takes of a rate: `current().used("tokens", 1234)`.

        `units` is the whole amount of this run, not what is added, and a part of a unit counts as one. It replaces the
        cost of the job, or what the run has booked before. If it is more, the next job of the key starts later. If it
        is less, the rate gets the rest back, except for units that have come back by themselves since the claim. A
        later run takes the whole cost again.

        One round trip; a repeated call changes nothing. Raises BadCall for a name that is not that of a `Rate` of this
        job, ValueError for units out of range, and LeaseLost if another worker has the job now.
        """
        check_number("used", "units", units, 0, MOST_UNITS, f"a number of units from 0 to {MOST_UNITS:,}")
        key = self._rate(f"used({shown(name)})", name)
        bindings = LimitBindings(self._run.shard.bindings)
        before: int = yield bindings.used(self._run.incarnation, self._run.claim.token, key, math.ceil(units))
        if before < 0:
            raise self._lost()

    def _rate(self, what: str, name: str) -> str:
        """The name=key of one of the job's rates. Raises BadCall."""
        limits = self._record.limits
        for stored, key in limits:
            if stored == f"r:{name}":
                return f"{stored}={key}"
        if any(stored == f"c:{name}" for stored, _ in limits):
            raise BadCall(f"{what}: this is a limit of concurrency; only a Rate can be held or booked")
        rates = ", ".join(repr(stored[2:]) for stored, _ in limits if stored.startswith("r:")) or "none"
        raise BadCall(f"{what}: job {self.id} has no rate of this name; its rates are: {rates}")

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"job {self.id}: this worker does not hold it any longer; it runs elsewhere")


def current() -> CurrentJob:
    """The job that the calling code runs in. No round trip.

    Raises NoCurrentJob outside of a job: also where a task is called directly, as a function.
    """
    run = running.get(None)
    if run is None:
        raise NoCurrentJob(
            "current(): this code runs in no job. A worker sets the job when it runs a task; a direct call of the "
            "task, or a thread without a copy of the context (contextvars.copy_context().run), has none"
        )
    return CurrentJob(run)
