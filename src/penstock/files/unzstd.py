"""Inflates Zstandard (RFC 8878) in bounded pieces, by the rules of `gunzip.py`: one frame or several, and nothing else.

A checksum is verified where a frame has one, as frames of the `zstd` command do; damage of a frame without a checksum
may pass. There is no padding. A frame that needs more than 128 MiB of its text in memory is refused, as by the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from penstock.errors import FileDamaged, FilesError

MAGIC = b"\x28\xb5\x2f\xfd"

# As in gunzip.py: whatever follows a frame is copied with each frame.
_CHUNK = 16 * 1024


class Unzstd:
    """Inflates one Zstandard file, which is fed in pieces of any size.

    `name` is what errors call the file, `max_piece` the most bytes of one piece of text. Holds one piece, and as much
    of the text before it as the frame refers to (at most 8 MiB at the command's usual levels). Raises FilesError for a
    Python before 3.14 without the extra `zstd`.
    """

    def __init__(self, name: str, max_piece: int = 64 * 1024) -> None:
        self._name = name
        self._max_piece = max_piece
        self._zstd = _library(name)
        self._frames = 0
        self._frame_start = 0  # where in the file the current frame begins
        self._consumed = 0  # bytes of the file that were inflated
        self._frame: Any = None  # None between two frames

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text in these bytes of the file. Exhaust the iterator before the next call. Raises FileDamaged."""
        for start in range(0, len(data), _CHUNK):
            rest = data[start : start + _CHUNK]
            while rest or (self._frame and not self._frame.needs_input):
                text, rest = self._inflate(rest)
                if text:
                    yield text

    def finish(self) -> None:
        """The file has no more bytes. Raises FileDamaged if it should have."""
        if not self._frames:
            raise self._damaged("it is empty, not even one Zstandard frame is there")
        if self._frame:
            raise self._damaged(f"it ends at byte {self._consumed:,}, inside of {self._where}")

    def _begin(self) -> Any:
        self._frames += 1
        self._frame_start = self._consumed
        return self._zstd.ZstdDecompressor()

    def _inflate(self, data: bytes) -> tuple[bytes, bytes]:
        """A piece of text, and the data that follows the frame. Data inside the frame is kept by the decompressor."""
        frame = self._frame = self._frame or self._begin()
        self._consumed += len(data)
        try:
            text = frame.decompress(data, self._max_piece)
        except self._zstd.ZstdError as error:
            reason = str(error).rpartition(": ")[2]
            raise self._damaged(f"{self._where} is broken before byte {self._consumed:,}: {reason}") from None
        if frame.eof:
            self._frame = None
            self._consumed -= len(frame.unused_data)
        return text, frame.unused_data

    @property
    def _where(self) -> str:
        return f"frame {self._frames} (from byte {self._frame_start:,})"

    def _damaged(self, what: str) -> FileDamaged:
        return FileDamaged(f"{self._name} is damaged: {what}")


def _library(name: str) -> Any:
    try:
        return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise FilesError(f"{name} is packed with Zstandard, which this Python lacks: install penstock[zstd]") from None
