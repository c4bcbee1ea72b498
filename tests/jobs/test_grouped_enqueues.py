"""Many tasks enqueue through a bad connection: no accepted job is lost, and none runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter

import pytest

from penstock import Penstock, Settings
from penstock.errors import ServerUnavailable
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.speed import scaled

TASKS, EACH = 20, 30


@pytest.mark.parametrize("shards", [1, 3])
async def test_every_accepted_job_of_a_group_runs_once_through_faults_and_cancellations(shards: int):
    settings = Settings(result_ttl=0, reply_timeout=1)
    chance, accepted, seen, is_over = random.Random(shards), set[str](), Counter[str](), asyncio.Event()
    with Server() as server, contextlib.closing(Proxy(server)) as proxy:
        async with (
            Penstock(proxy.address, settings=settings) as app,
            Penstock(server.address, settings=settings) as direct,
        ):
            queue, claimed = (one.queue("raw", shards=None if shards == 1 else shards) for one in (app, direct))
            await queue.put.aio("first")

            async def produce(n: int) -> None:
                for i in range(EACH):
                    await asyncio.sleep(chance.random() * 0.02)
                    put = asyncio.create_task(queue.put.aio(name := f"{n}.{i}", tenant=f"t{n % 4}"))
                    if chance.random() < 0.1:
                        await asyncio.sleep(chance.random() * 0.003)
                        put.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ServerUnavailable):
                        await put
                        accepted.add(name)

            async def break_things() -> None:
                for fault in itertools.cycle(range(3)):
                    await asyncio.sleep(0.05)
                    if is_over.is_set():
                        return
                    if fault == 0:
                        proxy.lose_replies(2)
                    elif fault == 1:
                        server.client.client_kill_filter(_type="normal", skipme=True)
                    else:
                        server.client.script_flush()

            async def consume() -> None:
                while (items := await claimed.claim.aio(50, wait=0.3)) or not is_over.is_set():
                    for item in items:
                        seen[item.body] += 1
                        await item.complete.aio()

            others = asyncio.gather(break_things(), consume())
            await asyncio.wait_for(asyncio.gather(*(produce(n) for n in range(TASKS))), scaled(60))
            proxy.lose_replies(0)
            is_over.set()
            await asyncio.wait_for(others, scaled(30))
            assert accepted <= {*seen}
            assert {name: times for name, times in seen.items() if times > 1} == {}
            assert proxy.lost > 0
