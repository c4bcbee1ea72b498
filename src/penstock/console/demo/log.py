"""The log that the demo reads."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import PenstockError


def lines(path: Path) -> Iterator[str]:
    """The lines of a log, plain or gzip, without their ends. What is no UTF-8 becomes U+FFFD.

    Raises PenstockError for a file that cannot be read, or only in part.
    """
    read = 0
    try:
        with path.open("rb") as start:
            packed = start.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            for line in file:
                read += 1
                yield line.rstrip(b"\r\n").decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {read:,}" if read else ""
        raise PenstockError(f"{path} cannot be read{after}: {getattr(error, 'strerror', '') or error}") from error
