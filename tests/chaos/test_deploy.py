"""A rolling deploy: workers of the old and the new release side by side, and jobs that only the new one knows."""

from pathlib import Path

from tests.chaos.scene import Scene
from tests.speed import scaled


def test_jobs_of_both_releases_all_complete_while_one_replaces_the_other(tmp_path: Path):
    with Scene(tmp_path, lease=10) as scene:

        def enqueue_both(n: int) -> None:
            scene.enqueue(*(scene.tasks[name].call(5) for name in ("stroll", "learn") for _ in range(n)))

        old = [scene.start_worker(unknown_backoff=0.2) for _ in range(2)]
        enqueue_both(150)
        scene.until(lambda: scene.counts().completed == 150, 60)
        for round_, pid in enumerate(old, 1):
            scene.start_worker(app="newer", unknown_backoff=0.2)
            enqueue_both(50)
            scene.until(lambda least=150 + 75 * round_: scene.counts().completed >= least, 60)
            scene.stop(pid)
        scene.drain(60)
        assert scene.verdict(takeover=scaled(20)) == []
        assert "no task 'learn' in this worker" in scene.said()
        assert (scene.counts().completed, scene.counts().dead) == (500, 0)
