"""The order of jobs: priorities, tenants and weights, delays, dates, due jobs, expiry."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Penstock, Queue, Status
from tests.conftest import Do, MakeApp, Time


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def served(do: Do, queue: Queue, n: int = 1000, batch: int = 100) -> list[Any]:
    """Claim the next `n` jobs, `batch` at a time, and complete them. Returns their bodies."""
    found: list[Any] = []
    while len(found) < n and (items := await do(queue.claim, min(batch, n - len(found)))):
        found += [item.body for item in items]
        for item in items:
            await do(item.complete)
    return found


# --- priorities ---


async def test_priorities_are_strict(queue: Queue, do: Do):
    for priority in (9, 5, 0, 3):
        await do(queue.put_many, [priority] * 3, priority=priority, tenant=str(priority % 2))
    assert await served(do, queue, batch=5) == [0] * 3 + [3] * 3 + [5] * 3 + [9] * 3


async def test_an_urgent_job_overtakes_those_that_wait(queue: Queue, do: Do):
    await do(queue.put_many, range(3))
    assert await served(do, queue, 1) == [0]
    await do(queue.put, "urgent", priority=0)
    assert await served(do, queue) == ["urgent", 1, 2]


@pytest.mark.parametrize("priority", [-1, 10, 2.5, "1"])
async def test_a_priority_is_a_digit(queue: Queue, do: Do, priority: Any):
    with pytest.raises(ValueError, match=r"0 \(most urgent\) to 9"):
        await do(queue.put, 1, priority=priority)


# --- tenants ---


@pytest.mark.parametrize("batch", [1, 7])
async def test_tenants_take_turns(queue: Queue, do: Do, batch: int):
    await do(queue.put_many, ["z"] * 50, tenant="z")
    for tenant in "abc":
        await do(queue.put_many, [tenant] * 3, tenant=tenant)
    order = await served(do, queue, 12, batch)
    assert Counter(order) == {"z": 3, "a": 3, "b": 3, "c": 3}
    for turn in range(0, 12, 4):
        assert sorted(order[turn : turn + 4]) == ["a", "b", "c", "z"]


async def test_a_tenant_that_arrives_later_waits_for_one_job_of_each_other_tenant(queue: Queue, do: Do):
    await do(queue.put_many, ["noisy"] * 60, tenant="noisy")
    await served(do, queue, 20)
    for tenant in ("a", "zz"):
        await do(queue.put, tenant, tenant=tenant)
    assert set(await served(do, queue, 3)) == {"a", "zz", "noisy"}


async def test_a_tenant_that_enqueues_again_after_every_claim_gets_its_share(queue: Queue, do: Do):
    for tenant in ("a", "z"):
        await do(queue.put_many, [tenant] * 100, tenant=tenant)
    await do(queue.put, "m", tenant="m")
    order = []
    for _ in range(30):
        (body,) = await served(do, queue, 1)
        order.append(body)
        if body == "m":
            await do(queue.put, "m", tenant="m")
    assert set(Counter(order).values()) == {10}


async def test_a_weight_gives_more_turns(queue: Queue, do: Do):
    await do(queue.tenant("big").weigh, 3)
    assert (await do(queue.tenant("big").count)).weight == 3
    for tenant in ("big", "small"):
        await do(queue.put_many, [tenant] * 100, tenant=tenant)
    assert Counter(await served(do, queue, 40)) == {"big": 30, "small": 10}
    await do(queue.tenant("big").weigh, 1)
    assert Counter(await served(do, queue, 40))["small"] in {19, 20, 21}


@pytest.mark.parametrize("weight", [0, -1, 1001, float("nan")])
async def test_a_weight_that_cannot_work_is_refused(queue: Queue, do: Do, weight: float):
    with pytest.raises(ValueError, match=r"0\.001 to 1000"):
        await do(queue.tenant("a").weigh, weight)


async def test_a_tenants_name_may_be_anything(queue: Queue, do: Do):
    names = ["", " ", "a:b", "{x}", "5:a", "é", "名" * 85, "\x00", "*"]
    for name in names:
        await do(queue.put, name, tenant=name)
        assert (await do(queue.tenant(name).count)).ready == 1
    assert sorted(await served(do, queue)) == sorted(names)


@pytest.mark.parametrize("name", ["名" * 86, "\ud800"], ids=["too long", "no text"])
async def test_an_invalid_tenant_name_is_refused(queue: Queue, do: Do, name: str):
    with pytest.raises(ValueError, match="tenant"):
        await do(queue.put, 1, tenant=name)
    with pytest.raises(ValueError, match="tenant"):
        queue.tenant(name)


# --- later ---


async def test_a_delayed_job_is_not_claimed_before_its_time(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, "x", delay=10)
    assert await do(job.status) is Status.DELAYED
    clock.advance(9.999)
    assert await do(queue.claim) == []
    clock.advance(0.001)
    assert await served(do, queue) == ["x"]


async def test_a_job_is_claimed_at_its_date(queue: Queue, do: Do, clock: Time):
    await do(queue.put, "x", at=datetime.fromtimestamp(clock.now + 3600, UTC))
    clock.advance(3599)
    assert await do(queue.claim) == []
    clock.advance(1.001)
    assert await served(do, queue) == ["x"]


async def test_a_job_with_a_past_date_is_ready_at_once(queue: Queue, do: Do):
    job = await do(queue.put, "x", at=datetime(2001, 1, 1, tzinfo=UTC))
    assert await do(job.status) is Status.READY
    assert await served(do, queue) == ["x"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": -1}, "delay=-1"),
        ({"delay": float("nan")}, "delay=nan"),
        ({"delay": 1, "at": datetime.now(UTC)}, "one of them"),
        ({"at": datetime(2040, 1, 1)}, "time zone"),
        ({"at": datetime(1960, 1, 1, tzinfo=UTC)}, "after 1970"),
        ({"expires": 0}, "above 0"),
        ({"expires": datetime(2040, 1, 1)}, "time zone"),
        ({"result_ttl": -1}, "result_ttl=-1"),
        ({"id": ""}, "1 to 200 bytes"),
        ({"id": "x" * 201}, "1 to 200 bytes"),
    ],
)
async def test_invalid_options_are_refused_with_a_fix(app: Penstock, queue: Queue, do: Do, options: Any, said: str):
    @app.task
    def task() -> None: ...

    with pytest.raises(ValueError, match=said):
        task.using(**options)
    with pytest.raises(ValueError, match=said):
        await do(queue.put, 1, **options)


async def test_due_jobs_are_claimed_in_the_order_of_their_times(queue: Queue, do: Do, clock: Time):
    for delay in (3, 1, 2):
        await do(queue.put, delay, delay=delay)
    await do(queue.put_many, ["same", "time", "in order"], delay=2.5)
    clock.advance(5)
    assert await served(do, queue, batch=2) == [1, 2, "same", "time", "in order", 3]


@pytest.mark.parametrize("first", [True, False])
async def test_due_first_puts_due_jobs_before_the_others(queue: Queue, do: Do, clock: Time, first: bool):
    await do(queue.due_first, first)
    assert (await do(queue.count)).due_first is first
    await do(queue.put_many, ["due", "due too"], delay=1)
    await do(queue.put_many, [1, 2])
    await do(queue.put, "urgent", priority=1)
    clock.advance(1)
    due, normal = ["due", "due too"], [1, 2]
    assert await served(do, queue) == ["urgent", *(due + normal if first else normal + due)]


async def test_many_due_jobs_are_promoted_in_slices(queue: Queue, do: Do, clock: Time):
    await do(queue.put_many, range(450), delay=1)
    clock.advance(2)
    items = await do(queue.claim, 1000)
    assert len(items) == 100
    items += await do(queue.claim, 1000, wait=5)
    assert (await do(queue.count)).delayed == 250
    found = [item.body for item in items]
    while len(found) < 450:
        found += [item.body for item in await do(queue.claim, 1000)]
    assert found == list(range(450))


# --- expiry ---


@pytest.mark.parametrize("as_date", [True, False])
async def test_an_expired_job_is_not_handed_out(queue: Queue, do: Do, clock: Time, as_date: bool):
    limit: Any = datetime.fromtimestamp(clock.now, UTC) + timedelta(seconds=10) if as_date else 10
    job = await do(queue.put, "late", expires=limit)
    await do(queue.put, "x")
    assert (await do(job.info)).expires == pytest.approx(clock.now + 10, abs=0.01)
    clock.advance(10.01)
    assert await served(do, queue) == ["x"]
    assert await do(job.status) is Status.EXPIRED
    assert (await do(queue.count)).expired == 1


async def test_a_job_that_is_claimed_in_time_does_not_expire(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, "x", expires=10)
    (item,) = await do(queue.claim, lease=60)
    clock.advance(20)
    await do(item.complete)
    assert await do(job.status) is Status.COMPLETED


# --- apps ---


async def test_two_apps_on_one_server_are_separate(make_app: MakeApp, do: Do):
    one, other = make_app().queue("raw"), make_app().queue("raw")
    await do(one.put, 1)
    assert await do(other.claim) == []
    assert (await do(other.count)).ready == 0
    assert await do(other.purge) == 0
    assert await served(do, one) == [1]


@pytest.mark.parametrize("prefix", ["", "a:b", "a{b", "a b"])
def test_a_prefix_is_a_word(prefix: str):
    with pytest.raises(ValueError, match="a word without braces"):
        Penstock("unix:///nowhere", prefix=prefix)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 101, "é", "{a}"])
def test_a_queues_name_is_a_word(name: str):
    with pytest.raises(ValueError, match="use 1 to 100 letters"):
        Penstock("unix:///nowhere").queue(name)
