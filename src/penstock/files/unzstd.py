"""Zstandard (RFC 8878), inflated in bounded pieces by the rules of `gunzip.py`: one frame or several and nothing else.

A checksum is verified where a frame has one (the command `zstd` writes it); damage of a frame without may pass. There
is no padding. A frame that wants a window of more than 128 MiB is refused, as by the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from penstock.errors import FileDamaged, FilesError

MAGIC = b"\x28\xb5\x2f\xfd"

# As in gunzip.py: what stands behind a frame is copied with each frame.
_STEP = 16 * 1024


class Unzstd:
    """The text of one file, which is fed in any pieces. `name` is for errors; `most`: bytes of a piece of text.

    Holds one piece and the window of a frame (8 MiB at most by the command's usual levels). Raises FilesError where
    neither Python has Zstandard, as from 3.14 on, nor the extra is installed.
    """

    def __init__(self, name: str, most: int = 64 * 1024) -> None:
        self._name = name
        self._most = most
        self._zstd = _library(name)
        self._frames = 0
        self._began = 0  # where in the file the present frame begins
        self._taken = 0  # bytes of the file that were inflated
        self._frame: Any = None  # None between two frames

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text that these bytes of the file make, to be taken whole before the next are fed. Raises FileDamaged."""
        for start in range(0, len(data), _STEP):
            rest = data[start : start + _STEP]
            while rest or (self._frame and not self._frame.needs_input):
                text, rest = self._inflate(rest)
                if text:
                    yield text

    def end(self) -> None:
        """The file has no more bytes. Raises FileDamaged where it should."""
        if not self._frames:
            raise self._damaged("it is empty, not even one Zstandard frame is there")
        if self._frame:
            raise self._damaged(f"it ends at byte {self._taken:,}, inside of {self._where}")

    def _begin(self) -> Any:
        self._frames += 1
        self._began = self._taken
        return self._zstd.ZstdDecompressor()

    def _inflate(self, data: bytes) -> tuple[bytes, bytes]:
        """A piece of text, and what stands behind the frame. What is before its end the frame keeps for the next."""
        frame = self._frame = self._frame or self._begin()
        self._taken += len(data)
        try:
            text = frame.decompress(data, self._most)
        except self._zstd.ZstdError as error:
            reason = str(error).rpartition(": ")[2]
            raise self._damaged(f"{self._where} is broken before byte {self._taken:,}: {reason}") from None
        if frame.eof:
            self._frame = None
            self._taken -= len(frame.unused_data)
        return text, frame.unused_data

    @property
    def _where(self) -> str:
        return f"frame {self._frames} (from byte {self._began:,})"

    def _damaged(self, what: str) -> FileDamaged:
        return FileDamaged(f"{self._name} is damaged: {what}")


def _library(name: str) -> Any:
    try:
        return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise FilesError(f"{name} is packed with Zstandard, which this Python lacks: install penstock[zstd]") from None
