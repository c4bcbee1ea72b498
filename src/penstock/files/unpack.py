"""Inflates Zstandard (RFC 8878), bzip2 and xz in bounded pieces, by the rules of `gunzip.py`: one frame or several, and
nothing else. `unpacker_for` recognises how a file is packed.

A checksum is verified where a frame has one, as frames of the commands do; damage of a Zstandard frame without a
checksum may pass. Only xz allows padding, of zeros. A frame that needs more than 128 MiB of memory is refused.
"""

from __future__ import annotations

import bz2
import lzma
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import FileDamaged, FilesError
from penstock.files import gunzip
from penstock.files.gunzip import Gunzip

# As in gunzip.py: whatever follows a frame is copied with each frame.
_CHUNK = 16 * 1024

_MAX_MEMORY = 128 * 1024 * 1024


class FrameUnpacker:
    """Inflates one file of frames, which is fed in pieces of any size. Subclasses name the format.

    `name` is what errors call the file, `max_piece` the most bytes of one piece of text. Holds one piece, and as much
    of the text before it as the frame refers to (at most 8 MiB at the commands' usual levels).
    """

    suffix: ClassVar[str]
    magic: ClassVar[bytes]
    title: ClassVar[str]
    padded: ClassVar[bool] = False
    """Whether zeros may follow a frame."""

    def __init__(self, name: str, max_piece: int = 64 * 1024) -> None:
        self._name = name
        self._max_piece = max_piece
        self._errors: tuple[type[Exception], ...] = self._open()
        self._frames = 0
        self._frame_start = 0  # where in the file the current frame begins
        self._consumed = 0  # bytes of the file that were inflated
        self._frame: Any = None  # None between two frames

    def _open(self) -> tuple[type[Exception], ...]:
        """Load what inflates the format. Returns the errors that it raises for damage."""
        raise NotImplementedError

    def _decompressor(self) -> Any:
        raise NotImplementedError

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _CHUNK):
            rest = data[start : start + _CHUNK]
            while rest or (self._frame and not self._frame.needs_input):
                if self.padded and self._frame is None and self._frames and not (rest := self._skip_padding(rest)):
                    break
                text, rest = self._inflate(rest)
                if text:
                    yield text

    def finish(self) -> None:
        if not self._frames:
            raise self._damaged(f"it is empty, without even one {self.title} frame")
        if self._frame:
            raise self._damaged(f"it ends at byte {self._consumed:,}, inside of {self._where}")

    def _skip_padding(self, data: bytes) -> bytes:
        rest = data.lstrip(b"\0")
        self._consumed += len(data) - len(rest)
        return rest

    def _begin(self) -> Any:
        self._frames += 1
        self._frame_start = self._consumed
        return self._decompressor()

    def _inflate(self, data: bytes) -> tuple[bytes, bytes]:
        """A piece of text, and the data that follows the frame. Data inside the frame is kept by the decompressor."""
        frame = self._frame = self._frame or self._begin()
        self._consumed += len(data)
        try:
            text = frame.decompress(data, self._max_piece)
        except self._errors as error:
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


class Unzstd(FrameUnpacker):
    """Raises FilesError for a Python before 3.14 without the extra `zstd`."""

    suffix = ".zst"
    magic = b"\x28\xb5\x2f\xfd"
    title = "Zstandard"

    def _open(self) -> tuple[type[Exception], ...]:
        try:
            self._zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        except ImportError:
            raise FilesError(
                f"{self._name} is packed with Zstandard, which this Python lacks: install penstock[zstd]"
            ) from None
        return (self._zstd.ZstdError,)

    def _decompressor(self) -> Any:
        return self._zstd.ZstdDecompressor()


class Unbzip2(FrameUnpacker):
    suffix = ".bz2"
    magic = b"BZh"
    title = "bzip2"

    def _open(self) -> tuple[type[Exception], ...]:
        return (OSError, ValueError)

    def _decompressor(self) -> Any:
        return bz2.BZ2Decompressor()


class Unxz(FrameUnpacker):
    suffix = ".xz"
    magic = b"\xfd7zXZ\x00"
    title = "xz"
    padded = True

    def _open(self) -> tuple[type[Exception], ...]:
        return (lzma.LZMAError,)

    def _decompressor(self) -> Any:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_MEMORY)


_FORMATS: tuple[type[FrameUnpacker], ...] = (Unzstd, Unbzip2, Unxz)

SUFFIXES = (".gz", *(one.suffix for one in _FORMATS))
"""The suffixes of packed files."""

HEAD = 10
"""First bytes of a file that `unpacker_for` needs."""


def unpacker_for(head: bytes, path: Path | None = None) -> type[Gunzip] | type[FrameUnpacker] | None:
    """The class that inflates a file that begins with these bytes. They decide, or else the file's name, so that a
    damaged file does not pass for text. None for a plain file."""
    if head.startswith(gunzip.MAGIC):
        return Gunzip
    for one in _FORMATS:
        if _begins_with(head, one):
            return one
    if path is None:
        return None
    if path.suffix == ".gz":
        return Gunzip
    return next((one for one in _FORMATS if path.suffix == one.suffix), None)


def _begins_with(head: bytes, one: type[FrameUnpacker]) -> bool:
    if one is not Unbzip2:
        return head.startswith(one.magic)
    # Text may begin with BZh: the level and the mark of the first block (or of the end) must follow.
    return head[:3] == one.magic and head[3:4].isdigit() and head[4:10] in {b"1AY&SY", b"\x17rE8P\x90"}
