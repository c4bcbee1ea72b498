"""The checker passes what a queue that keeps its promises may show, and refuses each way of breaking one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.checker import check
from penstock.testing.history import Ended, Enqueued, Event, Found, Hit, Lost, Outage, Settled, Started

TAKEOVER = 5.0


@dataclass
class Told:
    """The events of one job, a second from one to the next. `claim` numbers go up from `first`."""

    job: str = "a"
    at: float = 100.0
    first: int = 1

    def __post_init__(self) -> None:
        self.events: list[Event] = []

    def then(self, kind: type[Event], **fields: object) -> "Told":
        if "job" in kind.__struct_fields__:
            fields = {"job": self.job, **fields}
        if fields.get("claim"):
            fields["claim"] += self.first - 1  # type: ignore[operator]
        if "worker" in kind.__struct_fields__:
            fields["worker"] = f"{fields['worker']} of {self.job}"
        self.events.append(kind(at=self.at + len(self.events), **fields))  # type: ignore[arg-type]
        return self

    def accepted(self) -> "Told":
        return self.then(Enqueued, answer="asked").then(Enqueued, answer="accepted")

    def run(self, claim: int, worker: str = "w") -> "Told":
        return self.then(Started, claim=claim, worker=worker).then(Ended, claim=claim)

    def completed(self, claim: int) -> "Told":
        settled = self.then(Settled, claim=claim, how="complete", answer="accepted")
        return settled.then(Found, state="completed", claim=claim)


STORIES: dict[str, Callable[[Told], Told]] = {
    "completed": lambda t: t.accepted().run(1).completed(1),
    "waits": lambda t: t.accepted().then(Found, state="ready"),
    "cancelled": lambda t: t.accepted().then(Found, state="cancelled"),
    "dead": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Ended, claim=1, returned=False)
        .then(Settled, claim=1, how="bury", answer="accepted").then(Found, state="dead", reason="OSError")
    ),
    "retried": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Ended, claim=1, returned=False)
        .then(Settled, claim=1, how="retry", answer="accepted").run(2).completed(2)
    ),
    "handed back": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Settled, claim=1, how="release", answer="accepted")
        .run(2).completed(2)
    ),
    "its worker was killed": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Hit, worker="w", how="killed").run(2, "v").completed(2)
    ),
    "killed after its settlement arrived": lambda t: (
        t.accepted().run(1).then(Hit, worker="w", how="killed").then(Found, state="completed", claim=1)
    ),
    "its worker was frozen, and was refused": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Hit, worker="w", how="frozen").run(2, "v")
        .then(Settled, claim=2, how="complete", answer="accepted").then(Hit, worker="w", how="thawed")
        .then(Ended, claim=1).then(Settled, claim=1, how="complete", answer="refused")
        .then(Found, state="completed", claim=2)
    ),
    "a stale claim starts when all is over": lambda t: (
        t.accepted().run(2, "v").then(Settled, claim=2, how="complete", answer="accepted")
        .then(Started, claim=1, worker="w").then(Lost, worker="w").then(Found, state="completed", claim=2)
    ),
    "the lease was lost": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Lost, worker="w").run(2).completed(2)
    ),
    "an outage": lambda t: (
        t.accepted().then(Started, claim=1, worker="w").then(Outage, what="server", over=False)
        .then(Outage, what="server", over=True).run(2, "v").completed(2)
    ),
    "no answer to the enqueue": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="unknown").run(1).completed(1)
    ),
    "no answer, and it never came": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="unknown").then(Found, state="unknown")
    ),
    "its producer was killed": lambda t: t.then(Enqueued, answer="asked").run(1).completed(1),
    "refused": lambda t: (
        t.then(Enqueued, answer="asked").then(Enqueued, answer="refused").then(Found, state="unknown")
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_may_be_seen_is_passed(story: Callable[[Told], Told]):
    assert check(story(Told()).events, takeover=TAKEOVER) == []


@given(st.lists(st.tuples(st.sampled_from(sorted(STORIES)), st.floats(0, 60)), max_size=12))
def test_many_jobs_at_once_are_passed(chosen: list[tuple[str, float]]):
    events: list[Event] = []
    for number, (story, at) in enumerate(chosen):
        events += STORIES[story](Told(f"job{number}", at, first=100 * number + 1)).events
    assert check(events, takeover=TAKEOVER) == []


# --- histories that break a promise ---

Change = Callable[[list[Event]], Sequence[Event]]


def without(kind: type[Event], **fields: object) -> Change:
    return lambda events: [e for e in events if not _is(e, kind, fields)]


def but(kind: type[Event], where: dict[str, object] | None = None, /, **fields: object) -> Change:
    """With other fields in events of that kind."""
    return lambda events: [msgspec.structs.replace(e, **fields) if _is(e, kind, where or {}) else e for e in events]


def and_then(*more: Event) -> Change:
    return lambda events: [*events, *more]


def _is(event: Event, kind: type[Event], fields: dict[str, object]) -> bool:
    return isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())


SETTLED_AGAIN = Settled(at=200, job="a", claim=1, how="complete", answer="accepted")

BROKEN: list[tuple[str, str, Change]] = [
    ("completed", "job a was accepted, and is lost", but(Found, state="unknown", claim=0)),
    ("completed", "job a was accepted, and nobody looked", without(Found)),
    ("waits", "job a was accepted, and is lost", but(Found, state="unknown")),
    ("dead", "job a is dead, and nothing says why", but(Found, reason="")),
    ("completed", "job a is there, but nobody enqueued it", without(Enqueued)),
    ("waits", "job a is there, but nobody enqueued it", without(Enqueued)),
    ("completed", "job a is there, but its enqueue was refused", but(Enqueued, answer="refused")),
    ("completed", "claim 1 ended or was settled, but never started", without(Started)),
    ("completed", "job a was completed by claims 1", and_then(SETTLED_AGAIN)),
    ("completed", "job a was completed by claim 1, whose run did not return", without(Ended)),
    ("dead", "job a was completed by claim 1, whose run did not return", but(Settled, how="complete")),
    ("completed", "job a was completed by claim 1, but is ready", but(Found, state="ready", claim=0)),
    ("completed", "job a has the result of claim 7, whose run did not end", but(Found, claim=7)),
    (
        "its worker was frozen, and was refused",
        "job a has the result of claim 1, whose settlement was refused",
        but(Found, claim=1),
    ),
    ("completed", "job a has the result of claim 1, whose settlement was refused", but(Settled, answer="refused")),
    (
        "its worker was frozen, and was refused",
        "job a was completed by claims 1 and 2",
        but(Settled, answer="accepted"),
    ),
    (
        "its worker was frozen, and was refused",
        "job a was completed by claim 1, after claim 2 had it",
        lambda events: but(Settled, {"claim": 1}, answer="accepted")(list(without(Settled, claim=2)(events))),
    ),
    (
        "its worker was killed",
        "job a has the result of claim 1, but 2 was told that its own was accepted",
        lambda events: but(Found, claim=1)([*events, Ended(at=150, job="a", claim=1)]),
    ),
    ("killed after its settlement arrived", "ran under claims", lambda e: [*without(Hit)(e), *_second_run()]),
    ("retried", "job a ran under claims 1 and 2, and nothing happened to any of them", without(Settled, claim=1)),
    ("handed back", "job a ran under claims 1 and 2, and nothing happened", without(Settled, claim=1)),
    ("its worker was killed", "job a ran under claims 1 and 2, and nothing happened", without(Hit)),
    ("the lease was lost", "job a ran under claims 1 and 2, and nothing happened", without(Lost)),
    ("a stale claim starts when all is over", "job a ran under claims 1 and 2, and nothing", without(Lost)),
    ("an outage", "job a ran under claims 1 and 2, and nothing happened", without(Outage)),
    ("an outage", "job a ran under claims 1 and 2, and nothing happened", but(Outage, at=50.0)),
    (
        "its worker was killed",
        "did not run again within 5 s after worker w of a was killed with it (claim 1)",
        but(Started, {"claim": 2}, at=110.0),
    ),
    (
        "killed after its settlement arrived",
        "did not run again within 5 s after worker w of a was killed with it (claim 1)",
        lambda events: [*but(Found, state="ready", claim=0)(events), Lost(at=200, worker="x")],
    ),
]


def _second_run() -> list[Event]:
    return [Started(at=150, job="a", claim=2, worker="v"), Ended(at=151, job="a", claim=2)]


@pytest.mark.parametrize(("story", "told", "change"), BROKEN, ids=[f"{story}: {told}" for story, told, _ in BROKEN])
def test_what_cannot_be_is_refused(story: str, told: str, change: Change):
    faults = check(change(STORIES[story](Told()).events), takeover=TAKEOVER)
    assert any(told in fault for fault in faults), faults


def test_what_should_be_drained_is_drained():
    events = STORIES["waits"](Told()).events
    assert check(events, takeover=TAKEOVER, drained=True) == ["job a is still ready"]


def test_an_outage_prolongs_the_time_for_a_take_over():
    events = STORIES["its worker was killed"](Told()).events
    late = [msgspec.structs.replace(e, at=e.at + 20) if e.at > 103 else e for e in events]
    assert check(late, takeover=TAKEOVER)
    down = [Outage(at=104, what="server", over=False), Outage(at=121, what="server", over=True)]
    assert check([*late, *down], takeover=TAKEOVER) == []
    short = [Outage(at=104, what="server", over=False), Outage(at=110, what="server", over=True)]
    assert check([*late, *short], takeover=TAKEOVER)


def test_a_kill_near_the_end_of_the_history_is_no_fault_yet():
    killed = Told().accepted().then(Started, claim=1, worker="w").then(Hit, worker="w", how="killed")
    assert check(killed.then(Found, state="running").events, takeover=TAKEOVER) == []


@given(st.sampled_from(range(len(BROKEN))), st.lists(st.sampled_from(sorted(STORIES)), max_size=8))
def test_a_broken_promise_is_found_among_many_that_were_kept(place: int, others: list[str]):
    story, told, change = BROKEN[place]
    events = list(change(STORIES[story](Told()).events))
    for number, other in enumerate(others):
        if other != "an outage":  # it excuses everyone's
            events += STORIES[other](Told(f"job{number}", 100 + number / 10, first=100 * number + 100)).events
    assert any(told in fault for fault in check(events, takeover=TAKEOVER))
