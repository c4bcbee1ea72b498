"""A process that takes many locks and is frozen before it writes under them. For `test_guarded_writes.py`.

    python paused_holder.py ADDRESS COUNT LEASE

It prints "taken" when it has all locks. After a line on its standard input it commits a guarded transaction for each
lock, and an unguarded write for comparison. Then it prints how many guarded ones were done, and how many raised
LeaseLost.
"""

import asyncio
import sys

from penstock import Held, LeaseLost, Penstock

address, count, lease = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


async def write(app: Penstock, n: int, held: Held) -> bool:
    """Returns whether the guarded transaction was done."""
    await app.transaction().set(f"{{{n}}}:unguarded", "stale").commit.aio()
    try:
        await held.transaction().set(f"{{{n}}}:guarded", "stale").incrby(f"{{{n}}}:writes").commit.aio()
    except LeaseLost:
        return False
    return True


async def main() -> None:
    async with Penstock(address) as app:
        helds = await asyncio.gather(*(app.lock(f"{{{n}}}", lease=lease).acquire.aio() for n in range(count)))
        print("taken", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        done = await asyncio.gather(*(write(app, n, held) for n, held in enumerate(helds)))
        print(done.count(True), done.count(False), flush=True)


asyncio.run(main())
