"""The checker of outboxes finds each broken promise, and accepts a history that breaks none."""

from __future__ import annotations

import pytest

from penstock.testing import outbox_violations
from penstock.testing.history import CallStored, CallWritten, EffectFound, Event, FinalState

GOOD: list[Event] = [
    CallWritten(job="q:1", answer="asked"),
    CallWritten(job="q:1", answer="committed"),
    CallStored(job="q:1"),
    FinalState(job="q:1", state="completed"),
    EffectFound(job="q:1", times=1),
    CallWritten(job="q:2", answer="asked"),
    CallWritten(job="q:2", answer="rolled back"),
    CallWritten(job="q:3", answer="asked"),
    CallWritten(job="q:3", answer="unknown"),
]


def test_a_history_that_breaks_no_promise_is_accepted():
    assert outbox_violations(GOOD) == []


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (EffectFound(job="q:1", times=1), "q:1: committed, and it has 2 effects"),
        (FinalState(job="q:1", state="dead"), "q:1: committed, and its job is dead"),
        (FinalState(job="q:2", state="completed"), "q:2: not committed, and it has a job, which is completed"),
        (EffectFound(job="q:3", times=1), "q:3: not committed, and it has an effect"),
        (
            CallWritten(job="q:4", answer="committed"),
            "q:4: its transaction was committed, and the database does not have it",
        ),
    ],
)
def test_a_broken_promise_is_found(event: Event, sentence: str):
    assert outbox_violations([*GOOD, event]) == [sentence]


def test_a_lost_job_is_found():
    assert outbox_violations([CallStored(job="q:9"), EffectFound(job="q:9", times=1)]) == [
        "q:9: committed, and it has no job"
    ]


def test_the_database_decides_about_an_unknown_end():
    events = [*GOOD, CallStored(job="q:3"), FinalState(job="q:3", state="completed"), EffectFound(job="q:3", times=1)]
    assert outbox_violations(events) == []
    assert outbox_violations([*GOOD, CallStored(job="q:2"), FinalState(job="q:2", state="completed")]) == [
        "q:2: committed, and it has 0 effects",
        "q:2: its transaction was rolled back, and the database has it",
    ]
