"""Lines to count, and the counts that are right."""

from __future__ import annotations

import gzip
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.counting.aggregate import Aggregate
from penstock.counting.tally import Tally

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "2"))

MODES = ["send", "send gz", "send_lines", "send_lines gz"]
SHARED = [(mode, share) for mode in MODES for share in (False, True) if not share or "lines" in mode]


def by_day(lines: Sequence[bytes]) -> Tally:
    """Counts lines like `2026-03-02 anything`, and rejects a line without a space."""
    days, bad = Counter[str](), {}
    for place, line in enumerate(lines):
        day, blank, _ = line.partition(b" ")
        if blank:
            days[day.decode()] += 1
        else:
            bad[place] = "no blank"
    return Tally({"days": days}, bad)


def some_lines(n: int, *, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    bad = {n // 3, n - 2}
    return [
        b"garbage"
        if i in bad
        else b"2026-03-%02d %s" % (chance.randint(1, 9), chance.randbytes(chance.randint(0, 40)).hex().encode())
        for i in range(n)
    ]


def written(folder: Path, lines: Sequence[bytes], name: str = "access.log", *, packed: bool = False) -> Path:
    path = folder / (f"{name}.gz" if packed else name)
    text = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    return path


def truth(lines: Sequence[bytes]) -> tuple[int, int, dict[str, int]]:
    """The lines, the rejected lines, and the counts by day that are right."""
    found = by_day(lines)
    return len(lines), len(found.rejected), dict(found.tables["days"])


def counted(aggregate: Aggregate) -> tuple[int, int, dict[str, int]]:
    totals = aggregate.totals()
    assert totals.lines == totals.counted + totals.rejected
    return totals.lines, totals.rejected, aggregate.table("days")


def send(app: Penstock, channel: str, mode: str, *paths: Path, receivers: Sequence[str] = ("agg",)) -> None:
    files = app.files(channel)
    (files.send_lines if "lines" in mode else files.send)(paths, receivers=receivers, close=True, again=True)


alone = pytest.mark.parametrize("place", ["valkey"])
"""For tests of the program itself, which one kind of server is enough for."""
