"""What the scripts of schedules do: each tick counts once, whoever serves it and however often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from penstock.jobs.claims import TurnReply
from penstock.jobs.schedule import ScheduleDefinition, ScheduleInfo, StoredSchedule
from penstock.jobs.schedule_bindings import ScheduleBindings, Tick
from penstock.jobs.timing import Missed, Timing
from tests.jobs.stand import START, FakeWorker, Stand, record, settlement

MINUTE = Timing(every=60)
DAY = 86400


class Scheduled:
    """A queue with schedules, on the stand."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.bindings = ScheduleBindings(stand.bindings)
        self.turns: dict[str, FakeWorker] = {}

    def define(
        self,
        name: str = "s",
        timing: Timing = MINUTE,
        *,
        how: Literal["declare", "renew", "put"] = "declare",
        released: float = 1.0,
        draft: bytes | None = None,
    ) -> str:
        definition = ScheduleDefinition(name, timing, draft or record(), released)
        following = timing.following(self.stand.clock.now_ms)
        (word,) = self.stand.run(self.bindings.define(how, [(definition, following)]))
        return word

    def turn(self, name: str = "w", want: int = 0, sleep: float = 0.0) -> TurnReply:
        worker = self.turns.setdefault(name, FakeWorker(self.stand, f"{name}.1", lease=10_000_000.0))
        return worker.turn(want, address=f"{name}/1", sleep=sleep)

    def offered(self, name: str = "w") -> list[Tick]:
        """The ticks that a turn offers to this worker."""
        return self.computed(self.turn(name).ticks)

    def computed(self, offers: Sequence[Any]) -> list[Tick]:
        ticks = []
        for name, packed in zip(offers[1::2], offers[2::2], strict=True):
            stored = StoredSchedule.read(name, packed)
            times, following = stored.timing.due(stored.next_tick, offers[0])
            ticks.append(Tick(stored, times, [(stored.job_id(at), stored.draft) for at in times], following))
        return ticks

    def serve(self, ticks: Sequence[Tick]) -> list[bool]:
        return self.stand.run(self.bindings.tick(ticks))

    def show(self, name: str = "s") -> StoredSchedule:
        stored = self.stand.run(self.bindings.show(name))[1]
        assert stored is not None
        return stored

    @property
    def next_tick(self) -> int:
        return int(self.stand.dump()["meta"].get(b"next_tick", 0))


@pytest.fixture
def scheduled(stand: Stand) -> Scheduled:
    return Scheduled(stand)


def test_a_due_tick_is_offered_and_enqueues_its_job(scheduled: Scheduled, stand: Stand):
    assert scheduled.define() == "created"
    stand.advance(59.999)
    assert scheduled.offered() == []
    stand.advance(0.001)
    (tick,) = scheduled.offered()
    assert scheduled.serve([tick]) == [True]
    assert stand.state(f"schedule:s:{START + 60_000}") == "r"
    stored = scheduled.show()
    assert (stored.next_tick, stored.last, stored.count) == (START + 120_000, START + 60_000, 1)


def test_a_tick_is_offered_to_one_worker_and_to_another_after_five_seconds(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    assert len(scheduled.offered("a")) == 1
    assert scheduled.offered("b") == []
    stand.advance(5)
    assert len(scheduled.offered("b")) == 1


def test_of_several_workers_the_first_counts(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    (first,) = scheduled.offered("a")
    stand.advance(5)
    (second,) = scheduled.offered("b")
    assert scheduled.serve([second]) == [True]
    before = stand.dump()
    assert scheduled.serve([first]) == [False]
    assert scheduled.serve([second]) == [False], "a call that is sent again changes nothing"
    assert stand.dump() == before


def test_a_worker_that_computed_with_an_older_version_changes_nothing(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    (tick,) = scheduled.offered()
    assert scheduled.define(timing=Timing(every=90), released=2.0) == "replaced"
    assert scheduled.serve([tick]) == [False]
    assert stand.counts() == "0 0 0 0"
    assert scheduled.show().next_tick == START + 150_000


def test_a_program_without_a_worker_is_offered_no_tick(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    turn = stand.run(stand.bindings.turn("once", 1, lease=10, want=1, address="p/1", once=True))
    assert list(turn.ticks) == []
    assert len(scheduled.offered()) == 1


def test_the_timekeeper_wakes_at_the_next_tick(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(10)
    assert scheduled.turn("p", want=1, sleep=100).due_in == 50
    scheduled.define("t", Timing(every=5))
    assert stand.messages("p") == ["1 5000"]


def test_a_busy_worker_takes_a_turn_at_a_tick_as_well(scheduled: Scheduled, stand: Stand):
    assert scheduled.turn("p").due_in is None
    scheduled.define()
    assert scheduled.turn("p").due_in == 60.1


def test_the_job_of_a_tick_wakes_an_idle_worker(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    scheduled.turn("p", want=1, sleep=1000)
    stand.advance(60)
    ticks = scheduled.offered("w")
    stand.messages("p")
    scheduled.serve(ticks)
    assert "1 0" in stand.messages("p")


@pytest.mark.parametrize("first", [1.0, 2.0])
def test_the_definition_of_the_latest_release_wins_in_any_order(scheduled: Scheduled, stand: Stand, first: float):
    old, new = Timing(every=60), Timing(every=90)
    order = [(old, 1.0), (new, 2.0)] if first == 1.0 else [(new, 2.0), (old, 1.0)]
    words = [scheduled.define(timing=timing, released=released) for timing, released in order]
    assert words == (["created", "replaced"] if first == 1.0 else ["created", "older"])
    assert scheduled.show().timing == new
    assert scheduled.define(timing=old, released=1.0) == "older"
    assert scheduled.show().timing == new


def test_two_definitions_of_one_release_agree_on_one(scheduled: Scheduled, stand: Stand):
    timings = Timing(every=60), Timing(every=90)
    for timing in (*timings, *timings):
        scheduled.define(timing=timing)
    winner = scheduled.show().timing
    for timing in timings[::-1]:
        scheduled.define(timing=timing)
    assert scheduled.show().timing == winner


def test_a_declaration_that_is_repeated_keeps_the_next_tick(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(45)
    assert scheduled.define() == "kept"
    assert scheduled.show().next_tick == START + 60_000


def test_what_no_live_worker_declares_for_a_day_is_orphaned_and_enqueues_nothing(scheduled: Scheduled, stand: Stand):
    scheduled.define(timing=Timing(every=DAY))
    scheduled.define("alive", timing=Timing(every=DAY))
    stand.advance(DAY / 2)
    scheduled.define("alive", timing=Timing(every=DAY), how="renew")
    stand.advance(DAY / 2 + 1)
    assert [tick.schedule.name for tick in scheduled.offered()] == ["alive"]
    assert scheduled.show().state == b"o"
    assert scheduled.define(timing=Timing(every=DAY)) == "kept", "a worker that declares it again brings it back"
    assert (scheduled.show().state, scheduled.show().next_tick) == (b"a", START + 2 * DAY * 1000 + 1000)


def test_an_orphaned_schedule_that_is_resumed_belongs_to_the_operator(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(DAY + 1)
    assert scheduled.offered() == []
    assert stand.run(scheduled.bindings.resume("s", stand.clock.now_ms + 1000))
    stand.advance(3 * DAY)
    assert len(scheduled.offered()) == 1


def test_a_renewal_does_not_bring_a_removed_schedule_back_but_a_new_worker_does(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    assert stand.run(scheduled.bindings.remove("s"))
    assert not stand.run(scheduled.bindings.remove("s"))
    assert scheduled.define(how="renew") == "gone"
    assert stand.run(scheduled.bindings.show("s"))[1] is None
    assert scheduled.define() == "created"


def test_a_paused_schedule_offers_nothing_and_skips_what_passed(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    assert stand.run(scheduled.bindings.pause("s"))
    assert scheduled.next_tick == 0
    stand.advance(600)
    assert scheduled.offered() == []
    assert scheduled.define(timing=Timing(every=90), released=9.0) == "replaced", "a new definition stays paused"
    assert scheduled.show().state == b"p"
    stand.run(scheduled.bindings.resume("s", stand.clock.now_ms + 90_000))
    assert scheduled.next_tick == stand.clock.now_ms + 90_000
    assert not stand.run(scheduled.bindings.pause("none"))


def test_a_pause_in_between_makes_an_offer_void(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    ticks = scheduled.offered()
    stand.run(scheduled.bindings.pause("s"))
    assert scheduled.serve(ticks) == [False]


def test_what_live_workers_declare_is_not_replaced_at_run_time(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    assert scheduled.define(timing=Timing(every=90), how="put") == "declared"
    assert scheduled.define("mine", how="put") == "created"
    assert scheduled.define("mine", timing=Timing(every=90), how="put") == "replaced"
    stand.advance(10 * DAY)
    assert [tick.schedule.name for tick in scheduled.offered()] == ["mine"], "added at run time: never orphaned"


def test_a_job_of_the_same_tick_that_is_there_already_is_not_enqueued_again(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.put(f"schedule:s:{START + 60_000}")
    stand.advance(60)
    assert scheduled.serve(scheduled.offered()) == [True]
    assert stand.counts() == "1 0 0 0"


def test_missed_ticks_under_all_are_enqueued_a_hundred_at_a_time(scheduled: Scheduled, stand: Stand):
    scheduled.define(timing=Timing(every=1, missed="all"), how="put")
    stand.advance(250.5)
    sizes = []
    while ticks := scheduled.offered():
        sizes.append(len(ticks[0].jobs))
        scheduled.serve(ticks)
    assert sizes == [100, 100, 50]
    assert stand.counts() == "250 0 0 0"


@pytest.mark.parametrize("missed", ["one", "all"])
def test_the_last_tick_of_a_schedule_is_the_latest_that_had_a_job(scheduled: Scheduled, stand: Stand, missed: Missed):
    scheduled.define(timing=Timing(every=1, missed=missed), how="put")
    stand.advance(30)
    scheduled.serve(scheduled.offered())
    assert scheduled.show().last == START + 30_000


def test_a_turn_offers_at_most_a_hundred_ticks_and_256_kib(scheduled: Scheduled, stand: Stand):
    for i in range(130):
        scheduled.define(f"s{i}")
    stand.advance(60)
    assert len(scheduled.offered()) == 100
    assert len(scheduled.offered()) == 30
    stand.advance(60)
    for i in range(130):
        scheduled.define(f"s{i}", draft=record(payload=b'"' + b"x" * 100_000 + b'"'), released=2.0)
    stand.advance(60)
    assert len(scheduled.offered()) == 2


def test_a_clock_that_goes_back_repeats_no_tick(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    scheduled.serve(scheduled.offered())
    stand.advance(-30)
    assert scheduled.offered() == []
    stand.advance(30)
    assert scheduled.offered() == []
    stand.advance(60)
    assert [tick.jobs[0][0] for tick in scheduled.offered()] == [f"schedule:s:{START + 120_000}"]


def test_the_options_of_the_call_hold_for_each_job(scheduled: Scheduled, stand: Stand):
    scheduled.define(draft=record("ada", 2, expires=30))
    stand.advance(60)
    scheduled.serve(scheduled.offered())
    job = stand.job(f"schedule:s:{START + 60_000}")
    assert (job.tenant, job.priority, job.expires) == ("ada", 2, START + 90_000)


def test_a_cron_line_without_further_dates_ends(scheduled: Scheduled, stand: Stand):
    scheduled.define()
    stand.advance(60)
    (tick,) = scheduled.offered()
    scheduled.serve([Tick(tick.schedule, tick.times, tick.jobs, None)])
    assert scheduled.next_tick == 0
    assert scheduled.show().next_tick == 0


def test_all_schedules_are_found_page_by_page(scheduled: Scheduled, stand: Stand):
    for i in range(300):
        scheduled.define(f"s{i}")
    names, cursor = set(), "0"
    while True:
        _, cursor, page = stand.run(scheduled.bindings.scan(cursor, 50))
        names |= {one.name for one in page}
        if cursor == "0":
            break
    assert names == {f"s{i}" for i in range(300)}


# --- its last runs ---


def last_runs(scheduled: Scheduled) -> list[tuple[str, str, float | None]]:
    """The ends of the ids, the outcomes and the seconds of the last runs, the latest first."""
    runs = ScheduleInfo.of("q", scheduled.show(), scheduled.stand.clock.now_ms).runs
    return [(run.job.removeprefix("q:schedule:s:"), str(run.outcome), run.seconds) for run in runs]


def test_a_schedule_keeps_how_its_last_ten_jobs_ended(scheduled: Scheduled, stand: Stand) -> None:
    scheduled.define()
    worker = FakeWorker(stand, "runner", lease=1000.0)
    for number in range(12):
        stand.put(f"schedule:s:{number}")
        (claim,) = worker.claim()
        stand.advance(number)
        worker.settle(claim)
    assert last_runs(scheduled) == [(str(number), "completed", float(number)) for number in range(11, 1, -1)]
    assert len(stand.dump()["runs"][b"s"]) < 10 * 40


def test_each_way_to_end_is_noted_once(scheduled: Scheduled, stand: Stand) -> None:
    scheduled.define()
    worker = FakeWorker(stand, "runner")
    stand.put("schedule:s:1", "schedule:s:2", "schedule:s:3", "schedule:s:4", "other")
    stand.put("schedule:s:5", expires=1)
    claims = worker.claim(4)
    worker.settle(claims[0], ending="retry", delay=60.0)
    worker.settle(claims[1], ending="bury")
    worker.settle(claims[2], ending="drop")
    for _ in range(2):  # a settlement whose reply was lost is sent again
        worker.stand.run(stand.bindings.settle("runner", settlement(claims[3])))
    stand.run(stand.bindings.cancel(["schedule:s:1", "other"]))
    stand.advance(2)
    assert FakeWorker(stand, "next").claim(4) == []
    expected = [("5", "expired", None), ("1", "cancelled", None), ("4", "completed", 0.0), ("3", "dropped", 0.0)]
    assert last_runs(scheduled) == [*expected, ("2", "dead", 0.0)]
    stand.run(stand.bindings.remove_dead(["schedule:s:2"]))
    assert last_runs(scheduled) == [*expected, ("2", "dead", 0.0)]


def test_the_runs_of_a_schedule_that_was_removed_are_gone(scheduled: Scheduled, stand: Stand) -> None:
    scheduled.define()
    worker = FakeWorker(stand, "runner")
    stand.put("schedule:s:1", "schedule:s:2", "schedule::odd", "schedule", "s")
    first, second, *others = worker.claim(5)
    worker.settle(first)
    assert stand.run(scheduled.bindings.remove("s"))
    for one in (second, *others):
        worker.settle(one)
    assert "runs" not in stand.dump()
    scheduled.define()
    assert last_runs(scheduled) == []
