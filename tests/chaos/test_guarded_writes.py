"""A holder of locks that was frozen for twice its lease writes nothing, in a thousand of a thousand cases."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from penstock import Held, LeaseLost, Penstock
from tests.servers import Server

PAUSED_HOLDER = Path(__file__).with_name("paused_holder.py")
COUNT = 1000
LEASE = 1.0


def test_a_thousand_late_writes_of_a_stopped_process_are_refused(start: Callable[..., Server]):
    server = start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(PAUSED_HOLDER), server.address, str(COUNT), str(LEASE)]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == "taken\n"
            holder.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            asyncio.run(take_over(server.address))
            time.sleep(max(0.0, stopped + 2 * LEASE - time.monotonic()))
            holder.stdin.write("\n")
            holder.stdin.flush()
            holder.send_signal(signal.SIGCONT)
            assert holder.stdout.readline().split() == ["0", str(COUNT)]
        finally:
            holder.kill()
    found = [server.client.mget(f"{{{n}}}:guarded", f"{{{n}}}:unguarded", f"{{{n}}}:writes") for n in range(COUNT)]
    assert found == [[b"fresh", b"stale", b"1"]] * COUNT  # each unguarded write has overwritten the new value


async def take_over(address: str) -> None:
    """Wait for each lock, write under it, and release it."""

    async def one(app: Penstock, n: int) -> None:
        async with app.lock(f"{{{n}}}", lease=10) as held:
            tx = held.transaction().set(f"{{{n}}}:guarded", "fresh").set(f"{{{n}}}:unguarded", "fresh")
            await tx.incrby(f"{{{n}}}:writes").commit.aio()

    async with Penstock(address) as app:
        await asyncio.gather(*(one(app, n) for n in range(COUNT)))


async def test_a_holder_paused_within_its_lease_can_write(app: Penstock):
    held: Held = await app.lock("{brief}", lease=0.6).acquire.aio()
    await asyncio.sleep(0.2)
    await held.transaction().set("{brief}:a", 1, ttl=10).commit.aio()
    held.renewing = False
    await asyncio.sleep(0.7)
    try:
        await held.transaction().set("{brief}:a", 2).commit.aio()
    except LeaseLost:
        await app.transaction().require_value("{brief}:a", 1).delete("{brief}:a").commit.aio()
    else:
        raise AssertionError("written late")
