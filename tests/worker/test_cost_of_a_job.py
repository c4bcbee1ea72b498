"""What a job that uses no power costs its worker, in calls of Penstock's functions: this depends on no machine."""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from tests.conftest import MakeApp
from tests.worker.in_process import run_burst

JOBS = 2_000
MOST_CALLS = 26
"""Calls for each job, with its share of its turn: some 23. They once grew from 35 to 42, a few with each feature."""

_CODE = str(Path(penstock.__file__).parent)


class Calls:
    """Counts the calls of the package's functions, in all threads that start meanwhile."""

    def __init__(self) -> None:
        self.counted = 0

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_CODE):
            self.counted += 1

    def __enter__(self) -> "Calls":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_job_without_any_power_takes_few_calls(make_app: MakeApp, is_async: bool) -> None:
    app = make_app()

    async def on_the_loop(n: int) -> int:
        return n

    def in_a_thread(n: int) -> int:
        return n

    task: Any = app.task(queue="q", result_ttl=0)(on_the_loop if is_async else in_a_thread)
    await app.enqueue_many.aio([task.call(n) for n in range(100)])
    await run_burst(app, concurrency=100)
    await app.enqueue_many.aio([task.call(n) for n in range(JOBS)])
    with Calls() as calls:
        await run_burst(app, concurrency=100)
    assert (await app.queue("q").count.aio()).ready == 0
    assert calls.counted / JOBS < MOST_CALLS
