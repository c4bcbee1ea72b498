"""What a job that uses no power costs its worker, in calls of Penstock's functions: this depends on no machine."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.servers import Server
from tests.speed import scaled

JOBS = 2_000
MOST_CALLS = 29
"""Calls for each job, with its share of its turn: some 23, and 26 in small turns on a busy machine. They once
grew from 35 to 42, a few with each feature."""

# A process of its own: a profiler slows down whatever else the process of the tests still runs.
PROGRAM = f"""
import asyncio, sys, threading
from pathlib import Path
import penstock
from penstock import Penstock, Worker, WorkerSettings

address, prefix, kind = sys.argv[1:]
package = str(Path(penstock.__file__).parent)
app, counted = Penstock(address, prefix=prefix), 0

@app.task(queue="q", result_ttl=0)
async def on_the_loop(n: int) -> int:
    return n

@app.task(queue="q", result_ttl=0)
def in_a_thread(n: int) -> int:
    return n

def note(frame, event, _):
    global counted
    if event == "call" and frame.f_code.co_filename.startswith(package):
        counted += 1

async def main():
    task = on_the_loop if kind == "async" else in_a_thread
    settings = WorkerSettings(burst=True, concurrency=100)
    await app.enqueue_many.aio([task.call(n) for n in range(100)])
    await Worker(app, settings).run()
    await app.enqueue_many.aio([task.call(n) for n in range({JOBS})])
    threading.setprofile(note)
    sys.setprofile(note)
    await Worker(app, settings).run()
    sys.setprofile(None)
    print(counted, (await app.queue("q").count.aio()).ready)
    await app.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_job_without_any_power_takes_few_calls(start: Callable[..., Server], kind: str):
    command = [sys.executable, "-c", PROGRAM, start().address, "cost", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(60))
    counted, ready = map(int, done.stdout.split())
    assert ready == 0
    assert counted / JOBS < MOST_CALLS
