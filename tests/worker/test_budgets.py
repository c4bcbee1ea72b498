"""Jobs that weigh, hold and book what they take of a rate, on the loop, in threads, with shards."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import BadCall, Concurrency, ConfigurationError, Penstock, Rate, RetryLater, Status, current
from penstock.errors import NoCurrentJob
from tests.conftest import Apps, Do, Time
from tests.everywhere import face  # noqa: F401 - a fixture
from tests.servers import Server
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_job_that_must_wait_closes_its_key_and_waits_itself(app: Penstock, clock: Time, kind: str):
    runs: list[tuple[str, str]] = []

    def limited(account: str, name: str) -> bool:
        runs.append((account, name))
        return len(runs) == 1

    limit = Rate(100, per=1, key="{account}", name="crm")
    if kind == "def":

        @app.task(queue="q", limit=limit)
        def sync(account: str, name: str) -> None:
            if limited(account, name):
                current().hold("crm", seconds=30)
                raise RetryLater(0, "429")
    else:

        @app.task(queue="q", limit=limit)
        async def sync(account: str, name: str) -> None:
            if limited(account, name):
                await current().hold.aio("crm", seconds=30)
                raise RetryLater(0, "429")

    first = await sync.enqueue.aio("acme", "a")
    await run_burst(app)
    second, other = await sync.enqueue.aio("acme", "b"), await sync.enqueue.aio("bolt", "c")
    await run_burst(app)
    assert runs == [("acme", "a"), ("bolt", "c")]
    assert (await first.status.aio(), await second.status.aio()) == (Status.PARKED, Status.PARKED)
    assert (await first.info.aio()).attempts == 0
    assert (await other.status.aio()) is Status.COMPLETED
    why = await second.why.aio()
    assert why.kind == "limit"
    assert why.until == pytest.approx(clock.now + 30, abs=0.1)
    assert "rate crm, key acme is closed by a job or an operator: it opens in " in why.sentence

    clock.advance(30)
    await run_burst(app)
    assert sorted(runs[2:]) == [("acme", "a"), ("acme", "b")]


async def test_an_operator_closes_and_opens_a_key(app: Penstock, do: Do, clock: Time):
    @app.task(queue="q", limit=Rate(100, per=1, name="crm"))
    async def sync() -> None: ...

    queue = app.queue("q")
    job = await sync.enqueue.aio()
    await do(queue.hold_limit, "crm", "", datetime.fromtimestamp(clock.now + 60, UTC))
    await run_burst(app)
    assert await job.status.aio() is Status.PARKED
    ((usage,),) = [limit.keys for limit in await do(queue.limits)]
    assert usage.parked == 1
    assert 55 < usage.held_for <= 60
    await do(queue.hold_limit, "crm", "", None)
    await run_burst(app)
    assert await job.status.aio() is Status.COMPLETED


async def test_bad_holds_are_refused_with_what_to_do(app: Penstock, do: Do, clock: Time):
    @app.task(queue="q", limit=[Concurrency(5, name="pool"), Rate(100, per=1, name="crm")])
    async def sync() -> None: ...

    await sync.enqueue.aio()
    hold = app.queue("q").hold_limit
    past = datetime.fromtimestamp(clock.now - 1, UTC)
    first, last = (one.replace(tzinfo=UTC) for one in (datetime.min, datetime.max))
    for date in (past, datetime.fromtimestamp(clock.now + 367 * 86_400, UTC)):
        with pytest.raises(BadCall, match=r"is past, or more than a year away, by the server's clock: to open"):
            await do(hold, "crm", "", date)
    wrong = [
        0,
        -1,
        4e7,
        float("nan"),
        float("inf"),
        True,
        "30",
        timedelta(seconds=1),
        datetime(2027, 1, 1),
        first,
        last,
    ]
    for until in wrong:
        with pytest.raises(
            BadCall, match=r"until=.*: seconds from now, up to a year; a date with a time zone; or None"
        ):
            await do(hold, "crm", "", until)
    with pytest.raises(BadCall, match=r"key=7: the name of a rate, and one of its keys as a text"):
        await do(hold, "crm", 7, 30)
    for name in ("pool", "other"):
        with pytest.raises(ConfigurationError, match=r"no job has used a rate of this name; only a Rate can be held"):
            await do(hold, name, "", 30)
    (usage,) = [limit.keys for limit in await do(app.queue("q").limits) if limit.name == "crm"]
    assert usage == ()


async def test_a_wrong_name_or_time_is_refused_with_the_names_of_the_rates(app: Penstock):
    errors: list[str] = []

    @app.task(queue="q", limit=[Concurrency(5, name="pool"), Rate(100, per=1, name="crm")])
    async def sync() -> None:
        calls: list[tuple[str, Any]] = [("pool", 1), ("other", 1), ("crm", 0), ("crm", float("inf")), ("crm", "1")]
        for name, seconds in calls:
            try:
                await current().hold.aio(name, seconds=seconds)
            except (BadCall, ValueError) as error:
                errors.append(str(error))

    await sync.enqueue.aio()
    await run_burst(app)
    assert "only a Rate can be held" in errors[0]
    assert "has no rate of this name; its rates are: 'crm'" in errors[1]
    assert all("seconds above 0, up to a year" in error for error in errors[2:])
    assert len(errors) == 5
    with pytest.raises(NoCurrentJob):
        current()


async def test_a_key_of_a_queue_with_shards_is_closed_in_all_of_them(app: Penstock, do: Do, clock: Time):
    queue = app.queue("q", shards=3)

    @app.task(queue="q", limit=Rate(100, per=1, key="{tenant}", name="crm"))
    async def sync() -> None: ...

    tenants = [f"t{n}" for n in range(6)]
    await sync.using(tenant="t0").enqueue.aio()
    await run_burst(app)
    for tenant in tenants:
        await do(queue.hold_limit, "crm", tenant, 30)
    jobs = [await sync.using(tenant=tenant).enqueue.aio() for tenant in tenants]
    await run_burst(app)
    assert {await job.status.aio() for job in jobs} == {Status.PARKED}
    (limit,) = await do(queue.limits)
    assert sorted((one.key, one.parked, one.held_for is not None) for one in limit.keys) == [
        (tenant, 1, True) for tenant in tenants
    ]
    clock.advance(30)
    await run_burst(app)
    assert {await job.status.aio() for job in jobs} == {Status.COMPLETED}


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_job_books_what_it_really_took(app: Penstock, kind: str, clock: Time):
    limit = Rate(1000, per=1000, key="{account}", name="tokens", cost="{estimate}")
    if kind == "def":

        @app.task(queue="q", limit=limit)
        def ask(account: str, estimate: int, real: float) -> None:
            current().used("tokens", 1)
            current().used("tokens", real)
    else:

        @app.task(queue="q", limit=limit)
        async def ask(account: str, estimate: int, real: float) -> None:
            await current().used.aio("tokens", 1)
            await current().used.aio("tokens", real)

    async def left(account: str) -> int:
        probe = [await ask.enqueue.aio(account, 1000, 0) for _ in range(2)]
        (limit,) = await app.queue("q").limits.aio()
        usage = {one.key: one.left + one.used for one in limit.keys}
        for one in probe:
            await one.cancel.aio()
        return usage[account]

    await ask.enqueue.aio("more", 400, 600)
    await ask.enqueue.aio("less", 400, 99.5)
    await run_burst(app)
    assert (await left("more"), await left("less")) == (400, 900)


async def test_a_wrong_amount_is_refused(app: Penstock):
    errors: list[str] = []

    @app.task(queue="q", limit=[Concurrency(5, name="pool"), Rate(100, per=1, name="crm")])
    async def sync() -> None:
        calls: list[tuple[str, Any]] = [("pool", 1), ("other", 1), ("crm", -1), ("crm", "7"), ("crm", float("nan"))]
        calls += [("crm", True), ("crm", float("inf")), ("crm", None)]
        for name, units in calls:
            try:
                await current().used.aio(name, units)
            except (BadCall, ValueError) as error:
                errors.append(str(error))

    await sync.enqueue.aio()
    await run_burst(app)
    assert "only a Rate can be held or booked" in errors[0]
    assert "its rates are: 'crm'" in errors[1]
    assert all("a number of units from 0 to 1,000,000,000" in error for error in errors[2:])
    assert len(errors) == 8


@pytest.mark.parametrize(
    ("adopted", "left", "chunks"),
    [
        (isolated_tasks.with_powers, 300, [["a", 1], ["a", 2], "b"]),  # its first run has booked 200, and died
        (isolated_tasks.with_powers_awaited, 500, ["a"]),
    ],
)
async def test_an_isolated_job_emits_books_and_closes_its_key(
    apps: Apps, server: Server, adopted: Any, left: int, chunks: list[Any]
):
    app = apps.make("nowhere")
    limit = Rate(1000, per=1_000_000, name="crm", cost="{estimate}")
    task = app.task(queue="q", isolate=True, name=adopted.name, limit=limit)(adopted.__wrapped__)
    job = await task.enqueue.aio(server.address, 100, 500)
    await run_burst(app)
    assert await job.result.aio(0) != os.getpid()
    assert [part.chunk async for part in job.output()] == chunks
    probe = await task.enqueue.aio(server.address, 1000, 0)
    ((usage,),) = [limit.keys for limit in await app.queue("q").limits.aio()]
    assert 20 < (usage.held_for or 0) <= 30
    await app.queue("q").hold_limit.aio("crm", "", None)
    ((usage,),) = [limit.keys for limit in await app.queue("q").limits.aio()]
    assert (usage.left, usage.held_for) == (left, None)
    await probe.cancel.aio()
    await app.aclose()
