"""Plain jobs that are staged: accepted in a shorter script, and put into their lanes by the next other one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock import Penstock, Queue, Settings, Status
from penstock.testing import enqueued, leaks
from tests.conftest import Do, until
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.worker.in_process import run_burst


def staged(raw: Any, queue: Queue) -> int:
    return int(raw.llen(queue.first.bindings.keys.base + "intake")) // 5


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
    await until(lambda: raw.exists(queue.first.bindings.keys.base + "sleepers"))
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
