"""Work that is equal for each library: a task that does nothing, with two numbers and a text of 32 characters.

A module `on_<library>.py` defines the task, which calls `ran` with its first number, and `enqueue(values)`, which
enqueues a job for each value, one after another, with the value as the first number. Optional: `enqueue_bulk(values)`,
the same in the library's way for many jobs, and `connect()`, so that the first job does not pay for the connection.
`PEERS` in `peers.py` names the command that starts one worker process.
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
_delays: list[float] = []


def ran(value: float) -> None:
    """Called by each task. The first and the last job of the process read the clocks.

    A value that is no whole number is the `time.monotonic()` of the enqueue: the task notes how long ago that was.
    """
    number = next(_numbers)
    if number == 1:
        _began[:] = time.perf_counter(), time.process_time()
    if value % 1:
        _delays.append(time.monotonic() - value)
    if number == _JOBS:
        figures = {"seconds": time.perf_counter() - _began[0], "cpu": time.process_time() - _began[1]}
        part = Path(f"{_DONE}.part")
        part.write_text(json.dumps({**figures, "delays": _delays}))
        part.rename(_DONE)


def use_the_fastest_loop() -> None:
    """For libraries that do not install it by themselves."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
