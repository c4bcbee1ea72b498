"""A program with many workers of one queue, each with its own app: `python -m tests.worker.idle_workers ADDRESS N`.

Each worker has a face of its own, as if it were a process of its own. The program runs until it is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from penstock import Penstock, Task, Worker, WorkerSettings


def make_app(address: str) -> tuple[Penstock, Task[[], float]]:
    """An app, and its task that returns when it ran."""
    app = Penstock(address)

    @app.task(queue="q")
    async def when() -> float:
        return time.time()

    return app, when


def start(address: str, n: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.worker.idle_workers", address, str(n)])


async def run(address: str, n: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(Worker(make_app(address)[0], WorkerSettings(concurrency=1)).run())


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
