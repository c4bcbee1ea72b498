"""A process that takes a lock and permits of a semaphore over and over, and records when it surely held them.

    python lock_process.py ADDRESS HISTORY SEED CLOCK    CLOCK: seconds by which its own clock is wrong

It ends when its standard input is closed.
"""

import asyncio
import contextlib
import random
import sys
import threading
import time

from penstock import Held, LeaseLost, LockTimeout, Penstock, Permit, PermitTimeout, Semaphore, ServerError
from penstock.locks.lock import Lock
from penstock.testing import History
from penstock.testing.history import StillHeld
from tests.chaos.until_end_of_input import run

LIMIT = 3
LEASE = 0.8

address, folder, seed, clock_error = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
true_time = time.time
time.time = lambda: true_time() + clock_error

chance = random.Random(seed)
history = History(folder)
app = Penstock(address)
over = threading.Event()


def random_choice() -> Lock | Semaphore:
    wait = chance.choice([0.5, 5, None])
    if chance.random() < 0.5:
        return app.lock("chaos", lease=LEASE, wait=wait)
    return app.semaphore("chaos", limit=LIMIT, permits=chance.choice([1, 1, 1, 2, 3]), lease=LEASE, wait=wait)


def record_hold(held: Held | Permit, server: float) -> None:
    fence, permits = (held.fence, 0) if isinstance(held, Held) else (0, held.permits)
    history.note(StillHeld(name="chaos", token=held.token, server_time=server, fence=fence, permits=permits))


def work_blocking() -> None:
    while not over.is_set():
        with contextlib.suppress(LeaseLost, LockTimeout, PermitTimeout, ServerError), random_choice() as held:
            for pause in (0, chance.uniform(0, 0.02), 0):
                time.sleep(pause)
                record_hold(held, held.moment())


async def work() -> None:
    while not over.is_set():
        with contextlib.suppress(LeaseLost, LockTimeout, PermitTimeout, ServerError):
            async with random_choice() as held:
                for pause in (0, chance.uniform(0, 0.02), 0):
                    await asyncio.sleep(pause)
                    record_hold(held, await held.moment.aio())


async def work_and_cancel() -> None:
    while not over.is_set():
        task = asyncio.create_task(work())
        await asyncio.wait([task], timeout=chance.uniform(0, 0.3))
        task.cancel()
        await asyncio.wait([task])


if seed % 2:
    run(app, over, on_loop=[work, work, work_and_cancel])
else:
    run(app, over, in_threads=[work_blocking, work_blocking])
