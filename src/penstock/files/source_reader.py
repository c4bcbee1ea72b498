"""Reads one file to send and cuts it into blocks. This module knows no server.

    Source --SourceReader--> SourceBlock, SourceBlock, …
                             ^
                             ResumePoint: where a sender that was started again continues

An upload sends the file as it was when the upload began: that many bytes of that inode. Where a block ends depends only
on the content and on where the block begins, so every sender cuts a file alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO
from pathlib import Path

from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files import gunzip, unzstd
from penstock.files.gunzip import Gunzip
from penstock.files.records import START_DIGEST, chain_digest
from penstock.files.regular_file import (
    AnyPath,
    identity_of,
    inode_at,
    inode_of,
    open_regular_file,
    printable,
    reason_of,
)
from penstock.files.source import Source
from penstock.files.unzstd import Unzstd

BLOCK_SIZE = 255 * 1024
"""Bytes of a block at most: with its header it stays below 256 KiB."""

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A piece of a file.

    offset               of its first byte in the file, or in the text if lines are read
    first_line           number, from 1, of the line that its first byte belongs to; 0 if exact bytes are read
    lines                lines that end in this block; 0 if exact bytes are read
    last_line_continues  the last line continues in the next block
    """

    offset: int
    data: bytes
    first_line: int = 0
    lines: int = 0
    last_line_continues: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where the block after a given block begins, and how to recognise the file.

    offset             where the next block begins
    lines              lines that end before `offset`
    last_block_digest  SHA-256 of the given block
    last_block_size    its bytes
    file_size, inode   as in SourceReader
    """

    offset: int
    lines: int
    last_block_digest: bytes
    last_block_size: int
    file_size: int
    inode: str


class SourceReader:
    """One open source, cut into blocks: its exact bytes, or its text if `lines` is true.

    Text is inflated if the file is packed, and blocks of text end at line ends. `start`: continue from this point, in
    the file that it belongs to, even if that has another name in the same folder now.

    Raises FilesError if the file cannot be read, FileChanged if it is not the file that `start` belongs to.
    """

    def __init__(self, source: Source, *, lines: bool = False, start: ResumePoint | None = None) -> None:
        self.source = source
        self._lines = lines
        self._start = start
        try:
            self._file = self._find(start.inode) if start else open_regular_file(source.path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        status = os.fstat(self._file.fileno())
        self.size = start.file_size if start else status.st_size
        """Bytes of the file when its upload began; bytes that are appended later are not sent."""
        self.inode = inode_of(status)
        """Device and inode: stable across renames."""
        self.identity = identity_of(status, self.size)
        """Changes with the content: a file that was sent with this identity need not be sent again."""
        try:
            self._unpacker = _unpacker_for(self._bytes(0, 4), source.path)
        except FilesError:
            self.close()
            raise
        self.packed = self._unpacker is not None
        """Whether the file is gzip or Zstandard, by its first bytes or by its name: a damaged one must not pass for
        text."""
        self.bytes_read = 0
        """Where in the file the last block ends, or a little further on; for showing progress."""

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def resume_point(self, block: SourceBlock, digest: bytes) -> ResumePoint:
        """Where to continue once this block was sent. `digest`: the SHA-256 of its data."""
        lines = block.first_line - 1 + block.lines if self._lines else 0
        return ResumePoint(block.offset + len(block.data), lines, digest, len(block.data), self.size, self.inode)

    def blocks(self) -> Iterator[SourceBlock]:
        """All blocks from the start or the resume point on, each of at most `BLOCK_SIZE` bytes; an empty file has none.

        A line that is longer than a block is spread over several blocks. Holds a few blocks in memory. To reach the
        resume point costs O(1), or in a packed file the time to inflate everything before it.

        Raises FileChanged if the file became shorter or if its content before the resume point is different;
        FileDamaged if it is not sound gzip or Zstandard, after all lines that end before the damage; FilesError if the
        disk cannot be read, or for Zstandard where the extra `zstd` is not installed.
        """
        content: Content = self._bytes
        if self._lines and self._unpacker is not None:
            content = _Text(self._inflated(self._unpacker(printable(self.source.path)))).at
        offset = lines = 0
        if self._start:
            self._check_content(content, self._start)
            offset, lines = self._start.offset, self._start.lines
        cut, length = (_cut_lines, BLOCK_SIZE + 1) if self._lines else (_cut_bytes, BLOCK_SIZE)
        while data := content(offset, length):
            block = cut(offset, data, lines)
            yield block
            offset += len(block.data)
            lines += block.lines

    def _check_content(self, content: Content, start: ResumePoint) -> None:
        """Raise FileChanged if the last block before the resume point is not the one that was sent."""
        if not start.last_block_size:
            return
        last_block = content(start.offset - start.last_block_size, start.last_block_size)
        if sha256(last_block).digest() != start.last_block_digest:
            raise self._changed(f"its content before byte {start.offset:,} is not what was sent")

    def _find(self, inode: str) -> FileIO:
        """Open the file with this inode: at its path, or under another name in the same folder if it was rotated."""
        for path in _possible_paths(self.source.path):
            if inode_at(path) == inode:
                with suppress(FileNotFoundError):  # renamed since
                    file = open_regular_file(path)
                    if inode_of(os.fstat(file.fileno())) == inode:
                        return file
                    file.close()
        raise self._changed("another file has its name, and no file in its folder is this one")

    def _inflated(self, unpacker: Gunzip | Unzstd) -> Iterator[bytes]:
        for offset in range(0, self.size, _CHUNK):
            yield from unpacker.feed(self._bytes(offset, _CHUNK))
        unpacker.finish()

    def _bytes(self, offset: int, length: int) -> bytes:
        """`length` bytes of the file; fewer only at its end."""
        length = max(0, min(length, self.size - offset))
        file = self._file.fileno()
        try:
            data = os.pread(file, length, offset)
            while len(data) < length and (more := os.pread(file, length - len(data), offset + len(data))):
                data += more
            # Check after the read: between an earlier check and the read, the file could be truncated and written
            # again, and new bytes would pass for the old ones.
            size = os.fstat(file).st_size
        except OSError as error:
            raise self._unreadable(error) from error
        if size < self.size or len(data) < length:
            raise self._changed(f"it had {self.size:,} bytes, and has {size:,}")
        self.bytes_read = offset + length
        return data

    def _unreadable(self, error: OSError | ValueError) -> FilesError:
        return FilesError(f"{printable(self.source.path)} cannot be read: {reason_of(error)}")

    def _changed(self, how: str) -> FileChanged:
        return FileChanged(f"{printable(self.source.path)} changed since its upload began: {how}")


Content = Callable[[int, int], bytes]
"""Returns this many bytes from an offset on; fewer only at the end."""


def _unpacker_for(head: bytes, path: Path) -> type[Gunzip] | type[Unzstd] | None:
    if head.startswith(gunzip.MAGIC) or (path.suffix == ".gz" and head != unzstd.MAGIC):
        return Gunzip
    return Unzstd if head == unzstd.MAGIC or path.suffix == ".zst" else None


class _Text:
    """Joins pieces of text, and returns bytes from an offset, which must not be lower than that of the call before. If
    the pieces end in FileDamaged, all whole lines are returned before it is raised."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._damage: FileDamaged | None = None
        self._held = b""
        self._held_from = 0

    def at(self, offset: int, length: int) -> bytes:
        parts = [self._held[offset - self._held_from :]]
        end = self._held_from + len(self._held)
        try:
            while end < offset + length and (piece := next(self._pieces, b"")):
                end += len(piece)
                if end > offset:
                    parts.append(piece[-(end - offset) :])
        except FileDamaged as error:
            self._damage = error
        self._held = b"".join(parts)
        self._held_from = offset
        if self._damage is not None:
            self._held = self._held[: self._held.rfind(b"\n") + 1]
            if not self._held:
                raise self._damage
        return self._held[:length]


def _cut_bytes(offset: int, data: bytes, lines: int) -> SourceBlock:
    return SourceBlock(offset, data)


def _cut_lines(offset: int, data: bytes, lines: int) -> SourceBlock:
    """`data` is one byte longer than a block, except at the end of the file."""
    if len(data) <= BLOCK_SIZE:
        return SourceBlock(offset, data, lines + 1, data.count(b"\n") + (not data.endswith(b"\n")))
    end = data.rfind(b"\n", 0, BLOCK_SIZE) + 1
    data = data[: end or BLOCK_SIZE]
    return SourceBlock(offset, data, lines + 1, data.count(b"\n"), last_line_continues=not end)


def _possible_paths(path: Path) -> Iterator[Path]:
    """The path itself and every file beside it; twice, since a rotation may rename the file during the search."""
    for _ in range(2):
        yield path
        yield from path.parent.iterdir()


def file_digest(path: AnyPath) -> str:
    """The digest of a file's exact bytes as a channel computes it, in hex: the SHA-256 of its blocks, chained."""
    digest = START_DIGEST
    with SourceReader(Source(Path(path), "")) as reader:
        for block in reader.blocks():
            digest = chain_digest(digest, sha256(block.data).digest())
    return digest.hex()
