"""Histories of elections, latches, barriers and rate limits: good ones, and ones with each fault."""

from typing import Any

import pytest

from penstock.testing import barrier_violations, election_violations, latch_violations, rate_violations
from penstock.testing.history import (
    BarrierArrived,
    BarrierEnded,
    Event,
    FaultInjected,
    LatchAwaited,
    LatchCounted,
    LatchPassed,
    LeaderSeen,
    RateGranted,
    StillLeads,
)


def leads(token: str, server_time: float, term: int) -> StillLeads:
    return StillLeads(election="x", token=token, server_time=server_time, term=term)


def seen(observer: str, term: int) -> LeaderSeen:
    return LeaderSeen(election="x", observer=observer, term=term)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([], None),
        ([leads("a", 1, 1), leads("a", 3, 1), leads("b", 4, 2), leads("b", 5, 2)], None),
        (
            [leads("a", 1, 1), leads("b", 2, 2), leads("a", 3, 1)],
            "election 'x': b held it at 2.000000, a until 3.000000",
        ),
        ([leads("a", 1, 2), leads("b", 2, 1)], "election 'x': term 1 of b came after 2 of a"),
        ([seen("o", 1), seen("o", 0), seen("o", 2), seen("p", 1)], None),
        ([seen("o", 2), seen("o", 0), seen("o", 1)], "election 'x': o saw term 1 after 2"),
    ],
)
def test_two_leaders_and_falling_terms_are_found(history: list[Event], fault: str | None):
    assert election_violations(history) == ([] if fault is None else [fault])


def counted(key: str, at: float, n: int = 1) -> LatchCounted:
    return LatchCounted(latch="x", key=key, at=at, n=n)


def awaited(waiter: str, at: float) -> LatchAwaited:
    return LatchAwaited(latch="x", waiter=waiter, at=at)


def opened(waiter: str, at: float) -> LatchPassed:
    return LatchPassed(latch="x", waiter=waiter, at=at)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([awaited("w", 1), counted("a", 2), counted("b", 3), opened("w", 4)], None),
        ([awaited("w", 1), counted("a", 2, n=2), opened("w", 3)], None),
        ([awaited("w", 1), counted("a", 2)], None),
        ([awaited("w", 1), counted("a", 2), counted("a", 3), opened("w", 4)], "w passed when 1 of 2 were counted"),
        ([awaited("w", 1), counted("a", 2), opened("w", 4), counted("b", 5)], "w passed when 1 of 2 were counted"),
        (
            [awaited("v", 1), awaited("w", 1), counted("a", 2, n=2), opened("w", 4)],
            "v has not passed, although it is open",
        ),
        (
            [
                awaited("7", 1),
                awaited("w", 1),
                counted("a", 2, n=2),
                opened("w", 4),
                FaultInjected(worker="7", how="killed"),
            ],
            None,
        ),
    ],
)
def test_a_latch_that_opens_too_early_or_not_for_all_is_found(history: list[Event], fault: str | None):
    assert latch_violations(history, {"x": 2}) == ([] if fault is None else [f"latch 'x': {fault}"])


def test_waits_that_have_not_ended_are_no_fault_of_an_unfinished_history():
    history: list[Event] = [awaited("v", 1), awaited("w", 1), counted("a", 2, n=2), opened("w", 4)]
    assert latch_violations(history, {"x": 2}, all_waited=False) == []


def arrived(party: str, at: float) -> BarrierArrived:
    return BarrierArrived(barrier="x", party=party, at=at)


def ended(party: str, at: float, generation: int, index: int = -1) -> BarrierEnded:
    outcome: Any = "passed" if index >= 0 else "broken"
    return BarrierEnded(barrier="x", party=party, at=at, outcome=outcome, generation=generation, index=index)


def left(party: str, at: float) -> BarrierEnded:
    return BarrierEnded(barrier="x", party=party, at=at, outcome="left")


GOOD = [
    arrived("a", 1),
    arrived("b", 2),
    ended("a", 3, 7, 0),
    ended("b", 3, 7, 1),
    arrived("a", 4),
    ended("a", 5, 8),
    arrived("a", 6),
    arrived("b", 7),
    ended("b", 8, 9, 1),
    ended("a", 8, 9, 0),
]


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        (GOOD, None),
        ([arrived("a", 1), arrived("killed", 2), ended("a", 3, 7, 0)], None),
        ([arrived("a", 1), ended("a", 2, 7, 0), arrived("b", 3), ended("b", 4, 7, 1)], "a party passed when 1 of 2"),
        ([arrived("a", 1), ended("a", 2, 7, 0)], "a party passed when 1 of 2 had begun to wait"),
        ([arrived("b", 0), left("b", 1), arrived("a", 1), ended("a", 2, 7, 0)], "a party passed when 1 of 2"),
        (
            [arrived("killed", 0), arrived("a", 1), ended("a", 2, 7, 0), arrived("a", 3), ended("a", 4, 8, 0)],
            "meeting 8: a party passed when 1 of 2 had begun to wait",
        ),
        ([arrived("a", 1), arrived("b", 1), ended("a", 2, 7, 0), ended("b", 2, 7)], "a passed, but it broke for b"),
        ([arrived("a", 1), arrived("b", 1), ended("a", 2, 7, 1), ended("b", 2, 7, 1)], "have the indexes [1, 1]"),
        ([arrived("a", 1), arrived("b", 1), ended("a", 2, 7, 0), ended("b", 2, 7, 2)], "have the indexes [0, 2]"),
        ([*GOOD, arrived("c", 1), ended("c", 8, 9, 2)], "3 parties passed, it needs 2"),
        ([*GOOD, arrived("a", 9), ended("a", 10, 7)], "a was in meeting 7 after 9"),
    ],
)
def test_a_meeting_that_cannot_be_is_found(history: list[Event], fault: str | None):
    found = barrier_violations(history, {"x": 2})
    assert (found == []) if fault is None else any(fault in one for one in found)


def grants(*times: float, units: int = 1) -> list[Event]:
    return [RateGranted(rate="x", units=units, at=at) for at in times]


@pytest.mark.parametrize(
    ("history", "burst", "faults"),
    [
        (grants(0, 0, 0, 0.5, 1.0), 3, 0),
        (grants(0, 0, 0, 0.4), 3, 1),
        (grants(0, 1, units=3), 3, 1),
        (grants(0, 1.5, units=3), 3, 0),
        (grants(0, 0.25, 1.0, 1.25), None, 0),
        (grants(0, 0.2, 0.9), None, 1),
        (grants(0.9, 0.2, 0), None, 1),
        (grants(0, 1, units=2), None, 0),
    ],
)
def test_units_too_many_are_found(history: list[Event], burst: int | None, faults: int):
    assert len(rate_violations(history, limit=2, per=1, burst=burst)) == faults


def test_late_records_are_allowed_for():
    assert rate_violations(grants(0, 0, 0, 0.4), limit=2, per=1, burst=3, slack=0.1) == []
    assert rate_violations(grants(0, 0.2, 0.95), limit=2, per=1, slack=0.1) == []
