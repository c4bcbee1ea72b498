"""The log that the demo reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.files.lines import Lines
from penstock.files.source import Reading, Source


def lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain or compressed, without line ends. Bytes that are not UTF-8 become U+FFFD.

    Raises FilesError for a file that cannot be read. If only a part can be read, its lines come first.
    """
    cutter = Lines()
    with Reading(Source(path, path.name), lines=True) as reading:
        for block in reading.blocks():
            for line in cutter.cut(block.data):
                yield line.decode("utf-8", "replace")
    for line in cutter.rest():
        yield line.decode("utf-8", "replace")
