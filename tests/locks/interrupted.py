"""A process whose waits for a lock, a permit and a rate limit are interrupted by SIGINT over and over.

    python interrupted.py ADDRESS PREFIX COUNT SEED

Prints how many interrupts it got, and how many requests they left among the waiters.
"""

import contextlib
import faulthandler
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from penstock import Penstock

SLICE = 50
"""Interrupts between two checks."""

faulthandler.enable()
address, prefix, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
signal.signal(signal.SIGINT, signal.default_int_handler)


def next_interrupt() -> None:
    """The first one after a random time; further ones meet the clean-up, or end a wait that lost the first one."""
    first = chance.choice([0.0002, 0.001, 0.003, 0.01]) * chance.uniform(0.3, 1.7)
    signal.setitimer(signal.ITIMER_REAL, first, chance.choice([0.0005, 0.05]))


def on_alarm(_: int, frame: FrameType | None) -> None:
    """Raise SIGINT, but only inside a wait: the loop around it must survive."""
    while frame is not None:
        if frame.f_code is interrupted.__code__:
            signal.raise_signal(signal.SIGINT)
        frame = frame.f_back


def left(leased: Any) -> int:
    """How many requests of this process wait, once the server has seen everything that the process sent."""
    key = leased.bindings.declared[0] + "waiters"
    until = time.monotonic() + 3
    while (found := client[0].zcard(key)) and time.monotonic() < until:
        time.sleep(0.01)
    return int(found)


def interrupted(one: Any) -> None:
    one.acquire()


def storm(waits: list[Any]) -> tuple[int, int]:
    got = remained = 0
    while got < count:
        for _ in range(SLICE):
            next_interrupt()
            with contextlib.suppress(KeyboardInterrupt):
                interrupted(chance.choice(waits))
            signal.setitimer(signal.ITIMER_REAL, 0)
            got += 1
        remained += sum(left(one) for one in waits)
    return got, remained


def main() -> None:
    with Penstock(address, prefix=prefix) as app:
        client.append(app._driver.connector.blocking_client())
        waits: list[Any] = [
            app.lock(f"{prefix}:wanted", lease=5),
            app.semaphore("wanted", limit=1, lease=5),
            app.rate_limit("wanted", limit=1, per=3600),
        ]
        held: list[Any] = []
        holder = threading.Thread(target=lambda: held.extend(one.acquire() for one in waits))
        holder.start()
        holder.join()
        signal.signal(signal.SIGALRM, on_alarm)
        print(*storm(waits), flush=True)
        for one in held[:2]:
            one.release()


client: list[Any] = []
if __name__ == "__main__":
    main()
