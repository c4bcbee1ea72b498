"""A schedule: its definition, and what the server has stored about it. `schedule.lua` is the specification."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock import codec
from penstock.core.arguments import is_text, shown
from penstock.errors import ConfigurationError
from penstock.jobs.constants import DEAD, SCHEDULED
from penstock.jobs.record import Record
from penstock.jobs.status import ENDS, Status
from penstock.jobs.timing import Timing
from penstock.settings import Seal

ScheduleState: TypeAlias = Literal["active", "paused", "unserved", "orphaned"]

ORPHANED_AFTER: Final = 86400.0
"""A schedule is orphaned after this many seconds without a live worker that declares it."""

_HEADER: Final = struct.Struct(">B HI HI c HI HI HI I 8s H")
_LONGEST_NAME: Final = 120


def check_name(name: str) -> str:
    """The name of a schedule. Raises ConfigurationError for a name that a job's id cannot contain."""
    if not is_text(name, 1, _LONGEST_NAME) or ":" in name:
        raise ConfigurationError(
            f"schedule {shown(name)}: a name has 1 to {_LONGEST_NAME} bytes of UTF-8 and no colon; a task that has a "
            "schedule gives its name to it"
        )
    return name


@dataclass(frozen=True, slots=True)
class ScheduleDefinition:
    """A schedule as code defines it.

    draft     the record of each of its jobs
    released  seconds since 1970 at which its release was made; 0 for a schedule that is put at run time
    """

    name: str
    timing: Timing
    draft: bytes
    released: float = 0.0

    @property
    def spec(self) -> bytes:
        return msgspec.json.encode(self.timing)

    @property
    def hash(self) -> bytes:
        return hashlib.blake2b(self.spec + b"\n" + self.draft, digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as the server has stored it. Times are server ms; 0: none."""

    name: str
    version: int
    next_tick: int
    state: bytes
    declared: int
    released: int
    last: int
    count: int
    timing: Timing
    draft: bytes
    runs: bytes = b""

    @classmethod
    def read(cls, name: bytes, packed: bytes, runs: bytes | None = None) -> StoredSchedule:
        numbers = _HEADER.unpack_from(packed)
        version, next_tick, declared, released, last = (numbers[at] << 32 | numbers[at + 1] for at in (1, 3, 6, 8, 10))
        start = _HEADER.size
        end = start + numbers[14]
        timing = msgspec.json.decode(packed[start:end], type=Timing)
        return cls(
            *(name.decode(), version, next_tick, numbers[5], declared, released, last, numbers[12], timing),
            *(packed[end:], runs or b""),
        )

    def job_id(self, tick: int | str) -> str:
        """The id, within the queue, of the job of a tick."""
        return f"schedule:{self.name}:{tick}"


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """How a job of a schedule ended. Times are seconds since 1970 by the server's clock.

    job      its id: `app.job(run.job)`
    outcome  completed, dead, dropped, cancelled or expired
    ended    when that was
    seconds  how long its last run took, from the claim on; None: it never ran
    """

    job: str
    outcome: Status
    ended: float
    seconds: float | None

    @classmethod
    def read_all(cls, queue: str, name: str, packed: bytes) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule as the server has stored them, the latest first."""
        found, at = [], 0
        while at + SCHEDULED["tick"][0] <= len(packed):
            ended, started = (_number(packed, at, field) for field in ("ended", "started"))
            letter = packed[at + SCHEDULED["letter"][0] :][:1]
            start = at + SCHEDULED["tick"][0] + 1
            at = start + packed[start - 1]
            tick = packed[start:at].decode(errors="replace")
            outcome = Status.DEAD if letter == DEAD else ENDS.get(letter, Status.UNKNOWN)
            seconds = (ended - started) / 1000 if started else None
            found.append(cls(f"{queue}:schedule:{name}:{tick}", outcome, ended / 1000, seconds))
        return tuple(found)


def _number(packed: bytes, at: int, field: str) -> int:
    start, size = SCHEDULED[field]
    return int.from_bytes(packed[at + start : at + start + size])


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, for people. Times are seconds since 1970 by the server's clock.

    id        `queue:name`
    state     active; paused; unserved: no live worker knows its task, so its tick waits for one that does; or orphaned:
              no live worker has declared it for a day, so it enqueues nothing
    declared  whether the code of an app defines it (`@app.task(schedule=…)`), rather than `app.schedules.add`
    next      its next tick; None: it is not active
    last      its last tick; None: it had none
    count     jobs that it has enqueued
    body      `[task, arguments]` of its jobs
    runs      how its last ten jobs ended, the latest first; those that run or wait for another try are not among them
    """

    id: str
    name: str
    queue: str
    state: ScheduleState
    cron: str
    timezone: str
    every: float | None
    missed: str
    declared: bool
    next: float | None
    last: float | None
    count: int
    body: Any
    runs: tuple[ScheduleRun, ...] = ()

    @classmethod
    def of(cls, queue: str, one: StoredSchedule, now: int, seal: Seal | None = None) -> ScheduleInfo:
        state: ScheduleState = "paused"
        if one.state != b"p":
            is_orphaned = one.state == b"o" or (one.declared and now - one.declared > ORPHANED_AFTER * 1000)
            state = "orphaned" if is_orphaned else "unserved" if one.state == b"u" else "active"
        record, timing = Record(one.draft), one.timing
        return cls(
            f"{queue}:{one.name}",
            one.name,
            queue,
            state,
            timing.cron,
            timing.timezone,
            timing.every,
            timing.missed,
            one.declared > 0,
            one.next_tick / 1000 if state in ("active", "unserved") and one.next_tick else None,
            one.last / 1000 if one.last else None,
            one.count,
            [record.task, codec.readable(record.payload, seal)],
            ScheduleRun.read_all(queue, one.name, one.runs),
        )


def check_declared(name: str, required: Sequence[str]) -> None:
    """Raises ConfigurationError for a task that has a schedule, but cannot be called without arguments.

    `required`: its parameters without a default.
    """
    check_name(name)
    if required:
        raise ConfigurationError(
            f"task {name}: a task with a schedule is called without arguments, but {', '.join(required)} has no "
            "default: give it one, or schedule a call with app.schedules.add"
        )
