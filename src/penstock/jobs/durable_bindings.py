"""The scripts of `durable.lua` as round trips, and what a job has recorded, as users read it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock import codec
from penstock.core.idempotency import UNNUMBERED
from penstock.core.keys import check_text
from penstock.core.operations import RoundTrip
from penstock.errors import ConfigurationError, JobNotFound, PayloadTooLarge
from penstock.jobs.constants import ANSWER, CHILD, FAILED, FAILURE, PATCH, RESULT, SIGNAL, TIMEOUT, WAITS
from penstock.settings import MiB

if TYPE_CHECKING:
    from penstock.jobs.bindings import QueueBindings
    from penstock.jobs.shard import Shard

_HEADER: Final = struct.Struct(">cHIB")
_STEP: Final = b"="

RecordedKind: TypeAlias = Literal[
    "result", "failed", "waits", "signal", "timeout", "child", "answer", "failure", "patch"
]

_KINDS: Final[dict[bytes, RecordedKind]] = {
    RESULT: "result",
    FAILED: "failed",
    WAITS: "waits",
    SIGNAL: "signal",
    TIMEOUT: "timeout",
    CHILD: "child",
    ANSWER: "answer",
    FAILURE: "failure",
    PATCH: "patch",
}

PATCH_SIGN: Final = "%"
"""Precedes the name of a patch in the key of its record."""


_NOT_SIGNALLED: Final = {"done": "it has ended", "none": "never enqueued here, or it has ended"}

LONGEST_NAME: Final = 200
"""Bytes of the name of a step or a signal."""


def check_name(kind: str, name: str) -> str:
    """The name of a step or a signal. Raises ConfigurationError."""
    if len(check_text(kind, name).encode()) > LONGEST_NAME:
        raise ConfigurationError(f"{kind} name {name[:40]!r}…: at most {LONGEST_NAME} bytes of UTF-8")
    return name


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded step, as the server stores it.

    kind   result   of a function
           failed   the function raised an error that the task has caught
           waits    for a signal, or until a time: `value` is the server ms at which that ends, 0: never
           signal   received, with its payload
           timeout  no signal came in time
           child    the step runs a child, which has not ended
           answer   the child has completed
           failure  the child has ended otherwise
           patch    the task takes the new branch of a changed program
    at     server ms
    name   of the function, the signal, or the task of a child; "" for a sleep
    value  JSON; of a child see `ChildRecord`
    """

    kind: RecordedKind
    at: int
    name: str
    value: bytes

    @property
    def is_of_function(self) -> bool:
        """Whether this records how the call of a function ended."""
        return self.kind in ("result", "failed")

    @property
    def is_of_child(self) -> bool:
        """Whether this records the run of a child."""
        return self.kind in ("child", "answer", "failure")

    @property
    def does(self) -> str:
        """What the step does, in the words of its call."""
        if self.is_of_function or self.kind == "patch":
            return self.name or "patched"
        if self.is_of_child:
            return f"run {self.name}"
        return f"wait_for {self.name}" if self.name else "sleep"

    @classmethod
    def read(cls, packed: bytes) -> Recorded:
        """Raises ValueError for bytes that another program wrote."""
        try:
            letter, high, low, size = _HEADER.unpack_from(packed)
            end = _HEADER.size + size
            return cls(_KINDS[letter], (high << 32) + low, packed[_HEADER.size : end].decode(), packed[end:])
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"a recorded step is damaged: {error!r}") from error


class ChildRecord(NamedTuple):
    """The value of a recorded step that runs a child.

    queue   of the child; "": that of its parent
    key     its id in that queue
    answer  what it returned, as JSON; or the letter of how it ended, and a text
    """

    queue: str
    key: str
    answer: bytes

    @classmethod
    def of(cls, one: Recorded) -> ChildRecord:
        """Raises ValueError for bytes that another program wrote."""
        size = int.from_bytes(one.value[:2])
        job, answer = one.value[2 : 2 + size], one.value[2 + size :]
        if not job or len(job) < size:
            raise ValueError(f"the recorded child of a step is damaged: {one.value[:40]!r}")
        return cls(*_named_job(job), answer)

    def id(self, queue: str) -> str:
        """The id of the child of a job in `queue`."""
        return f"{self.queue or queue}:{self.key}"


def _named_job(packed: bytes) -> tuple[str, str]:
    """Queue ("": the same) and key of a job in the form of `predecessors` (`flow.lua`)."""
    size = packed[0]
    return packed[1 : 1 + size].decode(), packed[1 + size :].decode(errors="replace")


def job_id(packed: bytes, queue: str) -> str:
    """The id of a job in the form of `predecessors`. `queue`: the one that has the list."""
    other, key = _named_job(packed)
    return f"{other or queue}:{key}"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One recorded step of a job.

    step   its number or its name
    does   the function, `sleep`, `wait_for NAME`, `run TASK` or `patched`
    state  done, failed, waiting (until `ends`), or timed out
    at     seconds since 1970 by the server's clock, when this was recorded
    ends   when a wait ends by itself; None: it has no end, or the step does not wait
    job    the id of the child that the step runs; "": it runs none
    """

    step: str
    does: str
    state: Literal["done", "failed", "waiting", "timed out"]
    at: float
    ends: float | None = None
    job: str = ""


def _info(step: str, one: Recorded, queue: str) -> StepInfo:
    states: dict[str, Literal["failed", "waiting", "timed out"]] = {
        "failed": "failed",
        "waits": "waiting",
        "timeout": "timed out",
        "child": "waiting",
        "failure": "failed",
    }
    state: Literal["done", "failed", "waiting", "timed out"] = states.get(one.kind, "done")
    ends = int(one.value) / 1000 if one.kind == "waits" and int(one.value) else None
    if ends is not None and not one.name and ends <= datetime.now(UTC).timestamp():
        state = "done"
    job = ChildRecord.of(one).id(queue) if one.is_of_child else ""
    return StepInfo(step.removeprefix(PATCH_SIGN), one.does, state, one.at / 1000, ends, job)


class LoadedSteps(NamedTuple):
    """What a job has recorded: the server's time in ms, the steps, and the release that recorded the first one."""

    now: int
    steps: dict[str, Recorded]
    release: str


class ChildRow(NamedTuple):
    """A child for `run_children`: the key of its step, its queue ("": that of its parent), its id, task and draft."""

    step: str
    queue: str
    key: str
    task: str
    draft: bytes


CHILDREN: Final = 250
"""Children that one round trip enqueues. They take the server a few milliseconds."""


class StepBindings:
    """Builds the round trips about the durable steps of one queue's jobs. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def load(self, incarnation: str, token: bytes) -> RoundTrip[LoadedSteps | None]:
        """What a running job has recorded. None: the incarnation does not hold it."""

        def read(reply: Sequence[Any]) -> LoadedSteps | None:
            if not reply:
                return None
            now, release, *rest = reply
            pairs = zip(rest[0::2], rest[1::2], strict=True)
            recorded = {step.decode(): Recorded.read(packed) for step, packed in pairs}
            return LoadedSteps(now, recorded, (release or b"").decode(errors="replace"))

        return self._queue._call("load_steps", (self._queue.clock.now_ms, incarnation, token), read)

    def record(
        self, incarnation: str, token: bytes, step: str, name: str, value: bytes, kind: bytes = RESULT
    ) -> RoundTrip[Recorded | int | None]:
        """Record the result of a step, its error (FAILED), or that a patch counts for the job (PATCH).

        Returns None if it was recorded; a `Recorded` if the step was recorded before, in which case that counts; -1 if
        the incarnation does not hold the job; or, if the job has no room for it, how many bytes the job has recorded.
        """

        def read(reply: Sequence[Any]) -> Recorded | int | None:
            if reply[0] == 0:
                return -1
            if reply[0] == -1:
                return int(reply[1])
            return Recorded.read(reply[1]) if len(reply) > 1 else None

        args = (self._queue.clock.now_ms, incarnation, token, step, kind, name, value)
        return self._queue._call("record_step", args, read)

    def receive(self, incarnation: str, token: bytes, step: str, name: str) -> RoundTrip[Recorded | bool]:
        """Have a step receive a signal or the time-out. True: it has to wait. False: the job is not held."""

        def read(reply: Sequence[Any]) -> Recorded | bool:
            return Recorded.read(reply[1]) if reply[0] == 1 else reply[0] == 2

        args = (self._queue.clock.now_ms, incarnation, token, step, name)
        return self._queue._call("receive_signal", args, read)

    def run_children(
        self, incarnation: str, token: bytes, children: Sequence[ChildRow], *, durable: bool
    ) -> RoundTrip[int | None]:
        """Enqueue children of a running job, at most `CHILDREN`. Steps that have their child already are skipped.

        Returns None, -1 or the bytes that the job has recorded, as `record` does.
        """

        def read(reply: Sequence[int]) -> int | None:
            if reply[0] == 1:
                return None
            return reply[1] if reply[0] == -1 else -1

        rows = tuple(part for child in children for part in child)
        args = (self._queue.clock.now_ms, incarnation, token, *rows)
        return RoundTrip(self._queue._scripts["run_children"], self._queue._declared, args, read, durable)

    def signal(self, job_id: str, name: str, payload: bytes) -> RoundTrip[str]:
        """Store a signal for a job. Returns sent, full, done or none."""
        args = (*UNNUMBERED, self._queue.clock.now_ms, job_id, name, payload)
        return self._queue._call("signal", args, lambda reply: str(reply.decode()))

    def show(self, job_id: str) -> RoundTrip[list[StepInfo]]:
        """The recorded steps of a job in their order, and a line for each kind of signal that no step has received."""

        def read(reply: Sequence[Any]) -> list[StepInfo]:
            pairs = dict(zip(reply[0::2], reply[1::2], strict=True))
            queue = self._queue.keys.queue
            found = [_info(k[1:].decode(), Recorded.read(v), queue) for k, v in pairs.items() if k[:1] == _STEP]
            found.sort(key=lambda one: (one.at, (int(one.step), "") if one.step.isdigit() else (0, one.step)))
            return found

        return self._queue._call("show_steps", (job_id,), read)


def suspension(step: str, name: str) -> bytes:
    """The text of a settlement with the verb `suspend`: the step, and the signal that it waits for."""
    encoded, signal = step.encode(), name.encode()
    return len(encoded).to_bytes(2) + encoded + bytes([len(signal)]) + signal


def signal_job(shard: Shard, key: str, name: str, payload: Any) -> RoundTrip[None]:
    """See `Job.signal`."""

    def check(word: str) -> None:
        if word == "full":
            raise PayloadTooLarge(
                f"job {shard.name}:{key}: with this signal its steps and signals take more than 1 MiB: send "
                "the address of the data"
            )
        if word != "sent":
            raise JobNotFound(f"no job {shard.name}:{key} waits or runs: {_NOT_SIGNALLED[word]}")

    what = f"the payload of signal {name!r}"
    encoded = codec.encode(payload, limit=MiB, what=what, seal=shard.settings.seal)
    return StepBindings(shard.bindings).signal(key, check_name("signal", name), encoded).then(check)
