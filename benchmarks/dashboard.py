"""Measures what the dashboard costs with a million queued jobs of 10,000 tenants, and while its overview is open.

    python benchmarks/dashboard.py [--jobs 1000000] [--tenants 10000] [--seconds 20]

One Valkey in a temporary folder holds the jobs. The dashboard runs in a process of its own, as `penstock dashboard`
runs it. Each answer that a page needs is asked for twenty times; the table shows the median and the longest, in
milliseconds. Then the overview is open for no viewer, for one and for ten, and the CPU of both processes is read before
and after.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import httpx

from penstock import Penstock
from penstock.bench.usage import cpu_seconds
from penstock.jobs.queue import Queue
from penstock.testing import TemporaryServer

SERVE = """
import socket, sys, uvicorn
from penstock import Penstock
from penstock.ops.inspect import Inspector
from penstock.web.dashboard import pages
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
settings = uvicorn.Config(pages(Inspector(Penstock(sys.argv[1]))), log_level="error", timeout_graceful_shutdown=1)
uvicorn.Server(settings).run(sockets=[listener])
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=1_000_000)
    options.add_argument("--tenants", type=int, default=10_000)
    options.add_argument("--seconds", type=float, default=20.0)
    chosen = options.parse_args()
    with TemporaryServer() as server, Penstock(server.address) as app, ExitStack() as until_the_end:
        queue = app.queue("bulk")
        fill(queue, chosen.jobs, chosen.tenants)
        command = [sys.executable, "-c", SERVE, server.address]
        shown = until_the_end.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        until_the_end.callback(shown.terminate)
        assert shown.stdout is not None
        address = f"http://127.0.0.1:{shown.stdout.readline().strip()}"
        print(f"{chosen.jobs:,} jobs of {chosen.tenants:,} tenants, load {os.getloadavg()[0]:.1f}")
        time_pages(address, queue.put("a job to look at").id)
        watch(address, server.pid, shown.pid, chosen.seconds)


def fill(queue: Queue, jobs: int, tenants: int) -> None:
    """As many jobs for each tenant."""
    each = max(1, jobs // tenants)
    for tenant in range(tenants):
        queue.put_many(range(each), tenant=f"tenant-{tenant:05}")


def time_pages(address: str, job_id: str) -> None:
    questions = {
        "overview": "overview",
        "queue": "queues/bulk",
        "history of a queue": "history/bulk",
        "jobs that are ready": "find?queue=bulk&state=ready",
        "jobs of a tenant": "find?queue=bulk&tenant=tenant-04711",
        "jobs of a task, of which there is none": "find?queue=bulk&task=missing",
        "job": f"jobs/{job_id}",
        "dead letters": "dead/bulk",
        "workers": "workers",
        "locks": "locks",
        "schedules": "schedules",
        "health": "doctor?without=keys",
        "health of all keys": "doctor?topic=keys",
    }
    with httpx.Client(base_url=f"{address}/api/", timeout=60) as http:
        for name, path in questions.items():
            taken = []
            for _ in range(20):
                begun = time.perf_counter()
                http.get(path).raise_for_status()
                taken.append((time.perf_counter() - begun) * 1000)
            print(f"| {name} | {median(taken):.0f} | {max(taken):.0f} |", flush=True)


def watch(address: str, server: int, dashboard: int, seconds: float) -> None:
    for viewers in (0, 1, 10):
        closed = threading.Event()
        watching = [threading.Thread(target=view, args=(address, closed.is_set)) for _ in range(viewers)]
        for one in watching:
            one.start()
        time.sleep(3)
        before, then = (cpu_seconds(server), cpu_seconds(dashboard)), time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - then
        spent = [
            (after - first) / passed * 1000
            for after, first in zip((cpu_seconds(server), cpu_seconds(dashboard)), before, strict=True)
        ]
        print(
            f"{viewers} viewers: server {spent[0]:.1f} ms, dashboard {spent[1]:.1f} ms of CPU in a second", flush=True
        )
        closed.set()
        for one in watching:
            one.join()


def view(address: str, closed: Callable[[], bool]) -> None:
    """Reads the live answer as the overview does."""
    with httpx.Client(timeout=60) as http, http.stream("GET", f"{address}/api/live") as answer:
        for _ in answer.iter_lines():
            if closed():
                return


if __name__ == "__main__":
    main()
