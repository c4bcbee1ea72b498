"""Checks a history against the promises of locks, elections, latches, barriers and rate limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.ops.proof import HoldInterval, lock_violations
from penstock.testing.history import (
    BarrierArrived,
    BarrierEnded,
    Event,
    FaultInjected,
    HoldingBroken,
    LatchAwaited,
    LatchCounted,
    LatchPassed,
    LeaderSeen,
    RateGranted,
    StillHeld,
    StillLeads,
)

# --- locks and semaphores ---


def hold_intervals(events: Iterable[Event]) -> list[HoldInterval]:
    """The intervals for `lock_violations` and `semaphore_violations`, one for each holder.

    Each lasts from the first to the last moment, by the server's clock, at which the holder was certain of its hold, or
    to the break by which an operator ended the hold (`HoldingBroken`). A break that took the lock from the next owner
    as well is found: that owner was certain of its hold while another one had the lock.
    """
    events = list(events)
    broken = _breaks(events)
    of_holder: dict[str, list[StillHeld]] = {}
    for event in events:
        if isinstance(event, StillHeld) and event.server_time < broken.get(event.token, math.inf):
            of_holder.setdefault(event.token, []).append(event)
    return [
        HoldInterval(
            moments[0].name,
            token,
            min(one.server_time for one in moments),
            max(one.server_time for one in moments),
            moments[0].fence,
            moments[0].permits,
        )
        for token, moments in of_holder.items()
    ]


def break_violations(events: Iterable[Event], *, within: float) -> list[str]:
    """A sentence for each holder that was certain of its hold long after an operator had ended it; [] if none was.

    A holder that was first certain after the break is not judged: if the reply that granted its hold was lost, it has
    asked again, with the same token, and may have been granted a new one.

    within  seconds in which a holder learns of the break: its lease, but at least the two seconds for which a grant to
            a waiter lasts before its first renewal
    """
    events = list(events)
    ended: dict[str, float] = {}
    for event in events:
        if isinstance(event, HoldingBroken) and event.until is not None:
            ended[event.token] = min(event.until, ended.get(event.token, math.inf))
    knew = {
        event.token
        for event in events
        if isinstance(event, StillHeld) and event.server_time <= ended.get(event.token, -math.inf)
    }
    last: dict[str, StillHeld] = {}
    for event in events:
        if isinstance(event, StillHeld) and event.token in knew:
            last[event.token] = max(event, last.get(event.token, event), key=lambda one: one.server_time)
    return [
        f"{one.name!r}: {token} was certain of its hold {one.server_time - ended[token]:.3f} s after it was broken"
        for token, one in last.items()
        if one.server_time - ended[token] > within
    ]


def _breaks(events: Iterable[Event]) -> dict[str, float]:
    """token -> the first time, by the server's clock, at which an operator ended its holding"""
    broken: dict[str, float] = {}
    for event in events:
        if isinstance(event, HoldingBroken):
            broken[event.token] = min(event.server_time, broken.get(event.token, math.inf))
    return broken


# --- elections ---


def election_violations(events: Iterable[Event]) -> list[str]:
    """A sentence for each promise about elections that this history breaks; [] if it breaks none.

    The promises:

    - no two processes lead at the same time, by the server's clock, and terms rise
    - an observer sees terms in rising order
    """
    events = list(events)
    moments: dict[tuple[str, str], list[StillLeads]] = {}
    for event in events:
        if isinstance(event, StillLeads):
            moments.setdefault((event.election, event.token), []).append(event)
    intervals = [
        HoldInterval(
            name,
            token,
            min(one.server_time for one in of_leader),
            max(one.server_time for one in of_leader),
            of_leader[0].term,
        )
        for (name, token), of_leader in moments.items()
    ]
    as_elections = [
        violation.replace("lock", "election", 1).replace("fence", "term") for violation in lock_violations(intervals)
    ]
    return [*as_elections, *_falling_terms(events)]


def _falling_terms(events: Iterable[Event]) -> Iterator[str]:
    last: dict[tuple[str, str], int] = {}
    for event in events:
        if isinstance(event, LeaderSeen) and event.term:
            before = last.get((event.election, event.observer), 0)
            if event.term < before:
                yield f"election {event.election!r}: {event.observer} saw term {event.term} after {before}"
            last[event.election, event.observer] = event.term


# --- latches ---


def latch_violations(events: Iterable[Event], counts: Mapping[str, int], *, all_waited: bool = True) -> list[str]:
    """A sentence for each promise about latches that this history breaks; [] if it breaks none.

    The promises:

    - no process passes before the last count-down has begun
    - if a latch has opened, all that wait for it pass, except processes that were killed (`FaultInjected`)

    counts      latch -> its count
    all_waited  True: the history ends after all waits
    """
    events = sorted(events, key=lambda event: event.at)
    keys: dict[str, dict[str, int]] = {}
    waiting: dict[tuple[str, str], None] = {}
    violations: list[str] = []
    for event in events:
        if isinstance(event, LatchCounted):
            keys.setdefault(event.latch, {}).setdefault(event.key, event.n)
        elif isinstance(event, LatchAwaited):
            waiting[event.latch, event.waiter] = None
        elif isinstance(event, LatchPassed):
            waiting.pop((event.latch, event.waiter), None)
            counted = sum(keys.get(event.latch, {}).values())
            if counted < counts[event.latch]:
                violations.append(
                    f"latch {event.latch!r}: {event.waiter} passed when {counted} of {counts[event.latch]} were counted"
                )
    killed = {event.worker for event in events if isinstance(event, FaultInjected) and event.how == "killed"}
    passed = {event.latch for event in events if isinstance(event, LatchPassed)}
    if all_waited:
        violations += [
            f"latch {latch!r}: {waiter} has not passed, although it is open"
            for latch, waiter in waiting
            if latch in passed and waiter not in killed
        ]
    return violations


# --- barriers ---


@dataclass(slots=True)
class _Meeting:
    """One generation of a barrier. `arrivals`: for each party that ended in it, when it had begun to wait."""

    passed: list[BarrierEnded] = field(default_factory=list)
    broken: list[BarrierEnded] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)


def barrier_violations(events: Iterable[Event], parties: Mapping[str, int]) -> list[str]:
    """A sentence for each promise about barriers that this history breaks; [] if it breaks none.

    The promises:

    - a party passes only after all parties of its meeting have begun to wait
    - no meeting is both passed and broken
    - no meeting is passed by more parties than it needs, or by two parties with the same index
    - the meetings of a party have rising numbers

    `parties`: barrier -> how many it needs. A party whose end is unknown, because it was killed, may have been in any
    one meeting.
    """
    events = sorted(events, key=lambda event: event.at)
    arrived: dict[tuple[str, str], float] = {}
    last: dict[tuple[str, str], int] = {}
    meetings: dict[tuple[str, int], _Meeting] = {}
    violations: list[str] = []
    for event in events:
        if isinstance(event, BarrierArrived):
            arrived[event.barrier, event.party] = event.at
        elif isinstance(event, BarrierEnded) and event.outcome == "left":
            arrived.pop((event.barrier, event.party), None)
        elif isinstance(event, BarrierEnded):
            who = (event.barrier, event.party)
            if event.generation <= last.get(who, 0):
                violations.append(
                    f"barrier {event.barrier!r}: {event.party} was in meeting {event.generation} after {last[who]}"
                )
            last[who] = event.generation
            meeting = meetings.setdefault((event.barrier, event.generation), _Meeting())
            (meeting.passed if event.outcome == "passed" else meeting.broken).append(event)
            meeting.arrivals.append(arrived.pop(who, event.at))
    by_time = sorted(meetings.items(), key=lambda pair: min((one.at for one in pair[1].passed), default=0.0))
    for (barrier, generation), meeting in by_time:
        where = f"barrier {barrier!r}, meeting {generation}"
        violations += _violations_of_meeting(where, meeting, parties[barrier])
        violations += _lacking_parties(where, barrier, meeting, arrived, parties[barrier])
    return violations


def _violations_of_meeting(where: str, meeting: _Meeting, needed: int) -> Iterator[str]:
    if meeting.passed and meeting.broken:
        yield f"{where}: {meeting.passed[0].party} passed, but it broke for {meeting.broken[0].party}"
    if len(meeting.passed) > needed:
        yield f"{where}: {len(meeting.passed)} parties passed, it needs {needed}"
    indexes = [one.index for one in meeting.passed]
    if len(set(indexes)) < len(indexes) or not set(indexes) <= set(range(needed)):
        yield f"{where}: the parties that passed have the indexes {sorted(indexes)}"


def _lacking_parties(
    where: str, barrier: str, meeting: _Meeting, never_ended: dict[tuple[str, str], float], needed: int
) -> Iterator[str]:
    """Compare the parties that had begun to wait with those that were needed.

    never_ended  the parties whose end is unknown, with the times of their arrivals. Each may have been in any
                 one meeting
    """
    if not meeting.passed:
        return
    first = min(one.at for one in meeting.passed)
    begun = sum(at <= first for at in meeting.arrivals)
    unknown = [who for who, at in never_ended.items() if who[0] == barrier and at <= first][: max(0, needed - begun)]
    for who in unknown:
        del never_ended[who]
    if begun + len(unknown) < needed:
        yield f"{where}: a party passed when {begun + len(unknown)} of {needed} had begun to wait"


# --- rate limits ---


def rate_violations(
    events: Iterable[Event], *, limit: int, per: float, burst: int | None = None, slack: float = 0.0
) -> list[str]:
    """A sentence for each moment at which a rate limit allowed more than it may; [] if it never did.

    limit, per  the values with which the limits were made, the same for all rate limits in the history
    burst       of a bucket: at most burst + limit / per * t units in any t seconds. None: a window, which allows at
                most `limit` units in any `per` seconds
    slack       seconds by which a grant may be recorded late
    """
    grants: dict[str, list[RateGranted]] = {}
    for event in events:
        if isinstance(event, RateGranted):
            grants.setdefault(event.rate, []).append(event)
    violations: list[str] = []
    for name, of_one in grants.items():
        of_one.sort(key=lambda event: event.at)
        if burst is None:
            violations += _violations_of_window(name, of_one, limit, per - slack)
        else:
            violations += _violations_of_bucket(name, of_one, limit / per, burst + slack * limit / per)
    return violations


def _violations_of_bucket(name: str, grants: list[RateGranted], rate: float, most: float) -> Iterator[str]:
    used, last = 0.0, grants[0].at
    for grant in grants:
        used = max(0.0, used - (grant.at - last) * rate) + grant.units
        last = grant.at
        if used > most + 1e-6:
            yield f"rate limit {name!r}: {used - most:.1f} units too many at {grant.at:.6f}"


def _violations_of_window(name: str, grants: list[RateGranted], limit: int, per: float) -> Iterator[str]:
    used, first = 0, 0
    for grant in grants:
        used += grant.units
        while grants[first].at <= grant.at - per:
            used -= grants[first].units
            first += 1
        if used > limit:
            yield f"rate limit {name!r}: {used} units within {per:g} s at {grant.at:.6f}, the limit is {limit}"
