"""No script works for long, whatever its jobs have: a slice has fewer jobs if each of them costs more."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from penstock import Concurrency, Penstock, Rate, Unique
from penstock.jobs import effort
from penstock.jobs.claims import Registration, Settlement
from penstock.jobs.constants import REASON
from penstock.jobs.durable_bindings import ChildRow, StepBindings
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.record import FLAGS_AT, Record
from penstock.worker.feed import Feed
from tests.conftest import commands
from tests.jobs.stand import FakeWorker, Limits, Stand, at_most, per_second, record, settlement
from tests.jobs.test_flow_bounds import commands as commands_of_scripts
from tests.servers import Server

MOST = 1000
"""Commands of one script: with an ordinary job each costs the server a few microseconds."""

JOBS = 200


def limits(n: int) -> list[Limits]:
    return [at_most(9, f"a{n}", "a"), at_most(9, f"b{n}", "b"), per_second(9, f"c{n}", "c")]


def put(stand: Stand, **options: Any) -> list[str]:
    """Enqueue jobs, each of which has three limits of its own, a unique key and an expiry."""
    options.setdefault("expires", 1000)
    drafts = [(f"j{n}", record(f"t{n}", limits=limits(n), unique=(f"u{n}", "d", 0), **options)) for n in range(JOBS)]
    for at in range(0, JOBS, 50):
        stand.put_drafts(drafts[at : at + 50])
    return [name for name, _ in drafts]


def claimed(stand: Stand, name: str = "w") -> FakeWorker:
    put(stand)
    worker = FakeWorker(stand, name)
    while len(worker.claim(50)):
        pass
    assert stand.counts() == f"0 0 {JOBS} 0"
    return worker


def turns(stand: Stand, want: int = 0) -> Callable[[], Any]:
    worker = FakeWorker(stand, "other")
    return lambda: worker.turn(want)


def purged(stand: Stand) -> Callable[[], Any]:
    put(stand)
    return lambda: stand.run(stand.bindings.purge(None, 0, 250))


def parked(stand: Stand) -> Callable[[], Any]:
    for n in range(JOBS):
        stand.put(f"j{n}", tenant=f"t{n}", limits=[*limits(n)[:2], per_second(1, "z", "c")])
    return lambda: stand.run(stand.bindings.purge_parked(None, 0, 250))


def abandoned(stand: Stand) -> Callable[[], Any]:
    claimed(stand)
    return lambda: stand.run(stand.bindings.abandon("w"))


def lost(stand: Stand) -> Callable[[], Any]:
    claimed(stand)
    stand.advance(60)
    return turns(stand)


def due(stand: Stand) -> Callable[[], Any]:
    put(stand, delay=5)
    stand.advance(5)
    return turns(stand)


def over(stand: Stand) -> Callable[[], Any]:
    put(stand, expires=5)
    stand.advance(5)
    return turns(stand, 100)


def orphaned(stand: Stand) -> Callable[[], Any]:
    stand.put("parent")
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    for at in range(0, JOBS, 50):
        rows = [ChildRow(f"{n}", "", f"c{n}", "f", record(f"t{n}", limits=limits(n))) for n in range(at, at + 50)]
        stand.run(StepBindings(stand.bindings).run_children("w", claim.token, rows, durable=False))
    worker.settle(claim)
    return turns(stand)


def admitted(stand: Stand) -> Callable[[], Any]:
    for n in range(JOBS):
        stand.put(f"j{n}", tenant=f"t{n}", limits=[at_most(1, "z", "a"), *limits(n)[1:]])
    stand.run(LimitBindings(stand.bindings).set_limit("c:a", 1000, 0, 0))
    return turns(stand)


@pytest.mark.parametrize("prepare", [purged, parked, abandoned, lost, due, over, orphaned, admitted])
def test_a_slice_ends_sooner_if_its_jobs_cost_more(stand: Stand, prepare: Callable[[Stand], Callable[[], Any]]):
    act = prepare(stand)

    def state() -> tuple[str, int]:
        return stand.counts(), stand.client.hlen(stand.base + "jobs")

    states, costs = [state()], list[int]()
    while len(states) < 2 or states[-1] != states[-2]:
        costs.append(commands_of_scripts(stand, act))
        states.append(state())
        assert len(costs) < JOBS
    assert len(costs) > 2
    assert max(costs) <= MOST, costs


def test_a_delivery_ends_where_the_script_has_done_enough(stand: Stand):
    entries = [
        part
        for n in range(100)
        for part in (b"%d" % (n + 1), b"enqueue", b"j%d" % n, record(f"t{n}", limits=limits(n), expires=9))
    ]
    replies = [0]

    def deliver() -> None:
        replies.append(stand.run(stand.bindings.deliver("other", entries[4 * replies[-1] :])))

    while replies[-1] < 100:
        assert commands_of_scripts(stand, deliver) <= MOST
        assert replies[-1] > replies[-2]
    assert len(replies) > 3
    assert stand.run(stand.bindings.deliver("other", entries[:40])) == 100  # a late copy
    assert stand.counts() == "100 0 0 0"


def test_the_limits_are_shown_without_reading_all_of_the_first_jobs(stand: Stand):
    for n in range(60):
        stand.put(f"a{n}", f"b{n}", limits=[per_second(1, f"k{n}")], payload=bytes(100_000))
    shown = stand.run(LimitBindings(stand.bindings).limits(60))
    assert len(shown[0].keys) == 60
    read = stand.client.info("commandstats")["cmdstat_hget"]["calls"]
    stand.run(LimitBindings(stand.bindings).limits(60))
    assert stand.client.info("commandstats")["cmdstat_hget"]["calls"] - read < 20


def results_left(stand: Stand) -> list[int]:
    """How many results are stored now, and after each turn until the last one is removed."""
    act, left = turns(stand), [stand.client.hlen(stand.base + "results")]
    while left[-1]:
        act()
        left.append(stand.client.hlen(stand.base + "results"))
        assert len(left) < 50
    return left


def test_few_large_results_are_removed_in_one_script(stand: Stand):
    for at in range(5):
        stand.put(*(f"j{at}-{n}" for n in range(20)), ttl=1)
        worker = FakeWorker(stand, f"w{at}")
        for claim in worker.claim(20):
            worker.settle(claim, text='"' + "x" * 50_000 + '"')
    stand.advance(5)
    left = results_left(stand)
    assert left[0] == 100
    assert all(before - after <= 25 for before, after in pairwise(left))


def test_no_script_reads_several_large_results(stand: Stand):
    stand.put(*(f"j{n}" for n in range(20)), ttl=1)
    worker = FakeWorker(stand, "w")
    for n, claim in enumerate(worker.claim(20)):
        worker.settle(claim, text='"' + "x" * (10 if n < 10 else 300_000) + '"')
    stand.advance(5)
    left = results_left(stand)
    assert left[0] == 20
    assert left[1] == 9
    assert all(before - after == 1 for before, after in pairwise(left[1:]))


@pytest.mark.parametrize(("options", "most"), [({}, 70), ({"limits": limits(1), "unique": ("u", "d", 0)}, 50)])
def test_a_cancel_of_many_jobs_takes_several_scripts(stand: Stand, options: dict[str, Any], most: int):
    names = [f"j{n}" for n in range(100)]
    for n, name in enumerate(names):
        unique = {"unique": (f"u{n}", "d", 0)} if options else {}
        stand.put(name, **{**options, **unique})
    first = stand.run(stand.bindings.cancel(names))
    assert 20 < len(first) <= most
    words = [*first]
    while len(words) < 100:
        more = stand.run(stand.bindings.cancel(names[len(words) :]))
        words += more
    assert words == ["cancelled"] * 100
    assert stand.counts() == "0 0 0 0"


def test_a_bulk_has_fewer_jobs_with_limits_in_a_round_trip(server: Server):
    with Penstock(server.address) as app:

        @app.task(queue="q")
        def plain(n: int) -> None: ...

        @app.task(queue="q", limit=[Concurrency(9, key="{n}"), Rate(9, per=1, key="{n}")])
        def limited(n: int) -> None: ...

        @app.task(queue="q", unique=Unique("{n}", on_double="replace", running="cancel"))
        def newest(n: int) -> None: ...

        app.enqueue_many([plain.call(0)])
        for task, calls in ((plain, 1), (limited, 7), (newest, 7)):
            before = commands(server.client)
            app.enqueue_many(task.call(n) for n in range(490))
            assert commands(server.client) - before == calls
        app.queue("q").purge()


def test_what_a_call_and_an_end_cost():
    drafts = [record(), record(limits=limits(1)), record(unique=("u", "l", 0)), record(unique=("u", "d", 0))]
    assert [effort.of_draft(one) for one in drafts] == [1, 10, 7, 2]
    assert [[*some] for some in effort.slices([3, 3, 9, 1, 1], int, 5)] == [[3], [3], [9], [1, 1]]


@pytest.mark.parametrize(("each", "taken"), [(1, 100), (2, 60), (3, 43)])
def test_a_claim_has_more_jobs_the_fewer_limits_they_have(stand: Stand, each: int, taken: int):
    stand.put_drafts([(f"j{n}", record(f"t{n}", limits=limits(n)[:each])) for n in range(JOBS)])
    worker = FakeWorker(stand, "w")
    claims = worker.claim(JOBS)
    assert len(claims) == taken
    worker.turn(0, *(settlement(claim) for claim in claims))
    assert stand.counts() == f"{JOBS - taken} 0 0 0"


def test_a_turn_that_settles_many_jobs_claims_few_of_other_tenants(stand: Stand):
    worker = FakeWorker(stand, "w")
    stand.put_drafts([(f"j{n}", record(f"t{n}")) for n in range(250)])
    claims = worker.claim(250)
    stand.put_drafts([(f"k{n}", record(f"t{n}")) for n in range(250)])
    turn = worker.turn(250, *map(settlement, claims))
    assert (len(turn.claims), turn.more, stand.counts()) == (50, True, "200 0 50 0")


def test_a_claim_of_many_tenants_ends_sooner_than_that_of_one(stand: Stand):
    stand.put_drafts([(f"j{n}", record(f"t{n}")) for n in range(400)])
    assert len(FakeWorker(stand, "w").claim(400)) == 300
    stand.client.flushall()
    stand.put_drafts([(f"j{n}", record()) for n in range(400)])
    assert len(FakeWorker(stand, "w").claim(400)) == 400


def test_a_turn_admits_parked_jobs_once(stand: Stand):
    stand.put_drafts([(f"j{n}", record(f"t{n}", limits=[at_most(1)])) for n in range(JOBS)])
    stand.run(LimitBindings(stand.bindings).set_limit("c:n", 1000, 0, 0))
    assert stand.counts() == "51 0 0 0"
    worker = FakeWorker(stand, "w")
    turn = worker.turn(JOBS)
    assert (len(turn.claims), stand.counts()) == (14, "87 0 14 0")


def test_a_purge_of_many_tenants_takes_more_scripts_than_that_of_one(stand: Stand):
    for tenants, purged in ((1, 250), (300, 100)):
        stand.put_drafts([(f"j{n}", record(f"t{n % tenants}")) for n in range(300)])
        assert stand.run(stand.bindings.purge(None, 0, 250))[0] == purged
        stand.client.flushall()


def test_the_end_of_a_job_costs_more_if_it_has_failed_before_or_its_failure_is_long():
    failed = record()[:FLAGS_AT] + bytes([REASON]) + record()[FLAGS_AT + 1 :]
    ends = [
        (
            effort.of_end(Record(one), is_completed=True, text=text),
            effort.of_end(Record(one), is_completed=False, text=text),
        )
        for one in (record(), failed)
        for text in (100, 13_000)
    ]
    assert ends == [(1, 5), (1, 8), (2, 6), (2, 9)]


@pytest.mark.parametrize(("size", "sent"), [(100, 50), (13_000, 31)])
async def test_a_turn_carries_fewer_failures_if_their_texts_are_long(app: Penstock, stand: Stand, size: int, sent: int):
    stand.put(*(f"j{n}" for n in range(60)))
    claims = FakeWorker(stand, "w").claim(60)
    feed = Feed(app.queue("q").first, lease=10, sleep=20, registration=Registration("host:1", 1))
    feed.held.update((claim.token, claim) for claim in claims)
    feed.settle(*(Settlement(claim.token, b"x" * size, "retry", 1.0) for claim in claims))
    feed.turn(0)
    assert len(feed.to_settle) == 60 - sent
