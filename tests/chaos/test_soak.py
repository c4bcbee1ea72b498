"""Many jobs of many tenants pass a queue whose server is killed in the middle: all complete, and nothing is left.

`make soak` has three million jobs of 100,000 tenants, and prints the rates and the memory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable

from penstock import Penstock, Settings, Worker, WorkerSettings
from tests.servers import Server

JOBS = int(os.environ.get("PENSTOCK_SOAK_JOBS", "2000"))
TENANTS = int(os.environ.get("PENSTOCK_SOAK_TENANTS", "200"))


def test_all_jobs_of_all_tenants_complete_across_a_restart(start: Callable[..., Server]):
    server = start("--appendonly", "yes", "--appendfsync", "no")
    runs, started = bytearray(JOBS), itertools.count(1)
    is_half_done = threading.Event()
    empty = memory(server)
    with Penstock(server.address, prefix="soak", settings=Settings(result_ttl=0, give_up_after=600)) as app:

        @app.task(queue="soak")
        async def note(n: int) -> None:
            runs[n] += 1
            if next(started) > JOBS // 2:
                is_half_done.set()

        began = time.monotonic()
        for tenant in range(TENANTS):
            calls = note.using(tenant=f"t{tenant}")
            app.enqueue_many(calls.call(n) for n in range(tenant * JOBS // TENANTS, (tenant + 1) * JOBS // TENANTS))
            if tenant == TENANTS // 2:
                server.restart()
        print(f"{JOBS / (time.monotonic() - began):,.0f} jobs/s enqueued, {memory(server) - empty:,} bytes")

        def restart_in_the_middle() -> None:
            is_half_done.wait()
            server.restart()

        restarting = threading.Thread(target=restart_in_the_middle)
        restarting.start()
        began = time.monotonic()
        asyncio.run(Worker(app, WorkerSettings(burst=True, concurrency=100)).run())
        restarting.join()
        took = time.monotonic() - began
        count = app.queue("soak").count()
        print(f"{JOBS / took:,.0f} jobs/s completed, {memory(server) - empty:,} bytes left")
    assert runs.count(0) == 0
    assert sum(runs) <= JOBS + 2 * 100  # those that ran when the server was killed may run again
    assert (count.waiting, count.running, count.dead) == (0, 0, 0)
    assert memory(server) - empty < 20_000_000


def memory(server: Server) -> int:
    return int(server.client.info("memory")["used_memory"])
