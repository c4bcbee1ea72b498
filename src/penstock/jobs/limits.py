"""Limits of a task: how many jobs run at a time, or start within an interval. See `limits.lua`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from penstock.core.arguments import check_number, check_whole, is_text
from penstock.core.cost import MOST_UNITS, CallCost, Cost, check_cost
from penstock.errors import ConfigurationError
from penstock.jobs.key_template import KeyTemplate

MOST_LIMITS: Final = 3
"""The most limits of one task. A record counts in two bits how many of them its job has passed."""

MOST_JOBS: Final = 1_000_000
LONGEST_PERIOD: Final = 366 * 86400.0
"""Seconds."""

_LIMIT: Final = struct.Struct(">I6sI6sIH")

_LONGEST_NAME: Final = 200
"""Bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `most` jobs with the same key run at a time, on all hosts together.

        @app.task(limit=Concurrency(1, key="{account}"))

    key   a template with parameters of the task in braces, and `{tenant}`; "" counts all jobs of the limit together
    name  limits of one queue with the same name count together; "": the name of the task

    With `most` 1, the jobs of a key run strictly one after another: a job that is retried keeps its place until it has
    ended. With more, a job that waits for a retry gives its place to another. Claims are counted: a worker that lost
    its lease may still run a job that another worker has already.

    Raises ValueError for numbers out of range.
    """

    most: int
    key: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        _check_count("Concurrency", self.most)
        _check_name("Concurrency", self.name)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `most` jobs with the same key start in `per` seconds, on all hosts together; or jobs of `most` units.

        @app.task(limit=Rate(100, per=60, key="{customer}"))
        @app.task(limit=Rate(90_000, per=60, key="{account}", cost="{tokens}"))

    burst  how many may start at once after a pause; None: `most`. In any time t at most `burst + most * t / per` start
    cost   the units that a job takes each time a worker claims it: a number; the name of a parameter of the task in
           braces; or a function of some parameters, which has the same names: `lambda prompt: len(prompt) / 4`. It is
           evaluated where the job is enqueued, and a part of a unit counts as one. An enqueue raises BadCall if it is
           negative or no number
    key, name   as in `Concurrency`

    The first waiting job of a key waits until its whole cost is free, and no other one of its priority and tenant
    overtakes it. A job that costs more than `burst` waits until `burst` units are free and takes its whole cost, so the
    next one waits longer. A job can book what it really took with `current().used`.

    Raises ValueError for numbers out of range.
    """

    most: int
    per: float
    key: str = ""
    name: str = ""
    burst: int | None = None
    cost: Cost = 1

    def __post_init__(self) -> None:
        _check_units("Rate", self.most)
        _check_name("Rate", self.name)
        check_number("Rate", "per", self.per, 0.001, LONGEST_PERIOD, "seconds from 0.001 to a year")
        if self.most > self.per * 1_000_000:
            raise ValueError(f"Rate({self.most}, per={self.per}): at most one unit in a microsecond")
        if self.burst is not None:
            _check_units("Rate", self.burst, "burst")
        check_cost("Rate", self.cost)

    @property
    def interval(self) -> int:
        """Microseconds in which one unit comes back, rounded up so that the rate is never exceeded."""
        return -(-round(self.per * 1_000_000) // self.most)


Limit: TypeAlias = Concurrency | Rate


def _check_count(kind: str, number: Any) -> None:
    advice = "; to stop the jobs, pause the queue" if number == 0 else ""
    check_whole(kind, "most", number, 1, MOST_JOBS, f"a number of jobs from 1 to {MOST_JOBS:,}{advice}")


def _check_units(kind: str, number: Any, what: str = "most") -> None:
    advice = "; to stop the jobs, pause the queue" if number == 0 else ""
    check_whole(kind, what, number, 1, MOST_UNITS, f"a number of units from 1 to {MOST_UNITS:,}{advice}")


def _check_name(kind: str, name: str) -> None:
    if not is_text(name, 0, _LONGEST_NAME) or "=" in name or not (name + "x").isprintable():
        raise ValueError(f"{kind}(name={name!r}): at most {_LONGEST_NAME} bytes of printable text without '='")


def stored_name(limit: Limit, name: str) -> str:
    """The name under which the server knows the limit: its kind comes first, so that the two kinds never mix."""
    return ("r:" if isinstance(limit, Rate) else "c:") + name


def numbers(limit: Limit) -> tuple[int, int, int]:
    """As the server stores them: how many, and for a rate the microseconds of one unit and the burst."""
    if isinstance(limit, Concurrency):
        return limit.most, 0, 0
    return limit.most, limit.interval, limit.most if limit.burst is None else limit.burst


class TaskLimit(NamedTuple):
    """One limit of a task. `name`: as the server knows it."""

    name: str
    limit: Limit
    key: KeyTemplate
    cost: CallCost


@dataclass(frozen=True)
class TaskLimits:
    """The limits of one task in the order in which its jobs pass them: concurrency by name, then rates by name."""

    limits: tuple[TaskLimit, ...] = ()
    release: int = 0
    """Milliseconds since 1970. Of two releases, the numbers of the newer one hold."""

    @classmethod
    def of(
        cls, task: str, given: Limit | Iterable[Limit] | None, parameters: Sequence[str], release: float
    ) -> TaskLimits:
        """Check the limits of `@app.task`. Raises ConfigurationError for limits that cannot work."""
        chosen = [given] if isinstance(given, Concurrency | Rate) else _listed(task, given)
        if len(chosen) > MOST_LIMITS:
            raise ConfigurationError(f"task {task}: {len(chosen)} limits; a task has at most {MOST_LIMITS}")
        named: dict[str, TaskLimit] = {}
        for limit in chosen:
            name = stored_name(limit, limit.name or task)
            if "=" in name:
                raise ConfigurationError(
                    f"task {task}: a limit cannot be named like the task, which has a '=': give name="
                )
            if name in named:
                raise ConfigurationError(
                    f"task {task}: two {type(limit).__name__} limits have the name {name[2:]!r}: give one another name="
                )
            what, cost = f"task {task}: limit {name[2:]}", limit.cost if isinstance(limit, Rate) else 1
            named[name] = TaskLimit(
                name, limit, KeyTemplate(what, limit.key, parameters), CallCost(what, cost, parameters)
            )
        return cls(tuple(named[name] for name in sorted(named)), round(release * 1000))

    def __bool__(self) -> bool:
        return bool(self.limits)

    def section(self, value_of: Callable[[str], Any], tenant: str) -> bytes:
        """The section of a record that has the limits of one job. Raises BadCall for a key or a cost out of range."""
        return b"".join(
            limit_bytes(
                one.name, one.key.fill(value_of, tenant), *numbers(one.limit), self.release, one.cost.of_call(value_of)
            )
            for one in self.limits
        )


def limit_bytes(name: str, key: str, most: int, interval: int, burst: int, release: int, cost: int = 1) -> bytes:
    """One limit in the section of a record (`record.limits` in `record.lua`).

    interval  microseconds in which a unit of a rate comes back
    release   of the task that has these numbers, milliseconds since 1970
    cost      of a rate: the units that the job takes
    """
    named = f"{name}={key}".encode()
    return _LIMIT.pack(most, interval.to_bytes(6), burst, release.to_bytes(6), cost, len(named)) + named


def _listed(task: str, given: Any) -> list[Limit]:
    chosen = [*given] if isinstance(given, list | tuple) else [] if given is None else [given]
    for limit in chosen:
        if not isinstance(limit, Concurrency | Rate):
            raise ConfigurationError(f"task {task}: limit={limit!r}: give Concurrency(…), Rate(…), or a list of them")
    return chosen


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """One key of a limit that has parked jobs.

    used     concurrency: jobs that run or may be claimed; a rate: units of jobs that may be claimed and did not start
    parked   jobs that wait for a place
    left     how many more jobs could get a place now; of a rate, its units less those in `used`
    next_in  of a rate: seconds until it has room for the first parked job. None for concurrency, and for a rate that
             has no room before jobs in `used` start
    held_for seconds until the key is open again, which a job or an operator has closed; None: it is open
    """

    key: str
    used: int
    parked: int
    left: int = 0
    next_in: float | None = None
    held_for: float | None = None


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """A limit as the server has it.

    kind   concurrency or rate
    most   jobs of one key that run at a time; for a rate, units of the jobs that start in `per` seconds
    burst  of a rate: how many may start at once after a pause
    keys   some of the keys that have parked jobs or are closed: those first that have parked jobs, by their names
    """

    name: str
    kind: str
    most: int
    per: float | None
    burst: int | None
    keys: tuple[KeyUsage, ...] = ()

    @property
    def parked(self) -> int:
        """Jobs parked at the keys that are listed."""
        return sum(key.parked for key in self.keys)


def read_limits(reply: Sequence[Any]) -> list[LimitInfo]:
    """The reply of `show_limits`."""
    found = []
    for name, packed, keys in zip(reply[0::3], reply[1::3], reply[2::3], strict=True):
        most, interval, burst, *_ = unpacked(packed)
        usage = []
        for key, place, left, ms, held, beside in zip(*[iter(keys)] * 6, strict=True):
            used, parked, *_ = unpacked(place)
            next_in = None if ms < 0 else ms / 1000
            usage.append(
                KeyUsage(key.decode(errors="replace"), used, parked + beside, left, next_in, held / 1000 or None)
            )
        kind, _, label = name.decode(errors="replace").partition(":")
        if kind == "r":
            found.append(LimitInfo(label, "rate", most, interval * most / 1_000_000, burst, tuple(usage)))
        else:
            found.append(LimitInfo(label, "concurrency", most, None, None, tuple(usage)))
    return sorted(found, key=lambda info: (info.kind, info.name))


def joined_limits(shards: Iterable[Sequence[LimitInfo]]) -> list[LimitInfo]:
    """The limits of a queue from those of its shards. Only a key that an operator has closed is in several of them."""
    found: dict[tuple[str, str], LimitInfo] = {}
    for info in (one for shard in shards for one in shard):
        known = found.get((info.kind, info.name), replace(info, keys=()))
        keys = {key.key: key for key in known.keys}
        for key in info.keys:
            keys[key.key] = key if key.parked or key.used or key.key not in keys else keys[key.key]
        found[info.kind, info.name] = replace(known, keys=(*keys.values(),))
    return [found[one] for one in sorted(found)]


def unpacked(packed: bytes | None) -> list[Any]:
    """The first five values of `packed`, each in MessagePack, or the first four; zeros without `packed`."""
    for n in (5, 4):
        try:
            values: list[Any] = msgspec.msgpack.decode(bytes([0x90 + n]) + (packed or b"\0" * n))
        except msgspec.DecodeError:
            continue
        return values
    return [0, 0, 0, 0]
