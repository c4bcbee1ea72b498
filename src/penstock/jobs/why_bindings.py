"""The script of `why.lua` as a round trip, and the facts that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.core.operations import RoundTrip
from penstock.jobs.bindings import QueueBindings, read_stored
from penstock.jobs.durable_bindings import job_id
from penstock.jobs.history import Moment, read_rows
from penstock.jobs.pauses import PausedScope, named_scope, read_pause
from penstock.jobs.record import StoredJob


@dataclass(frozen=True, slots=True)
class ParkedAt:
    """A limit at which a job is parked.

    name, key     of the limit
    most          jobs of the key that run at a time; of a rate, units of the jobs that start in an interval
    is_rate       whether it is a rate
    interval      of a rate: seconds in which one unit comes back
    used, parked  places of the key that jobs have (of a rate, units), and jobs without one
    room_in       of a rate: seconds until it has room for the job; None: not before jobs with a place have started
    cost          of a rate: the units that the job takes
    held_until    when its key is open again, in seconds since 1970 by the server's clock; None: it is open
    """

    name: str
    key: str
    most: int
    is_rate: bool
    interval: float
    used: int
    parked: int
    room_in: float | None
    cost: int = 1
    held_until: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server knows about the reason why a job does not run.

    now       seconds since 1970
    workers   live workers of the queue, at most a hundred
    programs  live programs without a worker that claim from it
    asked     live workers that were asked to be quiet or to stop
    lease     until when the worker of a running job is alive
    pauses    those that hold the job up: of the whole queue, and of its tenant or its task
    suspects  of a suspect: how many others are tried before it, and how many suspects there are
    batch     until when a batch waits for more jobs, and how many make it whole
    ahead     jobs that are served before this one, about: more urgent ones, those of its tenant, those of others
    parked    where the job is parked
    knows     whether a live worker knows its task; None: the workers do not say what they know
    signal    for which a durable job waits; "": for none
    children  how many children a durable job waits for, and the ids of some; None: for none
    history   of the last five minutes
    """

    stored: StoredJob
    now: float
    workers: int = 0
    programs: int = 0
    asked: int = 0
    lease: float = 0.0
    pauses: list[PausedScope] = field(default_factory=list)
    suspects: tuple[int, int] | None = None
    batch: tuple[float, int] | None = None
    ahead: tuple[int, int, int] | None = None
    parked: ParkedAt | None = None
    knows: bool | None = None
    signal: str = ""
    children: tuple[int, tuple[str, ...]] | None = None
    history: list[Moment] = field(default_factory=list)


class WhyBindings:
    """Builds the round trip of `why.lua` for one queue. Sends nothing itself."""

    def __init__(self, queue: QueueBindings) -> None:
        self._queue = queue

    def facts(self, key: str) -> RoundTrip[Facts]:
        return self._queue._call("why", (self._queue.clock.now_ms, key), partial(_read, self._queue.keys.queue))


def _read(queue: str, reply: Sequence[Any]) -> Facts:
    found, now, *pairs = reply
    given = {name.decode(): value for name, value in zip(pairs[0::2], pairs[1::2], strict=True)}
    pauses = []
    if whole := given.get("pause"):
        pauses.append(PausedScope(None, None, 0, *read_pause(whole)))
    name, scope = given.get("scope") or (None, None)
    if name and scope:
        task, tenant = named_scope(name)
        pauses.append(PausedScope(task, tenant, 0, *read_pause(scope)))
    workers, programs, asked = given.get("workers", (0, 0, 0))
    parked, ahead = None, given.get("ahead")
    if limit := given.get("limit"):
        parked, ahead = _parked_at(now, limit[:8]), limit[8:]
    children = given.get("children")
    batch, suspects, knows = given.get("batch"), given.get("suspects"), given.get("knows")
    return Facts(
        read_stored(found),
        now / 1000,
        workers,
        programs,
        asked,
        given.get("lease", 0) / 1000,
        pauses,
        None if suspects is None else (suspects[0], suspects[1]),
        None if batch is None else (batch[0] / 1000, batch[1]),
        None if ahead is None else (ahead[0], ahead[1], ahead[2]),
        parked,
        None if knows is None else bool(knows),
        (given.get("signal") or b"").decode(errors="replace"),
        None if children is None else (children[0], tuple(job_id(one, queue) for one in children[1:])),
        read_rows(given.get("history", ())),
    )


def _parked_at(now: int, limit: Sequence[Any]) -> ParkedAt:
    named, most, interval, used, parked, room_at, cost, held = limit
    name, _, key = named.decode(errors="replace").partition("=")
    kind, _, label = name.partition(":")
    room_in = None if room_at < 0 else max(0, room_at - now) / 1000
    return ParkedAt(
        label, key, most, kind == "r", interval / 1_000_000, used, parked, room_in, cost, held / 1000 or None
    )
