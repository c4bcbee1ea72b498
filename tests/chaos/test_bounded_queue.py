"""A bounded queue never has more jobs than its bound, while producers and those who claim its jobs are killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock import LeaseLost, Penstock
from penstock.testing import TemporaryServer
from tests.speed import scaled

BOUND, PER_TENANT, SECONDS = 200, 90, 4.0
PRODUCER = Path(__file__).with_name("bounded_producer.py")


def test_a_bounded_queue_never_has_more_jobs_than_its_bound():
    chance = random.Random(37)
    with TemporaryServer() as server, Penstock(server.address) as app:
        queue = app.queue("mail")
        queue.bound(jobs=BOUND, per_tenant=PER_TENANT)

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, str(PRODUCER), server.address])

        producers = [start() for _ in range(2)]
        samples, fullest, kills, last_kill = 0, 0, 0, 0.0
        end = time.monotonic() + scaled(SECONDS)
        try:
            while time.monotonic() < end:
                counts = queue.count()
                samples, fullest = samples + 1, max(fullest, counts.unfinished)
                assert counts.unfinished <= BOUND
                for n in range(3):
                    of = queue.tenant(f"t{n}").count()
                    assert of.ready + of.delayed + of.running <= PER_TENANT
                for item in queue.claim(chance.randint(1, 40), lease=0.2) if samples % 3 == 0 else ():
                    end_of = chance.choice([item.complete, item.complete, item.release, item.retry, None])
                    if end_of is not None:  # None: its holder dies, and the next turn takes the job back
                        with suppress(LeaseLost):
                            end_of()
                if fullest == BOUND and time.monotonic() > last_kill + 1:
                    victim = producers.pop(0)
                    victim.kill()
                    victim.wait()
                    producers.append(start())
                    kills, last_kill = kills + 1, time.monotonic()
        finally:
            for one in producers:
                one.kill()
                one.wait()
        counts = queue.count()
        assert counts.unfinished <= BOUND
        assert fullest == BOUND
        assert counts.refused > 0
        assert kills > 0
        assert samples > 10
