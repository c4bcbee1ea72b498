"""Flows whose program died while it enqueued them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import EnqueueContext, Job, Middleware, Penstock, Status, chain, group
from penstock.errors import BadCall, JobCancelled
from penstock.jobs.flow_bindings import FlowBindings, FlowRow, far_edge
from tests.conftest import Do
from tests.jobs.stand import FakeWorker, Stand, record
from tests.speed import Deadline, scaled
from tests.worker.in_process import running_worker

PROGRAM = """
import os, signal, sys
from penstock import RESULT, Middleware, Penstock, chain, group

class Killer(Middleware):
    slices = 0
    def enqueue(self, context):
        Killer.slices += 1
        if Killer.slices == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield

app = Penstock(sys.argv[1], prefix=sys.argv[2])
app.add_middleware(Killer())

@app.task(queue="q", name="part")
async def part(n: int) -> int: ...

@app.task(queue=sys.argv[4], name="total")
async def total(parts: list[int]) -> int: ...

flow = part.using(tenant="t").map(range(400)).then(total.using(id="total").call(RESULT))
flow.then(total.using(id="last").call([1])).enqueue()
"""


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def face() -> str:
    return "aio"


@pytest.mark.parametrize(("totals", "killed_at"), [("q", 2), ("other", 4)])
async def test_a_flow_whose_program_was_killed_is_cancelled_after_ten_minutes(
    app: Penstock, do: Do, clock: Any, deployment: Any, totals: str, killed_at: int
):
    ran: list[int] = []

    @app.task(queue="q", name="part")
    async def part(n: int) -> int:
        ran.append(n)
        return n

    @app.task(queue=totals, name="total")
    async def total(parts: list[int]) -> int:
        raise AssertionError("it has not got all its parts")

    command = [sys.executable, "-c", PROGRAM, deployment.address, app.settings.prefix, str(killed_at), totals]
    program = await asyncio.to_thread(subprocess.run, command, env=os.environ, check=False)
    assert program.returncode == -signal.SIGKILL
    clock.advance_to(time.time())  # the program went by the server's clock, and may have needed seconds to start
    jobs: list[Job[Any]] = [app.queue(totals).job(key) for key in ("total", "last")]
    assert [await do(job.status) for job in jobs] == [Status.WAITING] * 2
    clock.advance(590)
    async with running_worker(app):
        deadline = Deadline(10)
        while len(ran) < 248:
            assert not deadline.passed(), f"only {len(ran)} parts ran"
            await asyncio.sleep(0.02)
        assert [await do(job.status) for job in jobs] == [Status.WAITING] * 2
    clock.advance(15)
    async with running_worker(app):
        for job in jobs:
            with pytest.raises(JobCancelled, match=r"the program that enqueued its flow died|it waited for"):
                await do(job.result, scaled(10))
    counts = await do(app.queue(totals).count)
    assert (counts.dependent, counts.cancelled) == (0, 2)


def open_row(key: str, dependent: str = "", number: str = "") -> FlowRow:
    return FlowRow(f"opensw{number}", key, record(), dependent)


def send(stand: Stand, *rows: FlowRow) -> Any:
    return stand.run(FlowBindings(stand.bindings).enqueue(rows, durable=False))


def test_a_flow_that_is_closed_is_not_cancelled(stand: Stand):
    send(stand, open_row("d"), FlowRow("job", "a", record(), "d"))
    assert "opened" in stand.dump()
    send(stand, FlowRow("job", "b", record(), "d"), FlowRow("close", "d"))
    assert not {"opened", "ticks"} & set(stand.dump())
    stand.advance(1000)
    assert stand.run(FlowBindings(stand.bindings).give_up_open()) == 0
    assert stand.states("a", "b", "d") == "rra"


def test_a_piece_with_one_id_twice_is_refused_whole(stand: Stand):
    before = stand.dump()
    with pytest.raises(BadCall, match="is in the queue already"):
        send(stand, open_row("d"), FlowRow("job", "a", record(), "d"), FlowRow("job", "a", record(), "d"))
    assert stand.dump() == before


def test_a_flow_in_one_part_is_noted_nowhere(stand: Stand):
    send(stand, open_row("d"), FlowRow("job", "a", record(), "d"), FlowRow("close", "d"))
    assert not {"opened", "ticks"} & set(stand.dump())


def test_an_open_job_that_is_cancelled_is_forgotten(stand: Stand):
    send(stand, open_row("d"), open_row("e", "d"), FlowRow("job", "a", record(), "e"))
    assert stand.run(stand.bindings.cancel(["d", "e"])) == ["cancelled", "cancelled"]
    assert "opened" not in stand.dump()
    stand.advance(601)
    assert stand.run(FlowBindings(stand.bindings).give_up_open()) == 0
    assert "ticks" not in stand.dump()


def test_many_open_jobs_are_cancelled_in_slices(stand: Stand):
    send(stand, *(open_row(f"d{n}") for n in range(250)))
    stand.advance(599)
    bindings = FlowBindings(stand.bindings)
    assert stand.run(bindings.give_up_open()) == 0
    stand.advance(1)
    worker = FakeWorker(stand, "w")
    assert worker.turn(0, address="{t:q}:p/1").has_overdue_flows
    assert [stand.run(bindings.give_up_open()) for _ in range(4)] == [100, 100, 50, 0]
    assert not {"opened", "ticks", "waiting"} & set(stand.dump())
    assert stand.counts() == "0 0 0 0"


def test_an_end_that_another_queue_reports_counts_once_and_only_for_its_wait(stand: Stand):
    far = FlowRow("far", "a", b"other", "d")
    send(stand, open_row("d", number="77"), far, far, FlowRow("close", "d"))

    def report(at: int, number: int, place: int, text: bytes = b"1") -> None:
        edge = far_edge(number, place, policy=b"s", wants=True, queue="", dependent="")[:10] + b"\0d"
        entry = [b"%d" % at, b"event", b"a", b"c" + len(edge).to_bytes(2) + edge + text]
        stand.run(stand.bindings.deliver("other", entry))

    report(5, 77, 0)
    report(5, 77, 0)
    report(6, 78, 1)
    assert stand.state("d") == "a"
    report(7, 77, 1, b'"x"')
    assert stand.state("d") == "r"
    assert stand.job("d").payload.endswith(b'"*results":[[0,1],[1,"x"]]}')


def test_edges_of_a_job_that_the_program_did_not_come_to_are_deleted(stand: Stand):
    send(stand, open_row("d"), open_row("e"), FlowRow("edge", "a", b"", "d"), FlowRow("edge", "a", b"", "e"))
    send(stand, FlowRow("edge", "b", b"", "e"))
    assert {"dependents", "dependents:a"} <= set(stand.dump())
    stand.advance(600)
    assert stand.run(FlowBindings(stand.bindings).give_up_open()) == 4
    assert not {"dependents", "dependents:a", "opened", "ticks", "waiting"} & set(stand.dump())


def test_edges_may_come_in_a_call_before_their_job(stand: Stand):
    send(stand, open_row("d"), open_row("e"), FlowRow("edge", "a", b"", "d"), FlowRow("edge", "a", b"", "e"))
    send(stand, FlowRow("job", "a", record()), FlowRow("close", "d"), FlowRow("close", "e"))
    assert not {"opened", "ticks"} & set(stand.dump())
    worker = FakeWorker(stand, "w")
    assert worker.settle(*worker.claim())
    assert stand.states("a", "d", "e") == "-rr"


async def test_an_open_job_that_is_cancelled_before_it_is_waited_for_counts_as_failed(app: Penstock, do: Do):
    """It is in the second call of the flow. Some of the jobs that wait for it come in the third."""

    class CancelBetween(Middleware):
        calls = 0

        def enqueue(self, _: EnqueueContext) -> Iterator[None]:
            CancelBetween.calls += 1
            if CancelBetween.calls == 3:
                app.queue("q").job("middle").cancel()
            yield

    app.add_middleware(CancelBetween())

    @app.task(queue="q")
    async def part(n: int) -> None: ...

    last = group(*(part.using(id=f"last-{n}").call(n) for n in range(260)))
    flow = chain(part.using(id="first").call(1), part.using(id="middle").call(2), last)
    await asyncio.to_thread(flow.enqueue)
    assert CancelBetween.calls > 3
    async with running_worker(app):
        for n in range(260):
            with pytest.raises(JobCancelled):
                await do(app.queue("q").job(f"last-{n}").result, scaled(10))
