"""Work that is equal for each library: a task that does nothing, with two numbers and a text of 32 characters.

A module `on_<library>.py` defines the task, `enqueue(jobs)`, which enqueues jobs one after another, and `COMMAND`,
which starts one worker process with the quietest and fastest options of that library's documentation. Optional names:
`ENVIRONMENT` of the worker, `SHARE` of the jobs for a slow library, and `connect()`, so that the first job does not
pay for the connection.
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
    """Called by each task. The first and the last job of the process read the clocks."""
    number = next(_numbers)
    if number == 1:
        _began[:] = time.perf_counter(), time.process_time()
    if number == _JOBS:
        figures = {"seconds": time.perf_counter() - _began[0], "cpu": time.process_time() - _began[1]}
        part = Path(f"{_DONE}.part")
        part.write_text(json.dumps(figures))
        part.rename(_DONE)


def use_the_fastest_loop() -> None:
    """For libraries that do not install it by themselves."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
