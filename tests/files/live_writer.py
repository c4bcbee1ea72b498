"""A program that writes a numbered log, in pieces of any size, and reopens it after SIGHUP as servers do.

    python -m tests.files.live_writer LOG SECONDS SEED append|reopen

It prints how many lines it wrote. With `append` it opens the log once, as programs do that need copytruncate.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path


def write(path: Path, seconds: float, seed: int, reopens: bool) -> int:
    chance, asked = random.Random(seed), [False]
    signal.signal(signal.SIGHUP, lambda *_: asked.__setitem__(0, True))

    def opened() -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    log, unwritten, lines = opened(), b"", 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _ in range(chance.randint(1, 20)):
            unwritten += b"line %08d of the live log, %s\n" % (lines, b"x" * chance.randint(0, 200))
            lines += 1
        size = chance.randint(1, len(unwritten))
        os.write(log, unwritten[:size])  # often in the middle of a line
        unwritten = unwritten[size:]
        if asked[0] and reopens:
            os.write(log, unwritten)
            unwritten, asked[0] = b"", False
            os.close(log)
            log = opened()
        time.sleep(chance.choice((0.0, 0.001, 0.01, 0.03)))
    os.write(log, unwritten)
    os.close(log)
    return lines


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "reopen"))
