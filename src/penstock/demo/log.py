"""The log that the demo reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.files.lines import LineCutter
from penstock.files.source import Source
from penstock.files.source_reader import SourceReader


def lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain or compressed, without line ends. Bytes that are not UTF-8 become U+FFFD.

    Raises FilesError for a file that cannot be read. If only a part can be read, its lines come first.
    """
    cutter = LineCutter()
    with SourceReader(Source(path, path.name), lines=True) as reader:
        for block in reader.blocks():
            for line in cutter.feed(block.data):
                yield line.decode("utf-8", "replace")
    for line in cutter.finish():
        yield line.decode("utf-8", "replace")
