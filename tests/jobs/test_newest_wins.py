"""A double with running="cancel" replaces a job that runs: it is cancelled, and the double runs when it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Penstock, Status, Unique
from penstock.core.operations import RoundTrip
from penstock.errors import JobCancelled, QueueFull
from tests.conftest import Do
from tests.jobs.stand import FakeWorker, Stand, problems_in, record, settlement
from tests.jobs.test_full_queues import bound
from tests.worker.in_process import running_worker

KEY = ("k", "l", 0)


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=3600)


def put(stand: Stand, key: str, **options: Any) -> str:
    """Enqueue a call with the key. Returns the id of its job."""
    found = [key]
    stand.run(stand.bindings.enqueue([key, record(unique=KEY, **options)], on_double=lambda _, id: found.append(id)))
    return found[-1]


def holder(stand: Stand) -> bytes | None:
    held: bytes | None = stand.client.hget(stand.base + "unique", "k")
    return held


def cancels(stand: Stand) -> list[bytes] | None:
    """The tokens of the jobs that the worker is to cancel."""
    return stand.run(stand.bindings.heartbeat("w", 3600))


def payload(stand: Stand, key: str) -> bytes:
    return bytes(stand.job(key).payload)


def test_a_double_of_a_waiting_job_gives_it_its_arguments(stand: Stand, worker: FakeWorker):
    put(stand, "a", payload=b"1")
    assert put(stand, "b", payload=b"2") == "a"
    assert (payload(stand, "a"), stand.states("a", "b")) == (b"2", "r-")


def test_a_double_of_a_running_job_waits_as_its_successor(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    (claim,) = worker.claim()
    assert put(stand, "b") == "b"
    assert stand.states("a", "b") == "xa"
    assert cancels(stand) == [claim.token]
    assert worker.claim() == []
    assert holder(stand) == b"b"


def test_a_newer_double_replaces_the_successor(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.claim()
    put(stand, "b", payload=b"1")
    assert put(stand, "c", payload=b"2" * 5000) == "b"
    assert (payload(stand, "b"), stand.states("a", "b", "c")) == (b"2" * 5000, "xa-")
    assert worker.claim() == []


@pytest.mark.parametrize(
    "ending", [None, *["cancel", "drop", "bury", "retry", "later", "until", "release", "loss", "crash"]]
)
def test_the_successor_is_ready_in_the_step_that_ends_the_run(stand: Stand, worker: FakeWorker, ending: Any):
    put(stand, "a")
    (claim,) = worker.claim()
    put(stand, "b")
    answer = worker.turn(1, settlement(claim, ending, 60, '{"reason":"x"}' if ending else ""))
    assert [one.id for one in answer.claims] == ["b"]
    assert stand.state("a") == ("d" if ending == "bury" else "-")
    assert holder(stand) == b"b"
    worker.settle(*answer.claims)
    assert holder(stand) is None


def test_the_successor_of_a_killed_worker_is_ready_when_the_lease_has_run_out(stand: Stand):
    put(stand, "a")
    FakeWorker(stand, "dead", lease=10).claim()
    put(stand, "b")
    stand.advance(11)
    other = FakeWorker(stand, "w")
    assert [one.id for one in other.claim(5)] == ["b"]
    assert stand.state("a") == "-"
    assert b"replaced" in (stand.done("a") or b"")


def test_a_chain_of_doubles_runs_one_after_another(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    claims = worker.claim()
    for name in "bcd":
        assert put(stand, name) == name
        assert worker.claim() == []
        worker.settle(*claims, ending="cancel")
        claims = worker.claim(5)
        assert [one.id for one in claims] == [name]


def test_a_job_that_waits_for_a_retry_is_cancelled_at_once(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.settle(*worker.claim(), ending="retry", delay=60, text='{"reason":"x"}')
    assert put(stand, "b") == "b"
    assert stand.states("a", "b") == "-r"
    assert (stand.done("a"), holder(stand)) == (b"nreplaced by job b", b"b")


def test_after_its_successor_was_cancelled_a_running_job_still_has_the_key(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    (claim,) = worker.claim()
    put(stand, "b")
    stand.run(stand.bindings.cancel(["b"]))
    assert holder(stand) == b"a"
    assert put(stand, "c") == "c"
    assert stand.states("a", "c") == "xa"
    worker.settle(claim, ending="cancel")
    assert stand.states("a", "c") == "-r"


def test_a_successor_that_expires_leaves_the_key_to_the_running_job(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.claim()
    put(stand, "b", expires=5)
    stand.advance(6)
    assert put(stand, "c") == "c"
    assert stand.states("a", "b", "c") == "x-a"


def test_a_successor_with_the_mode_of_another_task_gives_the_key_back_as_well(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.claim()
    put(stand, "b")
    stand.put("c", unique=("k", "r", 0), payload=b"1")
    assert (stand.states("a", "b", "c"), payload(stand, "b")) == ("xa-", b"1")
    stand.run(stand.bindings.cancel(["b"]))
    assert holder(stand) == b"a"


@pytest.mark.parametrize("mode", ["l", "r"])
def test_a_requeued_job_keeps_its_failures_when_a_double_replaces_its_arguments(
    stand: Stand, worker: FakeWorker, mode: str
):
    stand.put("a", unique=("k", mode, 0))
    worker.settle(*worker.claim(), ending="bury", text='{"reason":"x"}')
    stand.run(stand.bindings.requeue(["a"]))
    stand.put("b", unique=("k", mode, 0), payload=b"1")
    assert (stand.states("a", "b"), payload(stand, "a")) == ("r-", b"1")
    assert problems_in(stand.raw_dump()) == []
    worker.settle(*worker.claim())
    assert "failures" not in stand.raw_dump()


@pytest.mark.parametrize("expires", [(0, 5), (5, 0), (5, 7)])
def test_the_last_of_several_doubles_in_one_call_decides_when_the_job_expires(stand: Stand, expires: tuple[int, int]):
    put(stand, "a", expires=3)
    stand.put_drafts([(f"b{n}", record(unique=KEY, expires=one)) for n, one in enumerate(expires)])
    assert problems_in(stand.raw_dump()) == []
    noted = stand.client.zscore(stand.base + "expiring", "a")
    assert noted == (stand.clock.now_ms + expires[1] * 1000 if expires[1] else None)


def test_doubles_in_one_call_leave_one_successor(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    (claim,) = worker.claim()
    stand.put("b", "c", "d", unique=KEY)
    assert stand.states("b", "c", "d") == "a--"
    worker.settle(claim)
    assert stand.counts() == "1 0 0 0"


@pytest.mark.parametrize("mode", ["d", "s", "r", "b"])
def test_a_double_of_another_mode_leaves_a_running_job_alone(stand: Stand, worker: FakeWorker, mode: str):
    put(stand, "a", payload=b"1")
    worker.claim()
    stand.put("b", unique=("k", mode, 0), payload=b"2")
    assert (stand.states("a", "b"), payload(stand, "a"), cancels(stand)) == ("x-", b"1", [])


def test_a_repeated_call_makes_no_second_successor(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.claim()
    for _ in range(2):
        assert stand.put_as("me", 1, "b", unique=KEY) == []
    assert stand.run(stand.bindings.counts()).dependent == 1


def test_a_full_queue_refuses_a_successor_and_cancels_nothing(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    worker.claim()
    bound(stand, 1)
    call = stand.bindings.enqueue(["b", record(unique=KEY)])
    with pytest.raises(QueueFull):
        stand.run(RoundTrip(call.script, call.keys, ("me", 1, *call.args[2:]), call.read))
    assert (cancels(stand), holder(stand)) == ([], b"a")


def test_a_requeued_job_is_refused_while_its_successor_has_the_key(stand: Stand, worker: FakeWorker):
    put(stand, "a")
    (claim,) = worker.claim()
    put(stand, "b")
    worker.settle(claim, ending="bury", text='{"reason":"x"}')
    assert stand.state("a") == "d"
    assert holder(stand) == b"b"


async def test_the_newest_call_wins_with_a_worker(app: Penstock, do: Do):
    began, let_go, ran = asyncio.Event(), asyncio.Event(), list[int]()

    @app.task(queue="docs", unique=Unique("{doc}", on_double="replace", running="cancel"))
    async def render(doc: str, version: int) -> int:
        began.set()
        if version == 1:
            try:
                await asyncio.sleep(600)
            finally:
                await let_go.wait()  # otherwise the second call could run before the third one replaces it
        ran.append(version)
        return version

    async with running_worker(app):
        first = await do(render.enqueue, "a", 1)
        await asyncio.wait_for(began.wait(), 30)
        second = await do(render.enqueue, "a", 2)
        third = await do(render.enqueue, "a", 3)
        assert third.id == second.id != first.id
        let_go.set()
        assert await do(second.result, timeout=30) == 3
        with pytest.raises(JobCancelled):
            await do(first.result, timeout=30)
    assert ran == [3]


async def test_why_names_the_running_job(app: Penstock, do: Do):
    @app.task(queue="docs", unique=Unique("{doc}", on_double="replace", running="cancel"))
    async def render(doc: str) -> None: ...

    first = await do(render.enqueue, "a")
    (item,) = await do(app.queue("docs").claim)
    second = await do(render.enqueue, "a")
    why = await do(second.why)
    assert (why.kind, why.waits_for, await do(second.status)) == ("jobs", (first.id,), Status.WAITING)
    await do(item.complete)
    assert await do(second.status) is Status.READY


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_double": "newest"}, "on_double='newest'.*use 'keep' or 'replace'"),
        ({"running": "stop"}, "running='stop'.*use 'keep' or 'cancel'"),
        ({"running": "cancel"}, "needs on_double"),
        ({"running": "cancel", "on_double": "replace", "until": "start"}, "needs on_double"),
        ({"running": "cancel", "debounce": 5}, "needs on_double"),
        ({"on_double": "replace"}, 'until="start"'),
        ({"on_double": "replace", "throttle": 5}, "throttle decides itself"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options: Any, text: str):
    with pytest.raises(ValueError, match=text):
        Unique("{doc}", **options)
