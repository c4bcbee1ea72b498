"""A process with many waiters for one lock. It waits until it is killed.

python absent_waiters.py ADDRESS PREFIX KIND NAME FACES WAITERS    FACES: apps; WAITERS: of each app
"""

import asyncio
import sys
from typing import Any

from penstock import Penstock


def leased(app: Penstock, kind: str, name: str) -> Any:
    """A lock, all permits of a semaphore, the writing side of a read-write lock, or one unit in two seconds."""
    if kind == "lock":
        return app.lock(name, lease=30)
    if kind == "rate":
        return app.rate_limit(name, limit=5, per=10, burst=1)
    if kind == "semaphore":
        return app.semaphore(name, limit=3, permits=3, lease=30)
    return app.read_write_lock(name, lease=30).write()


async def main(address: str, prefix: str, kind: str, name: str, faces: str, waiters: str) -> None:
    apps = [Penstock(address, prefix=prefix) for _ in range(int(faces))]
    tasks = (leased(app, kind, name).acquire.aio() for app in apps for _ in range(int(waiters)))
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
