"""Plain jobs that are staged: accepted in a shorter script, and put into their lanes by the next other one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock import Penstock, Queue, Settings, Status
from penstock.errors import StateDamaged
from penstock.testing import enqueued, leaks
from tests.conftest import Do, until
from tests.driver.proxy import Proxy
from tests.jobs.stand import idle_workers
from tests.servers import Server
from tests.worker.in_process import run_burst


def staged(raw: Any, queue: Queue) -> int:
    """How many calls are in the intake. Its first value is not one; a closed intake has no value."""
    return max(0, int(raw.llen(queue.first.bindings.keys.base + "intake")) - 1)


async def on_aio(verb: Any, *args: Any, **options: Any) -> Any:
    return await verb.aio(*args, **options)


async def begin_staging(do: Do, queue: Queue) -> None:
    """The reply to the first enqueue says that no worker is idle."""
    await do((await do(queue.put, "first")).cancel)


async def test_a_plain_job_is_staged_while_no_worker_is_idle(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    await do(queue.put, 1, priority=1, tenant="ada")
    await do(queue.put, 2)
    assert staged(raw, queue) == 2
    first, second = await do(queue.claim, 9)
    assert (first.body, second.body, staged(raw, queue)) == (1, 2, 0)
    assert leaks(app) == []


async def test_calls_of_two_seconds_are_counted_each_in_its_own(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    for app.clock.now_ms in (1_795_000_000_900, 1_795_000_001_100, 1_795_000_001_900):
        await do(queue.put, 1)
    assert staged(raw, queue) == 3
    await do(queue.count)
    assert raw.hgetall(queue.first.bindings.keys.base + "age") == {b"1795000000": b"1", b"1795000001": b"2"}
    assert leaks(app) == []


@pytest.mark.parametrize(
    "options", [{"delay": 60}, {"expires": 60}, {"id": "mine"}], ids=lambda options: next(iter(options))
)
async def test_a_job_with_more_to_check_is_not_staged(app: Penstock, do: Do, raw: Any, options: dict[str, Any]):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    await do(queue.put, 1, **options)
    assert staged(raw, queue) == 0


async def test_a_large_job_is_not_staged(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    await do(queue.put, "x" * 3000)
    assert staged(raw, queue) == 0


async def test_every_question_sees_a_staged_job(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    questions: dict[str, Any] = {}
    for what in ("status", "info", "count", "tenant", "result", "cancel", "purge", "enqueued"):
        job = await do(queue.put, what, tenant=what)
        assert staged(raw, queue) == 1
        match what:
            case "status":
                questions[what] = await do(job.status)
            case "info":
                questions[what] = (await do(job.info)).body
            case "count":
                questions[what] = (await do(queue.count)).ready
            case "tenant":
                questions[what] = (await do(queue.tenant(what).count)).ready
            case "result":
                with pytest.raises(TimeoutError, match="nobody has started it yet"):
                    await do(job.result, 0)
                questions[what] = "ready"
            case "cancel":
                questions[what] = await do(job.cancel)
            case "purge":
                questions[what] = await do(queue.tenant(what).purge)
            case _:
                questions[what] = enqueued(queue)[-1].arguments["value"]
        assert staged(raw, queue) == 0
    assert questions == {
        "status": Status.READY,
        "info": "info",
        "count": 3,
        "tenant": 1,
        "result": "ready",
        "cancel": True,
        "purge": 1,
        "enqueued": "enqueued",
    }


async def test_the_intake_never_holds_more_than_128_jobs_and_keeps_their_order(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    sizes = []
    for n in range(300):
        await do(queue.put, n)
        sizes.append(staged(raw, queue))
    assert max(sizes) == 128
    bodies = [item.body for item in await do(queue.claim, 500)]
    assert bodies == list(range(300))


async def test_an_idle_worker_gets_a_job_at_once_and_nothing_is_staged_beside_it(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    await begin_staging(do, queue)
    claim = asyncio.create_task(queue.claim.aio(1, wait=20))
    await until(lambda: idle_workers(raw, queue.first.bindings.keys.base))
    await do(queue.put, 1)
    (item,) = await claim
    assert (item.body, staged(raw, queue)) == (1, 0)


async def test_staged_calls_of_a_task_run(app: Penstock, do: Do, raw: Any):
    @app.task(queue="raw")
    async def double(n: int) -> int:
        return 2 * n

    jobs = [await do(double.enqueue, n) for n in range(5)]
    assert staged(raw, app.queue("raw")) == 4
    await run_burst(app)
    assert [await do(job.result, 5) for job in jobs] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("worker", [False, True], ids=["nobody takes it", "a worker takes it before the second copy"])
async def test_a_staged_job_whose_reply_is_lost_runs_once(do: Do, worker: bool):
    with Server() as server, contextlib.closing(Proxy(server)) as proxy:
        await lose_the_reply(server, proxy, do, worker)


async def lose_the_reply(server: Server, proxy: Proxy, do: Do, worker: bool) -> None:
    async with Penstock(server.address) as direct, Penstock(proxy.address, settings=Settings(result_ttl=0)) as app:
        queue, taken = app.queue("raw"), direct.queue("raw")
        await begin_staging(do, queue)
        for n in range(3):  # the server must know both scripts
            await do(queue.put, n)
        items = await taken.claim.aio(9)
        for item in items:
            await item.complete.aio()
        proxy.lose_replies(1)
        put = asyncio.create_task(do(queue.put, "once"))
        if worker:
            (item,) = await taken.claim.aio(9, wait=20)
            assert item.body == "once"
            await item.complete.aio()
        await put
        assert proxy.lost == 1
        left = [item.body for item in await taken.claim.aio(9)]
        assert left == ([] if worker else ["once"])


async def put_together(queue: Queue, values: Sequence[Any], **options: Any) -> None:
    """Enqueue each value in a task of its own: the first call goes alone, the others as a group."""
    await asyncio.gather(*(queue.put.aio(value, **options) for value in values))


async def test_calls_of_the_same_moment_are_staged_together_in_their_order(app: Penstock, raw: Any):
    queue = app.queue("raw")
    await begin_staging(on_aio, queue)
    await queue.put.aio("alone")
    await put_together(queue, range(9))
    assert staged(raw, queue) == 10
    calls = raw.lrange(queue.first.bindings.keys.base + "intake", 0, -1)[1:]
    group = [int.from_bytes(call[6:12]) for call in calls[2:]]
    assert group == list(range(group[0], group[0] + 8)), "a shared number would drop all but the first"
    assert [item.body for item in await queue.claim.aio(99)] == ["alone", *range(9)]
    assert leaks(app) == []


async def test_a_group_that_does_not_fit_into_the_intake_is_enqueued_whole(app: Penstock, raw: Any):
    queue = app.queue("raw")
    await begin_staging(on_aio, queue)
    for n in range(123):
        await queue.put.aio(n)
    await put_together(queue, range(123, 133))
    assert staged(raw, queue) == 0
    assert [item.body for item in await queue.claim.aio(500)] == list(range(133))


async def test_a_group_with_a_large_job_is_not_staged(app: Penstock, raw: Any):
    queue = app.queue("raw")
    await begin_staging(on_aio, queue)
    await put_together(queue, [1, 2, "x" * 3000, 3])
    assert staged(raw, queue) == 0
    assert [item.body for item in await queue.claim.aio(9)] == [1, 2, "x" * 3000, 3]


@pytest.mark.parametrize("shards", [1, 3])
async def test_many_tasks_enqueue_in_few_calls_and_every_job_once(start: Callable[..., Server], shards: int):
    server = start()
    async with Penstock(server.address) as app:
        queue = app.queue("raw", shards=shards) if shards > 1 else app.queue("raw")
        await queue.put.aio("first")
        await queue.put.aio("second")
        tenants = [f"t{n % 5}" for n in range(400)]
        await asyncio.gather(*(queue.put.aio(n, tenant=tenant) for n, tenant in enumerate(tenants)))
        before = calls_of_scripts(server)
        await asyncio.gather(*(queue.put.aio(n, tenant=tenant) for n, tenant in enumerate(tenants)))
        assert calls_of_scripts(server) - before <= 10 * shards
        bodies = [item.body for item in await queue.claim.aio(1000)]
        assert sorted(map(str, bodies)) == sorted(["first", "second", *map(str, range(400)), *map(str, range(400))])


def calls_of_scripts(server: Server) -> int:
    commands = server.client.info("commandstats")
    return sum(commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def test_a_group_whose_reply_is_lost_runs_once():
    with Server() as server, contextlib.closing(Proxy(server)) as proxy:
        async with Penstock(proxy.address) as app:
            queue = app.queue("raw")
            await begin_staging(on_aio, queue)
            await queue.put.aio("one")
            await put_together(queue, range(3))
            proxy.lose_replies(3)
            await put_together(queue, range(3, 40))
            assert proxy.lost == 3
            bodies = [item.body for item in await queue.claim.aio(99)]
            assert sorted(map(str, bodies)) == sorted(["one", *map(str, range(40))])


@pytest.mark.damages
async def test_an_error_of_the_script_that_opens_the_intake_loses_no_call(app: Penstock, do: Do, raw: Any):
    queue = app.queue("raw")
    base = queue.first.bindings.keys.base
    await begin_staging(do, queue)
    raw.delete(base + "intake")
    await do(queue.count)  # now it is closed
    app.clock.now_ms = int(time.time() * 1000) + 60_000
    raw.delete(base + "history:10")
    raw.set(base + "history:10", "damaged")
    for n in range(2):
        with pytest.raises(StateDamaged):
            await do(queue.put, n)
    assert not raw.exists(base + "intake"), "a call would be accepted there, and no script would look for it"
    raw.delete(base + "history:10")
    for n in range(5):
        await do(queue.put, n)
    assert sorted(item.body for item in await do(queue.claim, 9)) in ([0, 1, 2, 3, 4], [0, 0, 1, 1, 2, 3, 4])
