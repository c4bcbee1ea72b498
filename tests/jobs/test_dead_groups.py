"""Dead letters grouped by task and error, and what is done to a group."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, Retry, Unique
from penstock.jobs.dead_groups import error_shape
from tests.conftest import Do, MakeApp
from tests.everywhere import face  # noqa: F401 - a fixture
from tests.worker.in_process import run_burst


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.mark.parametrize(
    ("reasons", "shape"),
    [
        (["ValueError: broken"], "ValueError: broken"),
        (["KeyError: 'user-17'", 'KeyError: "ada"'], "KeyError: '…'"),
        (["ValueError: order 4711 of ada@example.com", "ValueError: order 9 of b@c.de"], "ValueError: order # of #"),
        (["no row 01M8AFNV0VCJR3ASFVEDMG36XC", "no row 0x7f40a5276cd0"], "no row #"),
        (["at 2026-11-25 22:10:03: late", "at 2025-01-02 03:04:05: late"], "at #: late"),
        (["http://host:80/users/7 is 404", "http://host:81/users/8 is 500"], "# is #"),
        (["codes 1, 2, 3", "codes 4"], "codes #"),
        (["TypeError: f(1) and\na second line", "TypeError: f(2) and"], "TypeError: f(#) and"),
        ([""], ""),
    ],
)
def test_what_differs_from_job_to_job_is_not_in_the_shape(reasons: list[str], shape: str):
    assert {error_shape(reason) for reason in reasons} == {shape}


def test_a_shape_is_short():
    assert len(error_shape("ValueError: " + "word " * 1000)) <= 200


class Shop:
    def __init__(self, app: Penstock) -> None:
        @app.task(queue="q", retry=Retry(0))
        async def charge(n: int, card: str = "") -> None:
            if n >= 0:
                raise ValueError(f"order {n} of '{card}' is refused")

        @app.task(queue="q", retry=Retry(0))
        async def send(n: int) -> None:
            raise ConnectionError(f"host-{n}.example.com is down")

        self.charge, self.send = charge, send


async def test_errors_that_differ_in_ids_are_one_group(app: Penstock, do: Do):
    shop, queue = Shop(app), app.queue("q")
    jobs = [await shop.charge.enqueue.aio(n, card="a" * n) for n in range(5)]
    await shop.send.enqueue.aio(1)
    await shop.send.enqueue.aio(2)
    await run_burst(app)
    await queue.put.aio("value")
    for item in await queue.claim.aio():
        await item.fail.aio("unwanted")
    found = await do(queue.dead.groups)
    assert [(one.task, one.error, one.count) for one in found.groups] == [
        ("charge", "ValueError: order # of '…' is refused", 5),
        ("send", "ConnectionError: # is down", 2),
        ("", "unwanted", 1),
    ]
    assert (found.examined, found.of) == (8, 8)
    assert found.groups[0].example in {job.id for job in jobs}
    assert found.groups[0].first <= found.groups[0].last
    some = await do(queue.dead.groups, 3)
    assert (some.examined, some.of, sum(one.count for one in some.groups)) == (3, 8, 3)


async def test_a_group_is_requeued_or_removed_alone(app: Penstock, do: Do):
    shop, queue = Shop(app), app.queue("q")
    for n in range(3):
        await shop.charge.enqueue.aio(n)
        await shop.send.enqueue.aio(n)
    await run_burst(app)
    charged, sent = sorted((await do(queue.dead.groups)).groups, key=lambda one: one.task)
    progress = await do(queue.dead.requeue_group, charged.key)
    assert (progress.found, progress.done, progress.examined) == (3, 3, 6)
    assert ((await queue.count.aio()).ready, (await queue.count.aio()).dead) == (3, 3)
    assert (await do(queue.dead.requeue_group, charged.key)).found == 0
    await run_burst(app)
    assert (await do(queue.dead.remove_group, sent.key)).done == 3
    (left,) = (await do(queue.dead.groups)).groups
    assert (left.key, left.count) == (charged.key, 3)


async def test_a_group_over_many_slices(app: Penstock, do: Do):
    queue = app.queue("q")
    await queue.put_many.aio(range(1200))
    for number in range(1200):
        (item,) = await queue.claim.aio()
        await item.fail.aio("even" if number % 2 else "odd")
    first, second = (await do(queue.dead.groups)).groups
    assert (first.count, second.count) == (600, 600)
    assert (await do(queue.dead.remove_group, first.key)).done == 600
    assert (await queue.count.aio()).dead == 600


async def test_a_job_whose_unique_key_is_held_stays_dead(app: Penstock, do: Do):
    @app.task(queue="q", retry=Retry(0), unique=Unique("{n}"))
    async def charge(n: int) -> None:
        raise ValueError(n)

    await charge.enqueue.aio(1)
    await charge.enqueue.aio(2)
    await run_burst(app)
    holder = await charge.enqueue.aio(1)
    (group,) = (await do(app.queue("q").dead.groups)).groups
    progress = await do(app.queue("q").dead.requeue_group, group.key)
    assert (progress.found, progress.done) == (2, 1)
    await holder.cancel.aio()


@pytest.mark.parametrize("key", ["", "xyz", "0123456g", "012345678", "ABCDEF01", None, 7])
async def test_a_text_that_is_no_key_is_refused(app: Penstock, do: Do, key: Any):
    for act in (app.queue("q").dead.requeue_group, app.queue("q").dead.remove_group):
        with pytest.raises(ConfigurationError, match="eight hexadecimal digits"):
            await do(act, key)


@pytest.mark.parametrize("most", [0, -1, 1_000_001, 1.5, "many"])
async def test_a_number_that_cannot_be_is_refused(app: Penstock, do: Do, most: Any):
    with pytest.raises(ValueError, match="groups"):
        await do(app.queue("q").dead.groups, most)


async def test_groups_over_shards(make_app: MakeApp, do: Do):
    app = make_app()
    queue = app.queue("q", shards=3)
    for tenant in "abcdef":
        await queue.put.aio(1, tenant=tenant)
    for item in [item for _ in range(6) for item in await queue.claim.aio()]:
        await item.fail.aio(f"job {item.id} is broken")
    (group,) = (await do(queue.dead.groups)).groups
    assert (group.count, group.error) == (6, "job # is broken")
    assert (await do(queue.dead.remove_group, group.key)).done == 6
    assert (await queue.count.aio()).dead == 0
