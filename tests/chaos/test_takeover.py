"""A worker is killed and nothing else fails: its jobs run again at once under a supervisor, else after its lease."""

from pathlib import Path

import pytest

from tests.chaos.environment import Environment
from tests.chaos.forker import child_pids
from tests.speed import scaled

SLACK = 3.0
"""Seconds for the run itself, and for a crowded machine."""

LEASE = 1.5
LONG = 10.0


def registered(env: Environment, pid: int, supervised: bool) -> list[int]:
    """The worker process, once it has taken a turn. Its supervisor may have other children at first."""
    processes = child_pids(pid) if supervised else [pid]
    return [process for process in processes if process in env.held_jobs()]


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_the_jobs_of_a_killed_worker_run_again_in_time(tmp_path: Path, supervised: bool):
    lease = LONG if supervised else LEASE
    with Environment(tmp_path, lease=lease) as env:
        for _ in range(2):
            env.start_worker("--concurrency", "8")
        for _ in range(2):
            pid = env.start_worker("--concurrency", "4", *(("--processes", "1") if supervised else ()))
            env.until(lambda pid=pid: registered(env, pid, supervised), 60)
            (victim,) = registered(env, pid, supervised)
            env.enqueue(*(env.tasks["on_the_loop"].call(300) for _ in range(20)))
            env.until(lambda victim=victim: env.held_jobs().get(victim), 60)
            env.kill(victim)
            env.drain(60)
            if supervised:
                env.stop(pid)
        assert env.faults(takeover=scaled(SLACK) + (0.0 if supervised else lease)) == []
        assert env.counts().lost >= 2
