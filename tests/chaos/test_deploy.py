"""A rolling deploy: workers of the old and the new release at once, and jobs of a task that only the new one has."""

from pathlib import Path

from tests.chaos.environment import Environment
from tests.speed import scaled


def test_jobs_of_both_releases_all_complete_while_one_replaces_the_other(tmp_path: Path):
    with Environment(tmp_path, lease=10) as env:

        def enqueue_both(n: int) -> None:
            env.enqueue(*(env.tasks[name].call(5) for name in ("on_the_loop", "only_in_newer") for _ in range(n)))

        old = [env.start_worker(unknown_backoff=0.2) for _ in range(2)]
        enqueue_both(150)
        env.until(lambda: env.counts().completed == 150, 60)
        for round_, pid in enumerate(old, 1):
            env.start_worker(app="newer", unknown_backoff=0.2)
            enqueue_both(50)
            env.until(lambda least=150 + 75 * round_: env.counts().completed >= least, 60)
            env.stop(pid)
        env.drain(60)
        assert env.faults(takeover=scaled(20)) == []
        assert "no task 'only_in_newer' in this worker" in env.logs()
        assert (env.counts().completed, env.counts().dead) == (500, 0)
