"""Put, claim and settle: the queue without tasks or a worker."""

import asyncio
from typing import Any

import anyio.to_thread
import pytest

from penstock import BadCall, ConfigurationError, LeaseLost, Options, Penstock, Queue, Status
from penstock.errors import PayloadTooLarge
from penstock.jobs.claims import Settlement
from tests.conftest import Do, MakeApp, Time


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def bodies(do: Do, queue: Queue, n: int = 100) -> list[Any]:
    """Claim and complete up to `n` jobs. Returns their bodies."""
    items = await do(queue.claim, n)
    for item in items:
        await do(item.complete)
    return [item.body for item in items]


# --- put ---


@pytest.mark.parametrize("value", [None, 0, 1.5, "", "Zoë 名前 😀", [1, [2]], {"a": {"b": None}}])
async def test_a_value_is_claimed_as_it_was_put(queue: Queue, do: Do, value: Any):
    job = await do(queue.put, value)
    (item,) = await do(queue.claim)
    assert (item.id, item.body, item.tenant, item.priority) == (job.id, value, "", 5)
    assert (item.attempt, item.deliveries) == (1, 1)
    await do(item.complete)
    assert await do(queue.claim) == []


async def test_many_values_keep_their_order(queue: Queue, do: Do):
    jobs = await do(queue.put_many, range(1200))
    assert len({job.id for job in jobs}) == 1200
    assert (await do(queue.count)).ready == 1200
    assert await bodies(do, queue, 1000) + await bodies(do, queue, 1000) == list(range(1200))


async def test_put_many_of_nothing_does_nothing(queue: Queue, do: Do):
    assert await do(queue.put_many, []) == []


async def test_many_values_cannot_have_one_id(queue: Queue, do: Do):
    with pytest.raises(TypeError, match="takes no id"):
        await do(queue.put_many, [1, 2], id="x")
    assert (await do(queue.count)).waiting == 0


async def test_an_option_that_does_not_exist_is_refused(queue: Queue, do: Do):
    with pytest.raises(ConfigurationError, match="colour"):
        await do(queue.put, 1, colour="red")
    assert (await do(queue.count)).waiting == 0


async def test_a_value_that_cannot_be_encoded_leaves_the_others_unsent(queue: Queue, do: Do):
    with pytest.raises(BadCall, match="object"):
        await do(queue.put_many, [1, 2, object()])
    assert (await do(queue.count)).waiting == 0


async def test_a_value_above_the_limit_is_refused(make_app: MakeApp, do: Do):
    queue = make_app(max_payload=100).queue("raw")
    await do(queue.put, "x" * 98)
    with pytest.raises(PayloadTooLarge, match="101 bytes, the limit is 100"):
        await do(queue.put, "x" * 99)
    assert await bodies(do, queue) == ["x" * 98]


async def test_options_travel_with_the_value(queue: Queue, do: Do):
    await do(queue.put_many, ["a"], priority=0, tenant="Zoë: {名前}")
    (item,) = await do(queue.claim)
    assert (item.priority, item.tenant) == (0, "Zoë: {名前}")
    await do(item.complete)


# --- claim ---


async def test_a_claim_gets_as_many_as_it_asks_for(queue: Queue, do: Do):
    await do(queue.put_many, range(5))
    first, second = await do(queue.claim, 3), await do(queue.claim, 3)
    assert [item.body for item in first] == [0, 1, 2]
    assert [item.body for item in second] == [3, 4]
    for item in first + second:
        await do(item.complete)


async def test_a_job_is_claimed_by_one(queue: Queue, do: Do):
    await do(queue.put_many, range(40))
    batches = await asyncio.gather(*(do(queue.claim, 7) for _ in range(8)))
    assert sorted(item.body for batch in batches for item in batch) == list(range(40))
    for batch in batches:
        for item in batch:
            await do(item.complete)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"n": 0}, "1 to 1000"), ({"n": 1001}, "1 to 1000"), ({"wait": -1}, "from 0"), ({"lease": 0.01}, "0.05")],
)
async def test_an_invalid_claim_is_refused(queue: Queue, do: Do, arguments: Any, said: str):
    with pytest.raises(ValueError, match=said):
        await do(queue.claim, **arguments)


async def test_big_bodies_come_in_several_claims(queue: Queue, do: Do):
    await do(queue.put_many, ["x" * 400_000] * 5)
    batches = [await do(queue.claim, 5) for _ in range(4)]
    assert sum(map(len, batches)) == 5
    assert max(map(len, batches)) <= 3
    for batch in batches:
        for item in batch:
            await do(item.complete)


async def test_the_most_urgent_of_several_queues_is_claimed_without_waiting(app: Penstock, do: Do):
    for name, values in (("b", [1, 2]), ("c", [3])):
        await do(app.queue(name).put_many, values)
    items = await do(app.claim, ["a", "b", "c"], 2)
    assert [(item.id.partition(":")[0], item.body) for item in items] == [("b", 1), ("b", 2)]
    (last,) = await do(app.claim, ["a", "b", "c"], 2)
    assert last.body == 3
    assert await do(app.claim, ["a", "b", "c"], 2) == []
    for item in [*items, last]:
        await do(item.complete)


async def test_a_paused_queue_accepts_and_hands_out_nothing(queue: Queue, do: Do):
    await do(queue.put, 1)
    await do(queue.pause)
    await do(queue.put, 2)
    assert await do(queue.claim) == []
    assert (await do(queue.count)).paused
    assert await do(queue.resume) == []
    assert await bodies(do, queue) == [1, 2]
    assert not (await do(queue.count)).paused


# --- settle ---


async def test_a_completed_job_leaves_the_queue_and_its_result(queue: Queue, do: Do):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    await do(item.complete, {"n": 7})
    assert await do(job.result, timeout=0) == {"n": 7}
    assert await do(job.status) is Status.COMPLETED
    counts = await do(queue.count)
    assert (counts.ready, counts.running, counts.completed) == (0, 0, 1)


async def test_a_settlement_may_be_repeated(queue: Queue, do: Do):
    await do(queue.put, "x")
    (item,) = await do(queue.claim)
    await do(item.complete)
    await do(item.complete)
    assert (await do(queue.count)).completed == 1


async def test_a_failed_job_is_a_dead_letter(queue: Queue, do: Do):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    await do(item.fail, "no such user")
    assert await do(job.status) is Status.DEAD
    (letter,) = await do(queue.dead.list)
    assert (letter.id, letter.reason, letter.attempts, letter.body) == (job.id, "no such user", 1, "x")


async def test_a_retried_job_is_claimed_again_after_its_delay(queue: Queue, do: Do, clock: Time):
    job = await do(queue.put, "x")
    (item,) = await do(queue.claim)
    await do(item.retry, 10, "try later")
    assert await do(job.status) is Status.DELAYED
    assert (await do(job.info)).reason == "try later"
    clock.advance(9.9)
    assert await do(queue.claim) == []
    clock.advance(0.1)
    (again,) = await do(queue.claim)
    assert (again.body, again.attempt, again.deliveries) == ("x", 2, 2)
    await do(again.complete)


async def test_a_retry_without_delay_goes_behind_the_other_jobs(queue: Queue, do: Do):
    await do(queue.put_many, [1, 2])
    (item,) = await do(queue.claim)
    await do(item.retry)
    assert await bodies(do, queue) == [2, 1]


async def test_a_negative_retry_delay_is_refused(queue: Queue, do: Do):
    await do(queue.put, 1)
    (item,) = await do(queue.claim)
    with pytest.raises(ValueError, match="seconds from 0"):
        await do(item.retry, -1)
    await do(item.complete)


async def test_a_released_job_is_first_again_and_not_charged(queue: Queue, do: Do):
    await do(queue.put_many, [1, 2, 3])
    first, second = await do(queue.claim, 2)
    await do(first.release)
    await do(second.release)
    items = await do(queue.claim, 3)
    assert [(item.body, item.attempt, item.deliveries) for item in items] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    for item in items:
        await do(item.complete)


async def test_two_items_of_one_claim_are_settled_at_the_same_time(queue: Queue, do: Do):
    await do(queue.put_many, range(20))
    items = await do(queue.claim, 20)
    await asyncio.gather(*(do(item.complete, item.body) for item in items[:10]), *(do(i.retry) for i in items[10:]))
    counts = await do(queue.count)
    assert (counts.completed, counts.running, counts.ready) == (10, 0, 10)


async def test_a_result_that_cannot_be_encoded_leaves_the_claim_valid(queue: Queue, do: Do):
    await do(queue.put, 1)
    (item,) = await do(queue.claim)
    with pytest.raises(BadCall, match="cannot be written as JSON"):
        await do(item.complete, object())
    await do(item.complete, "now")


# --- leases ---


async def test_a_job_whose_lease_ran_out_is_claimed_again(queue: Queue, do: Do, clock: Time):
    await do(queue.put_many, [1, 2])
    lost = await do(queue.claim, 1, lease=30)
    clock.advance(29.9)
    assert [item.body for item in await do(queue.claim, 5, lease=1)] == [2]
    clock.advance(0.1)
    (again,) = await do(queue.claim, 1, lease=30)
    assert (again.id, again.deliveries, again.attempt) == (lost[0].id, 2, 1)
    assert (await do(queue.count)).lost == 1


@pytest.mark.parametrize(
    "verb", [("complete",), ("fail", "no"), ("retry",), ("retry", 5), ("release",), ("extend", 10)], ids=str
)
async def test_a_claim_whose_lease_was_lost_settles_nothing(queue: Queue, do: Do, clock: Time, verb: tuple[Any, ...]):
    name, *args = verb
    job = await do(queue.put, 1)
    (lost,) = await do(queue.claim, lease=1)
    clock.advance(1)
    with pytest.raises(LeaseLost, match=lost.id):
        await do(getattr(lost, name), *args)
    (successor,) = await do(queue.claim)
    with pytest.raises(LeaseLost, match="drop the work"):
        await do(getattr(lost, name), *args)
    assert await do(job.status) is Status.RUNNING
    await do(successor.complete, "mine")
    with pytest.raises(LeaseLost):
        await do(getattr(lost, name), *args)
    assert await do(job.result, timeout=0) == "mine"


async def test_an_old_claim_of_the_same_worker_settles_nothing(app: Penstock, queue: Queue, face: str):
    """A worker that gets a job a second time must not end the second run with the settlement of the first."""
    move, driver = queue.first.bindings, app._driver

    async def run(call: Any) -> Any:
        if face == "aio":
            return await driver.aio.run(call)
        return await anyio.to_thread.run_sync(driver.blocking.run, call)

    await run(move.enqueue(queue.draft(b"1", Options())))
    (first,) = (await run(move.turn("me", 1, lease=10, want=1))).claims
    again = Settlement(first.token, ending="retry", data=b"")
    (second,) = (await run(move.turn("me", 2, lease=10, want=1, settlements=[again]))).claims
    assert second.id == first.id
    for number, late in enumerate((Settlement(first.token), Settlement(first.token, b"7"), again), 3):
        turn = await run(move.turn("me", number, lease=10, want=0, settlements=[late]))
        assert turn.stale == (late,)
        assert not await run(move.settle("me", late))
    assert (await run(move.counts())).running == 1
    assert await run(move.settle("me", Settlement(second.token)))


async def test_an_extended_lease_lives_longer(queue: Queue, do: Do, clock: Time):
    await do(queue.put_many, [1, 2])
    first, second = await do(queue.claim, 2, lease=1)
    clock.advance(0.9)
    await do(first.extend, 10)
    clock.advance(9.9)
    assert await do(queue.claim) == []
    await do(second.complete)
    clock.advance(0.1)
    with pytest.raises(LeaseLost):
        await do(first.complete)


async def test_an_item_describes_its_job(queue: Queue, do: Do):
    job = await do(queue.put, 1, id="mine")
    (item,) = await do(queue.claim)
    assert (repr(queue), repr(job), repr(item)) == ("<Queue raw>", "<Job raw:mine>", "<Item raw:mine>")
    await do(item.complete)
