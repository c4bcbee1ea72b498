"""Tags: stored with a job, shown with it, and a filter of every list."""

from typing import Any

import pytest

from penstock import BadCall, Concurrency, Penstock, Status, Unique, chain, current
from penstock.errors import ConfigurationError
from penstock.jobs.tags import MOST_TAGS
from tests.conftest import Do
from tests.worker.in_process import run_burst


@pytest.fixture
def ship(app: Penstock) -> Any:
    @app.task(queue="q", tags=["order:{order}", "shop"])
    async def ship(order: int) -> list[str]:
        return list(current().tags)

    return ship


async def test_a_job_has_the_tags_of_its_task_and_of_its_enqueue(app: Penstock, do: Do, ship: Any):
    job = await do(ship.using(tags=["vip", "shop"]).enqueue, 17)
    assert (await do(job.info)).tags == ("order:17", "shop", "vip")
    await run_burst(app)
    assert await do(job.result, 0) == ["order:17", "shop", "vip"]


@pytest.mark.parametrize("power", [{"unique": Unique("{n}")}, {"limit": Concurrency(1, key="{n}")}, {}])
async def test_tags_stand_beside_other_powers(app: Penstock, do: Do, power: Any):
    ran = []

    @app.task(queue="q", tags=["n:{n}"], **power)
    async def run(n: int) -> None:
        ran.append((n, current().tags))

    for n in (1, 2):
        await do(run.using(tags=["x"]).enqueue, n)
    found = await do(app.queue("q").jobs(tag="n:2").page)
    assert [one.tags for one in found.jobs] == [("n:2", "x")]
    await run_burst(app)
    assert sorted(ran) == [(1, ("n:1", "x")), (2, ("n:2", "x"))]


async def test_every_list_can_be_filtered_by_a_tag(app: Penstock, do: Do):
    queue = app.queue("q")
    await do(queue.put_many, range(5), tags=["a", "b"])
    await do(queue.put, 1, delay=60, tags=["aa"])
    await do(queue.put, 2, tags=["a"], tenant="t", priority=9)
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    (held,) = await do(queue.claim)
    assert item.tags == held.tags == ("a", "b")
    assert await do(queue.jobs(tag="a").count) == 6
    assert await do(queue.jobs(tag="b", state="ready").count) == 3
    assert await do(queue.jobs(tag="aa", state="delayed").count) == 1
    assert await do(queue.jobs(tag="a", state="ready", tenant="t").count) == 1
    (letter,) = await do(queue.dead.list)
    assert letter.tags == ("a", "b")
    assert await do(queue.dead.list, tag="b") == [letter]
    assert await do(queue.dead.list, tag="aa") == await do(queue.dead.list, 50, 1, tag="b") == []
    assert [one.id for one in (await do(queue.jobs(tag="b", state="dead").page)).jobs] == [item.id]
    assert [one.id for one in (await do(queue.jobs(tag="b", state="running").page)).jobs] == [held.id]
    assert (await do(queue.jobs(tag="b").cancel)).found == 5


async def test_staged_calls_and_flows_carry_tags(app: Penstock, do: Do, ship: Any):
    @app.task(queue="q")
    async def begin() -> None:
        current().stage.enqueue(ship.call(5))

    first = await do(begin.enqueue)
    flow = await do(chain(ship.call(6), ship.using(tags=["last"]).call(7)).enqueue)
    waiting = await do(app.queue("q").jobs(tag="order:7").page)
    assert [(one.status, one.tags) for one in waiting.jobs] == [(Status.WAITING, ("order:7", "shop", "last"))]
    assert waiting.jobs[0].id == flow.id
    await run_burst(app)
    assert await do(first.status) is Status.COMPLETED
    assert await do(flow.result, 0) == ["order:7", "shop", "last"]


async def test_a_moved_job_and_an_edited_one_keep_their_tags(app: Penstock, do: Do, ship: Any):
    job = await do(ship.using(tags=["vip"]).enqueue, 1)
    assert await do(job.edit, call=ship.call(2))
    assert (await do(job.info)).tags == ("order:2", "shop")
    value = await do(app.queue("q").put, 1, tags=["v"])
    assert await do(value.edit, priority=3)
    await do(app.queue("q").jobs(tag="v").move, app.queue("other"))
    assert (await do(app.job(f"other:{value.key}").info)).tags == ("v",)


async def test_a_call_without_tags_leaves_those_of_an_edited_job(app: Penstock, do: Do):
    @app.task(queue="q")
    async def add(n: int) -> int:
        return n

    job = await do(add.using(tags=["x"]).enqueue, 1)
    assert await do(job.edit, call=add.call(2))
    assert (await do(job.info)).tags == ("x",)
    await run_burst(app)
    assert await do(job.result, 0) == 2


@pytest.mark.parametrize("tags", ["a", [""], ["x" * 65], ["é" * 33], [7], [f"{n}" for n in range(9)], ["a\nb"], None])
async def test_a_bad_tag_is_one_clear_error(app: Penstock, ship: Any, tags: Any):
    with pytest.raises(ValueError, match="tag"):
        ship.using(tags=tags)
    with pytest.raises(ValueError, match="tag"):
        await app.queue("q").put.aio(1, tags=tags)


@pytest.mark.parametrize("tags", ["order", ["order:{oder}"], ["x" * 65], ["{order"], [7], [f"{n}" for n in range(9)]])
async def test_a_bad_template_is_one_clear_error(app: Penstock, tags: Any):
    with pytest.raises(ConfigurationError, match="tags"):

        @app.task(tags=tags)
        def ship(order: int) -> None: ...


async def test_a_template_that_becomes_too_long_is_a_bad_call(app: Penstock):
    @app.task(tags=["name:{name}"])
    def greet(name: str) -> None: ...

    with pytest.raises(BadCall, match=r"64 bytes of printable text; use a digest"):
        greet.call("x" * 60)


async def test_the_tags_of_task_and_enqueue_together_are_at_most_eight(app: Penstock, ship: Any):
    ship.using(tags=[f"{n}" for n in range(MOST_TAGS - 2)])
    with pytest.raises(ValueError, match="7 tags, and 2 of the task"):
        ship.using(tags=[f"{n}" for n in range(MOST_TAGS - 1)])


@pytest.mark.parametrize("tag", ["", "x" * 65, 7])
async def test_a_bad_filter_is_one_clear_error(app: Penstock, tag: Any):
    with pytest.raises(ConfigurationError, match=r"jobs\(tag="):
        app.queue("q").jobs(tag=tag)
    with pytest.raises(ConfigurationError, match=r"list\(tag="):
        await app.queue("q").dead.list.aio(tag=tag)
