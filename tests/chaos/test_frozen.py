"""A worker is frozen for longer than its lease, and continues without knowing it."""

import os
import time
from pathlib import Path

import pytest

from penstock.testing.history import Event, LeaseExpired, Settled, Started
from tests.chaos.environment import Environment
from tests.speed import scaled

LEASE = 0.5
AT_ONCE = 6
TIMES = int(os.environ.get("PENSTOCK_FREEZES", "100"))


def runs_of(events: list[Event], job: str) -> list[Started]:
    return [event for event in events if isinstance(event, Started) and event.job == job]


def ran_again(env: Environment, job: str) -> bool:
    return len(runs_of(env.events(), job)) > 1 or not env.is_unfinished(job)


@pytest.mark.parametrize(("task", "times"), [("on_the_loop", TIMES), ("in_batches", TIMES // 20)])
def test_a_worker_frozen_beyond_its_lease_is_refused_and_its_successor_untouched(tmp_path: Path, task: str, times: int):
    with Environment(tmp_path, lease=LEASE) as env:
        for _ in range(2 * AT_ONCE):
            env.start_worker("--concurrency", "1")
        frozen = rounds = 0
        while frozen < times:
            jobs = env.enqueue(*(env.tasks[task].call(400) for _ in range(AT_ONCE)))
            env.until(lambda jobs=jobs: all(runs_of(env.events(), job) for job in jobs), 60)
            worker_of = {job: int(runs_of(env.events(), job)[-1].worker) for job in jobs}
            pids = set(worker_of.values())
            for pid in pids:
                env.freeze(pid)
            # Some jobs may have ended before their workers were frozen. Only the server knows which: a worker may be
            # frozen before it notes the answer, or before the server reads what it has sent.
            jobs = [job for job in jobs if env.is_unfinished(job)]
            frozen += len({worker_of[job] for job in jobs})
            rounds += 1
            # In every second round the workers are thawed while the jobs run elsewhere, else when they have completed.
            if rounds % 2:
                env.until(lambda jobs=jobs: all(ran_again(env, job) for job in jobs), 60)
            else:
                env.drain(60)
            for pid in pids:
                env.thaw(pid)
            env.drain(60)
        # The workers thawed last need this time to learn that their leases are lost.
        time.sleep(LEASE)
        assert env.faults(takeover=scaled(60)) == []
        events = env.events()
        refused = sum(isinstance(event, LeaseExpired) for event in events)
        refused += sum(isinstance(event, Settled) and event.answer == "refused" for event in events)
        assert refused >= 0.8 * frozen
        assert env.counts().completed == len({event.job for event in events if isinstance(event, Started)})


def test_a_frozen_idle_worker_delays_no_job_by_more_than_half_a_second(tmp_path: Path):
    delays: dict[float, list[float]] = {0.0: [], 0.3: []}
    with Environment(tmp_path, lease=10) as env:
        for _ in range(3):
            env.start_worker()
        env.enqueue(env.tasks["on_the_loop"].call(0))
        env.drain(60)
        for turn in range(18):
            for delay, seen in delays.items():
                pid = env.workers[turn % 3]
                env.freeze(pid)
                began = time.time()
                (job,) = env.enqueue(env.tasks["on_the_loop"].using(delay=delay).call(0))
                env.until(lambda job=job: runs_of(env.events(), job), 60)
                seen.append(runs_of(env.events(), job)[0].at - began - delay)
                env.thaw(pid)
                env.drain(60)
        env.stop_workers()
    for seen in delays.values():
        *most, last = sorted(seen)
        # One of eighteen may be slow because of the machine.
        assert most[-1] < scaled(0.5), delays
        assert last < scaled(2), delays
