"""A claim that waits for several queues: the first that has work, in their order, without polling or losing a job."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from penstock import Penstock
from penstock.errors import ConfigurationError
from tests.conftest import Apps, Do, MakeApp, commands, until
from tests.jobs.stand import idle_workers
from tests.servers import interrupt_when
from tests.speed import scaled

NAMES = ["high", "normal", "low"]
"""Of queues whose slots are on two nodes of the tests' cluster."""

PROGRAM = """
import sys
from penstock import Penstock
app = Penstock(sys.argv[1], prefix=sys.argv[2])
items = app.claim(["high", "normal", "low"], wait=None, lease=6)
print(items[0].body, flush=True)
sys.stdin.read()
"""


def sleepers(raw: Any, app: Penstock, name: str) -> int:
    return idle_workers(raw, app.queue(name).first.bindings.keys.base)


async def asleep(raw: Any, app: Penstock, n: int = 1) -> None:
    await until(lambda: [sleepers(raw, app, name) for name in NAMES] == [n] * len(NAMES))


async def test_jobs_that_are_there_come_in_the_order_of_the_queues(app: Penstock, do: Do, raw: Any):
    for name in reversed(NAMES):
        await do(app.queue(name).put_many, [f"{name} 1", f"{name} 2"])
    found = []
    for _ in range(6):
        (item,) = await do(app.claim, NAMES, wait=10)
        assert item.body.startswith(item.queue)
        found.append(item.body)
        await do(item.complete)
    assert found == ["high 1", "high 2", "normal 1", "normal 2", "low 1", "low 2"]
    assert [sleepers(raw, app, name) for name in NAMES] == [0, 0, 0]


async def test_several_jobs_come_from_several_queues(app: Penstock, do: Do):
    for name in reversed(NAMES):
        await do(app.queue(name).put, name)
    items = await do(app.claim, NAMES, 2, wait=10, lease=30)
    assert [item.queue for item in items] == ["high", "normal"]
    for item in [*items, *await do(app.claim, NAMES, 5, wait=None)]:
        await do(item.complete)


@pytest.mark.parametrize("wait", [30, None])
@pytest.mark.parametrize("name", NAMES)
async def test_a_job_in_any_queue_wakes_a_waiting_claim(app: Penstock, do: Do, raw: Any, name: str, wait: float | None):
    claim = asyncio.create_task(do(app.claim, NAMES, wait=wait))
    await asleep(raw, app)
    await do(app.queue(name).put, "x")
    (item,) = await asyncio.wait_for(claim, scaled(5))
    assert (item.queue, item.body) == (name, "x")
    await do(item.complete)
    await asleep(raw, app, 0)


async def test_a_delayed_job_of_the_last_queue_wakes_a_waiting_claim_when_it_is_due(app: Penstock, do: Do, raw: Any):
    claim = asyncio.create_task(do(app.claim, NAMES, wait=30))
    await asleep(raw, app)
    began = time.monotonic()
    await do(app.queue("low").put, "x", delay=0.3)
    (item,) = await asyncio.wait_for(claim, scaled(5))
    assert time.monotonic() - began >= 0.3
    await do(item.complete)


async def test_a_wait_that_is_over_returns_nothing_and_leaves_nothing(app: Penstock, do: Do, raw: Any):
    began = time.monotonic()
    assert await do(app.claim, NAMES, wait=0.15) == []
    assert 0.15 <= time.monotonic() - began < scaled(5)
    assert [sleepers(raw, app, name) for name in NAMES] == [0, 0, 0]


async def test_each_of_several_claims_gets_one_job(app: Penstock, do: Do, raw: Any):
    claims = [asyncio.create_task(do(app.claim, NAMES, wait=30)) for _ in range(6)]
    await asleep(raw, app, 6)
    for name in NAMES:
        await do(app.queue(name).put_many, [f"{name} 1", f"{name} 2"])
    found = await asyncio.wait_for(asyncio.gather(*claims), scaled(10))
    assert sorted(item.body for (item,) in found) == sorted(f"{name} {n}" for name in NAMES for n in (1, 2))
    for (item,) in found:
        await do(item.complete)
    await asleep(raw, app, 0)


async def test_a_waiting_claim_does_not_poll(make_app: MakeApp, do: Do, raw: Any, nodes: list[Any]):
    app = make_app(ping_interval=0.3)
    claim = asyncio.create_task(do(app.claim, NAMES, wait=3))
    await asleep(raw, app)
    await asyncio.sleep(0.1)
    began, before = time.monotonic(), sum(map(commands, nodes))
    await asyncio.sleep(0.7)
    # A PING every 0.3 s to each node.
    assert sum(map(commands, nodes)) - before <= len(nodes) * (1 + (time.monotonic() - began) / 0.3)
    assert await claim == []


async def test_a_queue_with_shards_wakes_a_waiting_claim_from_each_of_them(make_app: MakeApp, do: Do, raw: Any):
    app = make_app(sleep=0.2)
    split = app.queue("normal", shards=2)
    await do(split.check_shards)
    tenants = [f"tenant-{n}" for n in range(12)]

    def waiting() -> list[int]:
        return [idle_workers(raw, shard.bindings.keys.base) for shard in split.shards.current.known]

    for number in range(3):
        if number == 2:
            assert await do(split.add_shards, 3)
        claim = asyncio.create_task(do(app.claim, NAMES, wait=60))
        await until(lambda: set(waiting()) == {1} and sleepers(raw, app, "low") == 1)
        shard = split.shards.current.known[number]
        await do(split.put, "x", tenant=next(one for one in tenants if split.shard_for(one) is shard))
        (item,) = await asyncio.wait_for(claim, scaled(5))
        assert (item.queue, item.shard.name) == ("normal", shard.name)
        await do(item.complete)
        assert set(waiting()) == {0}


# --- cancelled, interrupted and killed ---


async def test_a_claim_that_is_cancelled_at_any_moment_loses_no_job(app: Penstock):
    for n in range(24):
        claim = asyncio.create_task(app.claim.aio(NAMES, 3, wait=None if n % 2 else 0))
        for _ in range(n):
            await asyncio.sleep(0)
        await asyncio.gather(*(app.queue(name).put.aio(name) for name in NAMES))
        for _ in range(n // 4):
            await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait([claim])
        items = [] if claim.cancelled() else claim.result()
        while len(items) < 3:
            more = await app.claim.aio(NAMES, 3, wait=scaled(2))
            assert more, "a job is held by the claim that was cancelled"
            items += more
        assert sorted(item.body for item in items) == sorted(NAMES)
        for item in items:
            await item.complete.aio()


async def test_a_cancelled_claim_passes_on_a_wake_up_that_was_sent_to_it(app: Penstock, raw: Any):
    first = asyncio.create_task(app.claim.aio(NAMES, wait=30))
    await asleep(raw, app, 1)
    second = asyncio.create_task(app.claim.aio(NAMES, wait=30))
    await asleep(raw, app, 2)
    await app.queue("normal").put.aio("x")
    second.cancel()  # it became idle last, so it is the one that is woken
    (item,) = await asyncio.wait_for(first, scaled(5))
    assert item.deliveries == 1
    await item.complete.aio()
    await asleep(raw, app, 0)


def test_an_interrupted_claim_takes_nothing_and_leaves_nothing(apps: Apps, raw: Any):
    with apps.make() as app:
        app.queue("high").count()
        with interrupt_when(lambda: sleepers(raw, app, "low")), pytest.raises(KeyboardInterrupt):
            app.claim(NAMES, wait=None)
        assert [sleepers(raw, app, name) for name in NAMES] == [0, 0, 0]


@pytest.mark.damages  # the program that was killed while idle stays registered for a while
async def test_a_killed_program_loses_neither_its_job_nor_the_next_one(
    app: Penstock, do: Do, raw: Any, deployment: Any
):
    command = [sys.executable, "-c", PROGRAM, deployment.address, app.settings.prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle:
        await asleep(raw, app)
        os.kill(idle.pid, signal.SIGKILL)
    await do(app.queue("low").put, "next")  # notifies the killed program
    await do(app.queue("normal").put, "held")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
        os.kill(holder.pid, signal.SIGKILL)
    found: set[tuple[str, str, int]] = set()
    while len(found) < 2:
        (item,) = await asyncio.wait_for(do(app.claim, NAMES, wait=None), scaled(30))
        found.add((item.queue, item.body, item.deliveries))
        await do(item.complete)
    assert found == {("normal", "held", 2), ("low", "next", 1)}


# --- bad input ---


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([], "the names of one or more queues"),
        ("high", "several values"),
        (None, "several values"),
        (["high", 5], "the names of one or more queues"),
        (["high", ["low"]], "the names of one or more queues"),
        (["high", "low", "high"], "high is named twice"),
    ],
)
async def test_queues_that_are_none_are_refused(app: Penstock, do: Do, queues: Any, words: str):
    with pytest.raises(ValueError, match=words):
        await do(app.claim, queues, wait=1)


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 1001}, {"n": True}, {"wait": -1}, {"wait": "5"}, {"lease": 0}])
async def test_numbers_that_no_claim_can_have_are_refused(app: Penstock, do: Do, options: Any):
    with pytest.raises(ValueError, match=next(iter(options)) if "n" not in options else "1 to 1000 jobs"):
        await do(app.claim, NAMES, **options)


async def test_a_name_that_no_queue_can_have_is_refused(app: Penstock, do: Do):
    with pytest.raises(ConfigurationError):
        await do(app.claim, ["high", "lo w"], wait=1)
