"""A worker is killed in calm weather: its jobs run again when its lease has run out, or at once under a supervisor."""

from pathlib import Path

import pytest

from tests.chaos.hatchery import children
from tests.chaos.scene import Scene
from tests.speed import scaled

SLACK = 3.0
"""Seconds for a crowded machine, on which one suspect after the other is tried."""

LEASE = 1.5
LONG = 10.0


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_the_jobs_of_a_killed_worker_run_again_in_time(tmp_path: Path, supervised: bool):
    lease = LONG if supervised else LEASE
    with Scene(tmp_path, lease=lease) as scene:
        for _ in range(2):
            scene.start_worker("--concurrency", "8")
        for _ in range(2):
            pid = scene.start_worker("--concurrency", "4", *(("--processes", "1") if supervised else ()))
            scene.until(lambda pid=pid: not supervised or children(pid), 60)
            victim = children(pid)[0] if supervised else pid
            scene.until(lambda victim=victim: victim in scene.hands(), 60)
            scene.enqueue(*(scene.tasks["stroll"].call(300) for _ in range(20)))
            scene.until(lambda victim=victim: scene.hands().get(victim), 60)
            scene.kill(victim)
            scene.drain(60)
            if supervised:
                scene.stop(pid)
        assert scene.verdict(takeover=scaled(SLACK) + (0.0 if supervised else lease)) == []
        assert scene.counts().lost >= 2
