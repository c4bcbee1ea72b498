"""`penstock logs count` beside a short script that counts the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from penstock.bench.figures import Ratio, at_most, figure
from penstock.bench.rig import Rig
from penstock.bench.topic import Figures, Topic
from penstock.bench.topics.files import file_of
from penstock.terminal.made_up_log import generate

TOPIC = Topic()

PLAIN_LOOP = Path(__file__).parents[1] / "plain_loop.py"


@TOPIC.scenario
def logs_count(rig: Rig) -> Figures:
    """`penstock logs count` in one process: time to the answer for a small log, and CPU beside a plain Python loop"""
    pages, rounds = rig.at_pace(4, 40, 80), rig.at_pace(1, 3, 5)
    text = "".join(f"{line}\n" for line in generate(25_000)).encode()
    with file_of(b"".join(text.splitlines(keepends=True)[:500]), "access.log") as path:
        took = [seconds_of("-m", "penstock", "logs", "count", str(path), "--json") for _ in range(rounds)]
    yield figure("500 lines, to the answer", took, "s", target=at_most(0.3))
    with file_of(text * pages, "access.log") as path:
        ours = [cpu_of("-m", "penstock", "logs", "count", str(path), "--json") for _ in range(rounds)]
        plain = [cpu_of(str(PLAIN_LOOP), str(path)) for _ in range(rounds)]
    ratio = Ratio(median(one / other for one, other in zip(ours, plain, strict=True)), "a plain loop")
    yield figure(f"{25_000 * pages:,} lines", ours, "CPU s", ratio=ratio, target=at_most(1.5, "ratio"))


def seconds_of(*words: str) -> float:
    """How long a Python process takes, with its start."""
    began = time.monotonic()
    subprocess.run((sys.executable, *words), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def cpu_of(*words: str) -> float:
    """CPU seconds of a Python process, with its start."""
    before = os.times()
    subprocess.run((sys.executable, *words), stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
