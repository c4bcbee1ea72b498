"""What the scripts of flows cost, counted in commands: no step depends on how many jobs a flow has."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.jobs.claims import Settlement
from penstock.jobs.flow_bindings import ROWS, FirstRows, FlowBindings, FlowRow, far_edge
from penstock.jobs.waits import WaitState
from tests.jobs.stand import FakeWorker, Stand, record

BATCH = 50
MOST = 600
"""Commands of one script that reports the end of a job to 128 others, and makes those ready."""


def commands(stand: Stand, act: Callable[[], Any]) -> int:
    """The commands that scripts call meanwhile."""

    def read() -> int:
        stats = stand.client.info("commandstats")
        return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_evalsha", "cmdstat_info"))

    before = read()
    act()
    return read() - before


def send(stand: Stand, rows: list[FlowRow]) -> list[int]:
    """Send the rows of a flow. Returns the commands of each slice."""
    slices = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
    bindings = FlowBindings(stand.bindings)
    return [commands(stand, partial(stand.run, bindings.enqueue(some, durable=False))) for some in slices]


def drain(stand: Stand, worker: FakeWorker) -> list[int]:
    """Complete all jobs in turns of `BATCH`. Returns the commands of each turn."""
    costs: list[int] = []
    replies: list[Any] = []
    done: list[Settlement] = []

    def turn(done: list[Settlement]) -> None:
        replies.append(worker.turn(BATCH, *done))

    while not replies or done or replies[-1].more:
        costs.append(commands(stand, partial(turn, done)))
        done = [Settlement(claim.token, b"1") for claim in replies[-1].claims]
    return costs


def test_a_turn_costs_the_same_however_many_jobs_one_waits_for(stand: Stand):
    costs = {}
    for number in (500, 10_000):
        rows = [FlowRow("opensw", f"d{number}", record())]
        rows += [FlowRow("job", f"{number}-{n}", record(), f"d{number}") for n in range(number)]
        enqueued = send(stand, [*rows, FlowRow("close", f"d{number}")])
        turns = drain(stand, FakeWorker(stand, f"w{number}"))
        assert stand.done(f"d{number}") == b"c1"
        costs[number] = (max(enqueued), sorted(turns)[len(turns) // 2], max(turns))
    assert max(max(of) for of in costs.values()) <= MOST
    for few, many in zip(costs[500], costs[10_000], strict=True):
        assert many <= few + 5


def test_each_delivery_costs_the_same_however_many_jobs_of_another_queue_one_waits_for(stand: Stand):
    number, piece = 10_000, 100
    rows = [
        FlowRow("opensw77", "d", record(payload=b"{}")),
        *(FlowRow("far", f"{n}", b"other", "d") for n in range(number)),
    ]
    send(stand, [*rows, FlowRow("close", "d")])

    def entry(n: int) -> list[bytes]:
        edge = far_edge(77, n, policy=b"s", wants=True, queue="", dependent="")[:10] + b"\0d"
        return [b"%d" % (n + 1), b"event", b"%d" % n, b"c" + len(edge).to_bytes(2) + edge + b"%d" % n]

    costs = []
    for first in range(0, number, piece):
        assert stand.state("d") == "a"
        entries = [part for n in range(first, first + piece) for part in entry(n)]
        call = stand.bindings.deliver("other", entries)
        costs.append(commands(stand, partial(stand.run, call)))
        stand.run(call)
    assert max(costs[:-1]) <= min(costs) + 2
    assert max(costs) <= MOST
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim(2)
    results = json.loads(claim.record.payload)["*results"]
    assert results == [[n, n] for n in range(number)]
    worker.settle(claim)
    assert stand.counts() == "0 0 0 0"
    assert not {"waiting", "inputs:d", "events", "opened"} & set(stand.dump())


def test_the_end_of_a_job_is_reported_to_many_in_parts(stand: Stand):
    rows = [FlowRow("opens-", f"d{n}", record()) for n in range(2000)]
    rows += [FlowRow("edge", "a", b"", f"d{n}") for n in range(2000)]
    rows += [FlowRow("job", "a", record()), *(FlowRow("close", f"d{n}") for n in range(2000))]
    send(stand, rows)
    costs = drain(stand, FakeWorker(stand, "w"))
    assert stand.counts() == "0 0 0 0"
    assert not {"waiting", "dependents", "events", "opened"} & set(stand.dump())
    assert max(costs) <= MOST, costs


def test_one_call_reads_no_more_than_a_mebibyte_of_results(stand: Stand):
    """More is refused before anything is written, and the caller sends fewer rows."""
    worker, large = FakeWorker(stand, "w"), b'"' + b"x" * 400_000 + b'"'
    stand.put(*(f"p{n}" for n in range(6)), ttl=60)
    worker.turn(0, *(Settlement(claim.token, large) for claim in worker.claim(6)))
    rows = [FlowRow("opens-", "d", record())] + [FlowRow("after", f"p{n}", b"", "d") for n in range(6)]
    rows.append(FlowRow("close", "d"))
    bindings = FlowBindings(stand.bindings)
    assert stand.run(bindings.enqueue(rows, durable=False)) == FirstRows(3)
    assert stand.states("d") == "-"
    for some in (rows[:3], rows[3:5], rows[5:]):
        assert stand.run(bindings.enqueue(some, durable=False)) is True
    assert stand.states("d") == "r"


@pytest.mark.parametrize("others", range(125, 131))
def test_an_end_is_reported_to_all_however_much_the_same_turn_reports(stand: Stand, others: int):
    """Whether the last visit of a turn is left for it, or none."""
    rows = [FlowRow("opens-", f"d{n}", record()) for n in range(others)]
    rows += [FlowRow("job", f"p{n}", record(), f"d{n}") for n in range(others)]
    rows += [FlowRow("opens-", f"e{n}", record()) for n in range(3)]
    rows += [FlowRow("edge", "last", b"", f"e{n}") for n in range(3)]
    rows += [FlowRow("job", "last", record())]
    rows += [FlowRow("close", f"d{n}") for n in range(others)] + [FlowRow("close", f"e{n}") for n in range(3)]
    send(stand, rows)
    worker = FakeWorker(stand, "w")
    claims = worker.claim(others + 1)
    assert claims[-1].id == "last"
    worker.turn(0, *(Settlement(claim.token, b"1") for claim in claims))
    drain(stand, worker)
    assert stand.states("e0", "e1", "e2") == "---"
    assert not {"waiting", "dependents", "events", "opened"} & set(stand.dump())


def test_a_dead_letter_counts_once_for_what_begins_to_wait_before_its_event(stand: Stand):
    """Its death is an event that waits for the next turn, and is reported to a new dependent at once."""
    rows = [FlowRow("opens-", f"d{n}", record()) for n in range(300)]
    rows += [FlowRow("edge", "a", b"", f"d{n}") for n in range(300)]
    rows += [FlowRow("job", "a", record()), *(FlowRow("close", f"d{n}") for n in range(300))]
    send(stand, rows)
    worker = FakeWorker(stand, "w")
    (claim,) = worker.claim()
    worker.settle(claim, ending="bury")
    assert "events" in stand.dump()
    bindings = FlowBindings(stand.bindings)
    rows = [FlowRow("opens-", "late", record()), FlowRow("after", "a", b"", "late"), FlowRow("close", "late")]
    stand.run(bindings.enqueue(rows, durable=False))
    drain(stand, worker)

    def dead(key: str) -> int:
        return WaitState.read(stand.client.hget(stand.base + "waiting", key)).dead

    assert [dead("d0"), dead("d299"), dead("late")] == [1, 1, 1]
    stand.run(stand.bindings.requeue(["a"]))
    stand.put("other")  # the events continue
    worker.turn(0)
    worker.turn(0)
    worker.turn(0)
    assert [dead("d0"), dead("d299"), dead("late")] == [0, 0, 0]
