"""Checks a history of calls that were written into a database against the promises of an outbox and an inbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from penstock.testing.history import CallStored, CallWritten, EffectFound, Event, FinalState


def outbox_violations(events: Iterable[Event]) -> list[str]:
    """A sentence for each promise about calls in a database that this history breaks; [] if it breaks none.

    The promises:

    - a call whose transaction committed has one job, which has completed, and one effect
    - a call whose transaction was rolled back has neither
    - of a transaction whose end is unknown, the database decides
    - no job and no effect comes from nowhere

    Record CallWritten in the programs, and at the end CallStored for each call whose transaction is in the database,
    FinalState for each job that the queue knows, and EffectFound for each effect.
    """
    written: dict[str, set[str]] = {}
    stored, states, effects = set[str](), dict[str, str](), Counter[str]()
    for event in events:
        match event:
            case CallWritten():
                written.setdefault(event.job, set()).add(event.answer)
            case CallStored():
                stored.add(event.job)
            case FinalState():
                states[event.job] = event.state
            case EffectFound():
                effects[event.job] += event.times
    return [
        *_committed(written, stored, states, effects),
        *_not_committed(written, stored, states, effects),
    ]


def _committed(
    written: dict[str, set[str]], stored: set[str], states: dict[str, str], effects: Counter[str]
) -> Iterator[str]:
    for job, answers in written.items():
        if "committed" in answers and job not in stored:
            yield f"{job}: its transaction was committed, and the database does not have it"
    for job in stored:
        if job not in states:
            yield f"{job}: committed, and it has no job"
        elif states[job] != "completed":
            yield f"{job}: committed, and its job is {states[job]}"
        if effects[job] != 1:
            yield f"{job}: committed, and it has {effects[job]} effects"


def _not_committed(
    written: dict[str, set[str]], stored: set[str], states: dict[str, str], effects: Counter[str]
) -> Iterator[str]:
    for job, answers in written.items():
        if "rolled back" in answers and job in stored:
            yield f"{job}: its transaction was rolled back, and the database has it"
    for job in states.keys() - stored:
        yield f"{job}: not committed, and it has a job, which is {states[job]}"
    for job in effects.keys() - stored:
        yield f"{job}: not committed, and it has an effect"
