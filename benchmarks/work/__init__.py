"""The same work for each library: a task that does nothing, called with two numbers and a text of 32 characters.

A module `on_<library>.py` has the task, `enqueue(jobs)` which puts jobs in one after the other, and `COMMAND` which
starts one worker process, as quiet and as quick as its documentation knows. And perhaps: `ENVIRONMENT` of the worker,
`SHARE` of the jobs, if it is slow, and `connect()`, if the first job would else pay for more than itself.
"""

import contextlib
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


def use_the_fastest_loop() -> None:
    """For libraries that do not do so by themselves."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
