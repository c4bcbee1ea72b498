"""The same work for each library: a task that does nothing, called with two numbers and a text of 32 characters.

A module `on_<library>.py` has the task, `enqueue(jobs)` which puts jobs in one after the other, `COMMAND` which starts
one worker process, as quiet and as quick as its documentation knows, and perhaps `SHARE` of the jobs, if it is slow.
"""

import asyncio
import json
import os
import time
from itertools import count
from pathlib import Path

URL = os.environ.get("PEERS_URL", "")
TEXT = "x" * 32

_JOBS = int(os.environ.get("PEERS_JOBS", "0"))
_DONE = os.environ.get("PEERS_DONE", "")
_numbers = count(1)  # `next` on it is safe in threads
_began: list[float] = []


def ran() -> None:
    """Each task calls it. The first and the last job of the process look at the clocks."""
    number = next(_numbers)
    if number == 1:
        _began[:] = time.perf_counter(), time.process_time()
    if number == _JOBS:
        told = {"seconds": time.perf_counter() - _began[0], "cpu": time.process_time() - _began[1]}
        part = Path(f"{_DONE}.part")
        part.write_text(json.dumps(told))
        part.rename(_DONE)


def fastest_loop(work):
    """Run a coroutine function, on uvloop where it is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
