"""Dead letters: list them with their reasons, requeue them, remove them."""

import asyncio

import pytest

from penstock import JobFailed, Penstock, Queue, Status
from penstock.jobs.claims import Settlement
from tests.conftest import Do, Time


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def bury(do: Do, queue: Queue, *values: str) -> list[str]:
    """Put and fail these values, one after the other. Returns the ids."""
    ids = []
    for value in values:
        await do(queue.put, value, tenant="t")
        (item,) = await do(queue.claim)
        await do(item.fail, f"because of {value}")
        ids.append(item.id)
    return ids


async def test_dead_letters_are_listed_latest_first(queue: Queue, do: Do, clock: Time):
    assert await do(queue.dead.list) == []
    await bury(do, queue, "a")
    clock.advance(5)
    await bury(do, queue, "b")
    later, earlier = await do(queue.dead.list)
    assert (later.body, later.reason, later.tenant) == ("b", "because of b", "t")
    assert (later.attempts, later.deliveries, later.traceback, later.worker) == (1, 1, "", "")
    assert later.died == pytest.approx(clock.now, abs=0.01)
    assert later.died - earlier.died == pytest.approx(5)


async def test_dead_letters_are_listed_in_pages(queue: Queue, do: Do, clock: Time):
    for value in "abcde":
        clock.advance(1)
        await bury(do, queue, value)
    pages = [await do(queue.dead.list, 2, offset) for offset in (0, 2, 4, 6)]
    assert [[letter.body for letter in page] for page in pages] == [["e", "d"], ["c", "b"], ["a"], []]


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1001, 0), (1, -1), (1, 2**63)])
async def test_a_page_with_an_invalid_limit_or_offset_is_refused(queue: Queue, do: Do, limit: int, offset: int):
    with pytest.raises(ValueError, match=r"limit=.*1 to 1000|offset=.*0 to 1,000,000,000"):
        await do(queue.dead.list, limit, offset)


async def test_a_requeued_dead_letter_starts_afresh(queue: Queue, do: Do):
    await do(queue.put, "x")
    for _ in range(3):
        (item,) = await do(queue.claim)
        await do(item.retry, reason="once more")
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    (letter,) = await do(queue.dead.list)
    assert (letter.attempts, letter.deliveries) == (4, 4)
    assert await do(queue.dead.requeue, letter.id, "raw:unknown") == 1
    assert await do(queue.dead.list) == []
    info = await do(queue.job(letter.id).info)
    assert (info.status, info.attempts, info.reason) == (Status.READY, 0, "no")  # its failures are kept
    (again,) = await do(queue.claim)
    assert (again.body, again.attempt, again.deliveries) == ("x", 1, 1)
    await do(again.complete)
    assert await do(queue.dead.requeue, letter.id) == 0


async def test_a_removed_dead_letter_is_gone(queue: Queue, do: Do):
    first, second = await bury(do, queue, "a", "b")
    assert await do(queue.dead.remove, first, first, "raw:unknown") == 1
    assert [letter.id for letter in await do(queue.dead.list)] == [second]
    assert await do(queue.job(first).status) is Status.CANCELLED
    assert await do(queue.dead.requeue, first) == 0


async def test_only_dead_letters_are_requeued_or_removed(queue: Queue, do: Do):
    ready = await do(queue.put, 1)
    delayed = await do(queue.put, 2, delay=60)
    for verb in (queue.dead.requeue, queue.dead.remove):
        assert await do(verb, ready.id, delayed.id) == 0
    counts = await do(queue.count)
    assert (counts.ready, counts.delayed) == (1, 1)


async def test_many_are_requeued_at_once(queue: Queue, do: Do):
    await do(queue.put_many, range(300), tenant="a")
    for item in await do(queue.claim, 300):
        await do(item.fail, "no")
    letters = await do(queue.dead.list, 1000)
    assert await do(queue.dead.requeue, *(letter.id for letter in letters)) == 300
    assert (await do(queue.tenant("a").count)).ready == 300


async def test_the_result_of_a_dead_letter_is_its_reason(queue: Queue, do: Do):
    (dead,) = await bury(do, queue, "a")
    with pytest.raises(JobFailed, match="because of a") as caught:
        await do(queue.job(dead).result)
    assert caught.value.reason == "because of a"


async def test_a_dead_letter_is_not_cancelled(queue: Queue, do: Do):
    (dead,) = await bury(do, queue, "a")
    assert await do(queue.job(dead).cancel) is False
    assert await do(queue.purge) == 0
    assert len(await do(queue.dead.list)) == 1


async def test_more_ids_than_fit_into_one_round_trip_are_requeued_and_removed(queue: Queue, do: Do):
    await do(queue.put_many, range(9000), tenant="t")
    while items := await do(queue.claim, 1000, lease=60):
        calls = [
            queue.first.bindings.settle(item._incarnation, Settlement(item._claim.token, b"", "bury")) for item in items
        ]
        await asyncio.gather(*(queue._driver.aio.run(one) for one in calls))
    ids = [f"raw:{key.decode()}" for key in await everything(queue)]
    assert len(ids) == 9000
    assert await do(queue.dead.requeue, *ids[:8500]) == 8500
    assert await do(queue.dead.remove, *ids[8500:]) == 500
    counts = await do(queue.count)
    assert (counts.ready, counts.dead) == (8500, 0)
    assert await do(queue.purge) == 8500


async def everything(queue: Queue) -> list[bytes]:
    pages = [
        await queue._driver.aio.run(queue.first.bindings.list_dead(offset, 1000)) for offset in range(0, 9000, 1000)
    ]
    return [key.encode() for page in pages for key, *_ in page]


async def test_a_dead_letter_that_is_requeued_late_does_not_expire(queue: Queue, do: Do, clock: Time):
    await do(queue.put, "a", expires=10)
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    clock.advance(60)
    assert await do(queue.dead.requeue, item.id) == 1
    (again,) = await do(queue.claim)
    assert again.id == item.id
    await do(again.complete)
