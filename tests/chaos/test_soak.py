"""What grows only after long: the memory and the keys of a server, under many jobs and under mixed load.

`make soak` has three million jobs of 100,000 tenants and an hour of mixed load, and prints the rates and the memory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable

from penstock import Penstock, Settings, Worker, WorkerSettings
from tests.chaos.load import Load
from tests.leaks import leaks_of_test
from tests.servers import Server

JOBS = int(os.environ.get("PENSTOCK_SOAK_JOBS", "2000"))
TENANTS = int(os.environ.get("PENSTOCK_SOAK_TENANTS", "200"))
SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "1"))

FULL = 1200
"""Seconds until what is kept for a time, at most ten minutes, goes as fast as it comes."""

PAUSE = 0.1 if SECONDS > 60 else 0.01
"""Seconds between two steps. A log keeps 10,000 ids of a sender for ten minutes: at most 16 a second."""


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


def test_mixed_load_keeps_the_memory_flat_and_every_key_accounted_for(start: Callable[..., Server]):
    server = start("--appendonly", "yes", "--appendfsync", "no")
    samples: list[int] = []
    with Penstock(server.address, prefix="soak", settings=Settings(result_ttl=60)) as app:
        with Load(app, face="aio", pause=PAUSE) as load:
            load.until_all_continue()
            end = time.monotonic() + SECONDS
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 10))
                samples.append(memory(server) - memory_of_sent_files(server))
            load.until_all_continue()
        print(f"{load}; bytes each tenth of the time: {samples[:: max(1, len(samples) // 10)]}")
        assert load.violations() == []
    assert leaks_of_test([server.client], ["soak"], damaged=False) == []
    if SECONDS >= 2 * FULL:
        steady = samples[FULL // 10 :]
        assert max(steady[len(steady) // 2 :]) < 1.1 * max(steady[: len(steady) // 2])


def memory(server: Server) -> int:
    return int(server.client.info("memory")["used_memory"])


def memory_of_sent_files(server: Server) -> int:
    """A channel remembers its last 100,000 files, so that each is sent once: more than an hour of this load sends."""
    keys = [key for kept in ("entries", "sources", "sent_at") for key in server.client.scan_iter(f"*:files:*:{kept}")]
    return sum(server.client.memory_usage(key, samples=0) or 0 for key in keys)
