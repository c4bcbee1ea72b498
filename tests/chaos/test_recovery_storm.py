"""Ordinary worker processes are killed every half second: how soon all jobs are done, and how many run again."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.testing.history import Ended, Started
from tests.chaos import storm
from tests.chaos.environment import Environment
from tests.chaos.forker import child_pids
from tests.servers import eventually
from tests.speed import scaled

IS_LONG = storm.seconds() > 60
KILLS, JOBS = (40, 500) if IS_LONG else (8, 400)
"""JOBS are enqueued before each kill, and again if all have ended before a process that holds some is seen."""

PAUSE = 0.5
"""Seconds from one kill to the next. So many jobs come meanwhile that most processes are busy."""
HOSTS = 3
CONCURRENCY = 8
MS = 20
"""A job takes up to so many milliseconds.

Without any kill, the runners need 9 s for all of them. What is longer is recovery.
"""

DONE_WITHIN = 15.0
"""Seconds after the last kill."""

TAKEOVER = 5.0
"""Seconds, after the lease, until a lost job runs again.

A suspect of a worker without a supervisor may wait longer: each kill of a host also ends the trial process that the
host started. `test_takeover.py` holds the strict limit, without a storm.
"""


def is_trial(pid: int) -> bool:
    """Whether the process was started to try suspects."""
    try:
        return b"PENSTOCK_TRIAL=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return True


class Hosts:
    """Workers that are supervised, or started again by this test when they were killed."""

    def __init__(self, env: Environment, supervised: bool) -> None:
        self.env = env
        self.supervised = supervised
        self.chance = random.Random(storm.seed())
        self.enqueued = 0
        for _ in range(HOSTS):
            self.start()

    def start(self) -> None:
        self.env.start_worker("--concurrency", str(CONCURRENCY), "--processes", "1" if self.supervised else "0")

    def busy(self) -> list[int]:
        """The ordinary worker processes that hold jobs."""
        held = self.env.held_jobs()
        all_ = [child for pid in self.env.workers for child in child_pids(pid)] if self.supervised else self.env.workers
        return [pid for pid in all_ if held.get(pid) and not is_trial(pid)]

    def enqueue(self) -> None:
        self.env.enqueue(*(self.env.tasks["on_the_loop"].call(self.chance.randint(1, MS)) for _ in range(JOBS)))
        self.enqueued += JOBS

    def kill_one(self) -> None:
        found: list[int] = []

        def have_jobs() -> bool:
            found[:] = self.busy()  # it changes all the time
            if not found and not self.env.counts().waiting:
                self.enqueue()
            return bool(found)

        eventually(have_jobs, 30)
        self.env.kill(found[0])
        if not self.supervised:
            self.start()


@pytest.mark.parametrize(("supervised", "lease"), [(True, 10.0), (False, 2.0)], ids=["supervised", "alone"])
def test_all_jobs_are_done_soon_after_the_last_kill(tmp_path: Path, supervised: bool, lease: float):
    with Environment(tmp_path, lease=lease) as env:
        hosts, began = Hosts(env, supervised), time.monotonic()
        for n in range(1, KILLS + 1):
            hosts.enqueue()
            hosts.kill_one()
            time.sleep(max(0.0, began + n * PAUSE - time.monotonic()))
        last = time.monotonic()
        counts = env.drain(within=60)
        took = time.monotonic() - last
        events = env.events()
        runs = Counter(event.job for event in events if isinstance(event, Started))
        ended = {event.claim for event in events if isinstance(event, Ended)}
        interrupted = sum(event.claim not in ended for event in events if isinstance(event, Started))
        again = sum(runs.values()) - len(runs)
        print(
            f"{KILLS} kills: {interrupted} runs interrupted, {again} jobs run again, "
            f"done {took:.1f} s after the last kill"
        )
        assert (counts.completed, counts.dead, counts.failed) == (hosts.enqueued, 0, 0)
        assert 0 < interrupted <= KILLS * CONCURRENCY
        # Some had ended when they were killed, but were not settled yet. That takes a round trip.
        assert again <= interrupted + KILLS * CONCURRENCY
        assert took < scaled(DONE_WITHIN)
        wait = lease + TAKEOVER if supervised else last - began + DONE_WITHIN
        assert env.faults(takeover=scaled(wait)) == []
