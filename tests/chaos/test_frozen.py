"""A worker that is stopped for longer than its lease, and goes on as if nothing had been."""

import os
import time
from pathlib import Path

from penstock.testing.history import Event, Lost, Settled, Started
from tests.chaos.scene import Scene
from tests.speed import scaled

LEASE = 0.5
AT_ONCE = 6
TIMES = int(os.environ.get("PENSTOCK_FREEZES", "100"))


def _of(events: list[Event], job: str) -> list[Started]:
    return [event for event in events if isinstance(event, Started) and event.job == job]


def test_a_worker_frozen_beyond_its_lease_is_refused_and_its_successor_untouched(tmp_path: Path):
    with Scene(tmp_path, lease=LEASE) as scene:
        for _ in range(2 * AT_ONCE):
            scene.start_worker("--concurrency", "1")
        frozen = rounds = 0
        while frozen < TIMES:
            jobs = scene.enqueue(*(scene.tasks["stroll"].call(400) for _ in range(AT_ONCE)))
            scene.until(lambda jobs=jobs: all(_of(scene.events(), job) for job in jobs), 60)
            pids = {int(_of(scene.events(), job)[-1].worker) for job in jobs}
            for pid in pids:
                scene.freeze(pid)
            # Some may have come to their end before we came.
            ended = {event.job for event in scene.events() if isinstance(event, Settled)}
            jobs = [job for job in jobs if job not in ended]
            frozen += len(jobs)
            rounds += 1
            # In every second round they come back while their successors work, else when all is done.
            if rounds % 2:
                scene.until(lambda jobs=jobs: all(len(_of(scene.events(), job)) > 1 for job in jobs), 60)
            else:
                scene.drain(60)
            for pid in pids:
                scene.thaw(pid)
            scene.drain(60)
        # The last to be thawed must have been told.
        time.sleep(LEASE)
        assert scene.verdict(takeover=scaled(60)) == []
        events = scene.events()
        refused = sum(isinstance(event, Lost) for event in events)
        refused += sum(isinstance(event, Settled) and event.answer == "refused" for event in events)
        assert refused >= 0.8 * frozen
        assert scene.counts().completed == len({event.job for event in events if isinstance(event, Started)})


def test_a_frozen_idle_worker_delays_no_job_by_more_than_half_a_second(tmp_path: Path):
    delays: dict[float, list[float]] = {0.0: [], 0.3: []}
    with Scene(tmp_path, lease=10) as scene:
        for _ in range(3):
            scene.start_worker()
        scene.enqueue(scene.tasks["stroll"].call(0))
        scene.drain(60)
        for turn in range(18):
            for delay, seen in delays.items():
                pid = scene.workers[turn % 3]
                scene.freeze(pid)
                began = time.time()
                (job,) = scene.enqueue(scene.tasks["stroll"].using(delay=delay).call(0))
                scene.until(lambda job=job: _of(scene.events(), job), 60)
                seen.append(_of(scene.events(), job)[0].at - began - delay)
                scene.thaw(pid)
                scene.drain(60)
        scene.stop_workers()
    for seen in delays.values():
        *most, last = sorted(seen)
        # One in eighteen is the machine's.
        assert most[-1] < scaled(0.5), delays
        assert last < scaled(2), delays
