"""The checker accepts each history that a queue can produce which keeps its promises, and finds each broken one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing import job_violations
from penstock.testing.history import (
    Ended,
    Enqueued,
    Event,
    FaultInjected,
    FinalState,
    LeaseExpired,
    Outage,
    Settled,
    Started,
)

TAKEOVER = 5.0


@dataclass
class Story:
    """The events of one job, one second apart. Claims are numbered from `first`."""

    job: str = "a"
    at: float = 100.0
    first: int = 1

    def __post_init__(self) -> None:
        self.events: list[Event] = []

    def then(self, kind: type[Event], **fields: object) -> "Story":
        if "job" in kind.__struct_fields__:
            fields = {"job": self.job, **fields}
        if fields.get("claim"):
            fields["claim"] += self.first - 1  # type: ignore[operator]
        if "worker" in kind.__struct_fields__:
            fields["worker"] = f"{fields['worker']} of {self.job}"
        self.events.append(kind(at=self.at + len(self.events), **fields))  # type: ignore[arg-type]
        return self

    def accepted(self) -> "Story":
        return self.then(Enqueued, answer="asked").then(Enqueued, answer="accepted")

    def run(self, claim: int, worker: str = "w") -> "Story":
        return self.then(Started, claim=claim, worker=worker).then(Ended, claim=claim)

    def completed(self, claim: int) -> "Story":
        settled = self.then(Settled, claim=claim, how="complete", answer="accepted")
        return settled.then(FinalState, state="completed", claim=claim)


STORIES: dict[str, Callable[[Story], Story]] = {
    "completed": lambda t: t.accepted().run(1).completed(1),
    "waits": lambda t: t.accepted().then(FinalState, state="ready"),
    "cancelled": lambda t: t.accepted().then(FinalState, state="cancelled"),
    "dead": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(Ended, claim=1, returned=False)
        .then(Settled, claim=1, how="bury", answer="accepted")
        .then(FinalState, state="dead", reason="OSError")
    ),
    "retried": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(Ended, claim=1, returned=False)
        .then(Settled, claim=1, how="retry", answer="accepted")
        .run(2)
        .completed(2)
    ),
    "handed back": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(Settled, claim=1, how="release", answer="accepted")
        .run(2)
        .completed(2)
    ),
    "its worker was killed": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(FaultInjected, worker="w", how="killed")
        .run(2, "v")
        .completed(2)
    ),
    "killed after its settlement arrived": lambda t: (
        t.accepted().run(1).then(FaultInjected, worker="w", how="killed").then(FinalState, state="completed", claim=1)
    ),
    "its worker was frozen, and was refused": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(FaultInjected, worker="w", how="frozen")
        .run(2, "v")
        .then(Settled, claim=2, how="complete", answer="accepted")
        .then(FaultInjected, worker="w", how="thawed")
        .then(Ended, claim=1)
        .then(Settled, claim=1, how="complete", answer="refused")
        .then(FinalState, state="completed", claim=2)
    ),
    "a stale claim starts when all is over": lambda t: (
        t.accepted()
        .run(2, "v")
        .then(Settled, claim=2, how="complete", answer="accepted")
        .then(Started, claim=1, worker="w")
        .then(LeaseExpired, worker="w")
        .then(FinalState, state="completed", claim=2)
    ),
    "the lease was lost": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(LeaseExpired, worker="w").run(2).completed(2)
    ),
    "an outage": lambda t: (
        t.accepted()
        .then(Started, claim=1, worker="w")
        .then(Outage, what="server", over=False)
        .then(Outage, what="server", over=True)
        .run(2, "v")
        .completed(2)
    ),
    "no answer to the enqueue": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="unknown").run(1).completed(1)
    ),
    "no answer, and it never came": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="unknown").then(FinalState, state="unknown")
    ),
    "its producer was killed": lambda t: t.then(Enqueued, answer="asked").run(1).completed(1),
    "refused": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="refused").then(FinalState, state="unknown")
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_possible_history_has_no_violations(story: Callable[[Story], Story]):
    assert job_violations(story(Story()).events, takeover=TAKEOVER) == []


@given(st.lists(st.tuples(st.sampled_from(sorted(STORIES)), st.floats(0, 60)), max_size=12))
def test_a_possible_history_of_many_jobs_has_no_violations(chosen: list[tuple[str, float]]):
    events: list[Event] = []
    for number, (story, at) in enumerate(chosen):
        events += STORIES[story](Story(f"job{number}", at, first=100 * number + 1)).events
    assert job_violations(events, takeover=TAKEOVER) == []


# --- histories that break a promise ---

Change = Callable[[list[Event]], Sequence[Event]]


def without(kind: type[Event], **fields: object) -> Change:
    return lambda events: [e for e in events if not _is(e, kind, fields)]


def but(kind: type[Event], where: dict[str, object] | None = None, /, **fields: object) -> Change:
    """Sets other fields in the events of that kind."""
    return lambda events: [msgspec.structs.replace(e, **fields) if _is(e, kind, where or {}) else e for e in events]


def and_then(*more: Event) -> Change:
    return lambda events: [*events, *more]


def _is(event: Event, kind: type[Event], fields: dict[str, object]) -> bool:
    return isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())


SETTLED_AGAIN = Settled(at=200, job="a", claim=1, how="complete", answer="accepted")

BROKEN: list[tuple[str, str, Change]] = [
    ("completed", "job a was accepted, and is lost", but(FinalState, state="unknown", claim=0)),
    ("completed", "job a was accepted, and its final state", without(FinalState)),
    ("waits", "job a was accepted, and is lost", but(FinalState, state="unknown")),
    ("dead", "job a is dead without a reason", but(FinalState, reason="")),
    ("completed", "job a exists, but it was not enqueued", without(Enqueued)),
    ("waits", "job a exists, but it was not enqueued", without(Enqueued)),
    ("completed", "job a exists, but its enqueue was refused", but(Enqueued, answer="refused")),
    ("completed", "claim 1 ended or was settled, but never started", without(Started)),
    ("completed", "job a was completed by claims 1", and_then(SETTLED_AGAIN)),
    ("completed", "job a was completed by claim 1, whose run did not return", without(Ended)),
    ("dead", "job a was completed by claim 1, whose run did not return", but(Settled, how="complete")),
    ("completed", "job a was completed by claim 1, but is ready", but(FinalState, state="ready", claim=0)),
    ("completed", "job a has the result of claim 7, whose run did not end", but(FinalState, claim=7)),
    (
        "its worker was frozen, and was refused",
        "job a has the result of claim 1, whose settlement was refused",
        but(FinalState, claim=1),
    ),
    ("completed", "job a has the result of claim 1, whose settlement was refused", but(Settled, answer="refused")),
    (
        "its worker was frozen, and was refused",
        "job a was completed by claims 1 and 2",
        but(Settled, answer="accepted"),
    ),
    (
        "its worker was frozen, and was refused",
        "job a was completed by claim 1, after claim 2 had started",
        lambda events: but(Settled, {"claim": 1}, answer="accepted")(list(without(Settled, claim=2)(events))),
    ),
    (
        "its worker was killed",
        "job a has the result of claim 1, but the server accepted that of claim 2",
        lambda events: but(FinalState, claim=1)([*events, Ended(at=150, job="a", claim=1)]),
    ),
    ("killed after its settlement arrived", "ran under claims", lambda e: [*without(FaultInjected)(e), *_second_run()]),
    ("retried", "job a ran under claims 1 and 2, and nothing interrupted any of them", without(Settled, claim=1)),
    ("handed back", "job a ran under claims 1 and 2, and nothing interrupted", without(Settled, claim=1)),
    ("its worker was killed", "job a ran under claims 1 and 2, and nothing interrupted", without(FaultInjected)),
    ("the lease was lost", "job a ran under claims 1 and 2, and nothing interrupted", without(LeaseExpired)),
    ("a stale claim starts when all is over", "job a ran under claims 1 and 2, and nothing", without(LeaseExpired)),
    ("an outage", "job a ran under claims 1 and 2, and nothing interrupted", without(Outage)),
    ("an outage", "job a ran under claims 1 and 2, and nothing interrupted", but(Outage, at=50.0)),
    (
        "its worker was killed",
        "did not run again within 5 s after its worker w of a was killed (claim 1)",
        but(Started, {"claim": 2}, at=110.0),
    ),
    (
        "killed after its settlement arrived",
        "did not run again within 5 s after its worker w of a was killed (claim 1)",
        lambda events: [*but(FinalState, state="ready", claim=0)(events), LeaseExpired(at=200, worker="x")],
    ),
]


def _second_run() -> list[Event]:
    return [Started(at=150, job="a", claim=2, worker="v"), Ended(at=151, job="a", claim=2)]


@pytest.mark.parametrize(
    ("story", "message", "change"), BROKEN, ids=[f"{story}: {message}" for story, message, _ in BROKEN]
)
def test_a_broken_promise_is_found(story: str, message: str, change: Change):
    violations = job_violations(change(STORIES[story](Story()).events), takeover=TAKEOVER)
    assert any(message in violation for violation in violations), violations


def test_a_drained_queue_has_no_waiting_jobs():
    events = STORIES["waits"](Story()).events
    assert job_violations(events, takeover=TAKEOVER, drained=True) == ["job a is still ready"]


def test_an_outage_extends_the_time_for_a_takeover():
    events = STORIES["its worker was killed"](Story()).events
    late = [msgspec.structs.replace(e, at=e.at + 20) if e.at > 103 else e for e in events]
    assert job_violations(late, takeover=TAKEOVER)
    down = [Outage(at=104, what="server", over=False), Outage(at=121, what="server", over=True)]
    assert job_violations([*late, *down], takeover=TAKEOVER) == []
    short = [Outage(at=104, what="server", over=False), Outage(at=110, what="server", over=True)]
    assert job_violations([*late, *short], takeover=TAKEOVER)


def test_a_kill_near_the_end_of_the_history_is_not_a_violation_yet():
    killed = Story().accepted().then(Started, claim=1, worker="w").then(FaultInjected, worker="w", how="killed")
    assert job_violations(killed.then(FinalState, state="running").events, takeover=TAKEOVER) == []


@given(st.sampled_from(range(len(BROKEN))), st.lists(st.sampled_from(sorted(STORIES)), max_size=8))
def test_a_broken_promise_is_found_among_many_that_were_kept(place: int, others: list[str]):
    story, message, change = BROKEN[place]
    events = list(change(STORIES[story](Story()).events))
    for number, other in enumerate(others):
        if other != "an outage":  # an outage excuses every worker
            events += STORIES[other](Story(f"job{number}", 100 + number / 10, first=100 * number + 100)).events
    assert any(message in violation for violation in job_violations(events, takeover=TAKEOVER))
