"""Reads one file to send and cuts it into blocks, without a server.

    Source --SourceReader--> SourceBlock, SourceBlock, …
                             ^
                             ResumePoint: where a sender that was started again continues

An upload sends the file as it was when the upload began: that many bytes of that inode. Where a block ends depends only
on the content and on where the block begins, so every sender cuts a file at the same places.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files.gunzip import Gunzip
from penstock.files.marks import Mark, mark_at
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
from penstock.files.unpack import HEAD, FrameUnpacker, unpacker_for

BLOCK_SIZE = 255 * 1024
"""The most bytes of a block: with its header it stays below 256 KiB."""

CURRENT_SIZE = -1
"""As the `file_size` of a resume point: the size that the file has when it is opened."""

HEAD_SIZE = 256 * 1024
"""Most bytes at the beginning of a file by which it is recognised."""

_CHUNK = 64 * 1024

_CLOCK_TICK_NS = 20_000_000
"""Times of files have the resolution of the kernel's clock: at most this many nanoseconds."""


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A piece of a file.

    offset               of its first byte in the file, or in the text if lines are read
    digest               SHA-256 of `data`
    first_line           number, from 1, of the line that its first byte belongs to; 0 if exact bytes are read
    lines                lines that end in this block; 0 if exact bytes are read
    last_line_continues  the last line continues in the next block
    window               the window that the block belongs to, up to the block's end
    """

    offset: int
    data: bytes
    digest: bytes
    window: Window
    first_line: int = 0
    lines: int = 0
    last_line_continues: bool = False


class Window(NamedTuple):
    """A block of a file that is read from its start. A log that grows is sent in smaller blocks, several of which may
    belong to one window. The chain over the windows is always the same.

    start   where the window begins
    size    its bytes so far
    digest  SHA-256 of these bytes
    chain   digest of the file before the window: the chain over the windows, as in `chain_digest`
    """

    start: int
    size: int
    digest: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where the block after a given block begins, and how to recognise the file by its content.

    offset             where the next block begins
    lines              lines that end before `offset`
    last_block_digest  SHA-256 of the last window before `offset`, and
    last_block_size    its bytes
    file_size, inode   as in SourceReader
    chain              digest of the file before that window
    head_size          bytes at the beginning of the file, at most 256 KiB and none after `offset`, and
    head               their SHA-256
    """

    offset: int
    lines: int
    last_block_digest: bytes
    last_block_size: int
    file_size: int
    inode: str
    chain: bytes = START_DIGEST
    head_size: int = 0
    head: bytes = b""

    @property
    def mark(self) -> Mark:
        return mark_at(self.offset, self.chain, self.last_block_digest)


class SourceReader:
    """One open source, cut into blocks: its exact bytes, or its text if `lines` is true.

    Text is inflated if the file is packed, and blocks of text end at line ends.

    start      continue from this point, in the file that it belongs to, even if that has another name in the same
               folder now
    hold_back  a line without a line end at the end of the text is not read: its rest may still be written

    Raises FilesError if the file cannot be read, FileChanged if it is not the file that `start` belongs to.
    """

    def __init__(
        self, source: Source, *, lines: bool = False, start: ResumePoint | None = None, hold_back: bool = False
    ) -> None:
        self.source = source
        self._lines = lines
        self._start = start
        try:
            self._file = self._open(start)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        self.status = os.fstat(self._file.fileno())
        self._opened_at = time.time_ns()
        is_resumed = start is not None and start.file_size != CURRENT_SIZE
        self.size = start.file_size if start and is_resumed else self.status.st_size
        """Bytes of the file when its upload began; bytes that are appended later are not sent."""
        self.inode = inode_of(self.status)
        """Device and inode: stable across renames."""
        try:
            self._unpacker = unpacker_for(self._bytes(0, HEAD), source.path)
            self.packed = self._unpacker is not None
            """Whether the file is packed, by its first bytes or by its name: a damaged one must not pass for text."""
            self.identity = identity_of(self.status, self.size)
            """Changes with the content: a file that was sent with this identity need not be sent again."""
            self.held_back = 0
            """Bytes of the unfinished line at the end, which is not read."""
            self._holds_back = hold_back and lines and self.packed
            if hold_back and lines and not self.packed:
                end = self._last_line_end(start.offset if start else 0)
                self.held_back, self.size = self.size - end, end
        except FilesError:
            self.close()
            raise
        self.bytes_read = 0
        """Where in the file the last block ends, or a little further on; for showing progress."""

    def _open(self, start: ResumePoint | None) -> FileIO:
        if self.source.opened is not None:
            return FileIO(os.dup(self.source.opened), closefd=True)
        return self._find(start.inode) if start else open_regular_file(self.source.path)

    def _last_line_end(self, start: int) -> int:
        """Where the last line that has a line end ends; `start` if no line ends after it."""
        end = self.size
        while end > start:
            begin = max(start, end - _CHUNK)
            if (found := self._bytes(begin, end - begin).rfind(b"\n")) >= 0:
                return begin + found + 1
            end = begin
        return start

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def resume_point(self, block: SourceBlock) -> ResumePoint:
        """Where to continue once this block was sent."""
        lines = block.first_line - 1 + block.lines if self._lines else 0
        window = block.window
        return ResumePoint(
            block.offset + len(block.data), lines, window.digest, window.size, self.size, self.inode, window.chain
        )

    def with_head(self, point: ResumePoint) -> ResumePoint:
        """The point with its head, up to the most that a head can have."""
        size = min(point.offset, HEAD_SIZE)
        if size <= point.head_size:
            return point
        return replace(point, head_size=size, head=sha256(self._content()(0, size)).digest())

    def first_bytes(self, size: int) -> bytes:
        """The first bytes of the file, or of its text if lines are read."""
        try:
            return self._content()(0, size)
        except FileDamaged:
            return b""

    def blocks(self) -> Iterator[SourceBlock]:
        """All blocks from the start or the resume point on, each of at most `BLOCK_SIZE` bytes; an empty file has none.

        A line that is longer than a block is spread over several blocks. Holds a few blocks in memory. To reach the
        resume point costs O(1), or in a packed file the time to inflate everything before it.

        Raises FileChanged if the file became shorter or if its content before the resume point is different;
        FileDamaged if it is not sound gzip, Zstandard, bzip2 or xz, after all lines that end before the damage;
        FilesError if the disk cannot be read, or for Zstandard where the extra `zstd` is not installed.
        """
        content = self._content()
        start = offset = lines = 0
        chain = START_DIGEST
        if self._start:
            offset, lines, chain = self._start.offset, self._start.lines, self._start.chain
            start = offset - self._start.last_block_size
        while (data := content(start, self._window_length)) or start < offset:
            if start < offset:
                self._check_content(data)
            whole, continues = self._cut(data)
            if not whole:
                self.held_back = len(data)
                return
            window = Window(start, len(whole), sha256(whole).digest(), chain)
            if start + window.size > offset:
                piece = whole[offset - start :]
                block = SourceBlock(
                    offset, piece, window.digest if len(piece) == window.size else sha256(piece).digest(), window
                )
                if self._lines:
                    ends = piece.count(b"\n") + (not continues and not piece.endswith(b"\n"))
                    block = replace(block, first_line=lines + 1, lines=ends, last_line_continues=continues)
                yield block
                offset += len(piece)
                lines += block.lines
            start += window.size
            chain = chain_digest(chain, window.digest)

    @property
    def _window_length(self) -> int:
        """Bytes to read for one window: one more than a block, for lines, shows whether the text continues."""
        return BLOCK_SIZE + self._lines

    def _cut(self, data: bytes) -> tuple[bytes, bool]:
        """The window at the beginning of the data, and whether its last line continues behind it."""
        if len(data) <= BLOCK_SIZE:
            return data[: data.rfind(b"\n") + 1] if self._holds_back else data, False
        end = data.rfind(b"\n", 0, BLOCK_SIZE) + 1
        return data[: end or BLOCK_SIZE], not end

    def _content(self) -> Content:
        """Returns bytes of the file, or of its text, at offsets that do not decrease."""
        if self._lines and self._unpacker is not None:
            return _Text(self._inflated(self._unpacker(printable(self.source.path)))).at
        return self._bytes

    def continues(self, point: ResumePoint, *, trust_inode: bool) -> Continuation:
        """Whether this file begins with the content that was sent, up to the point.

        `trust_inode`: for a file that still has the inode of the point only the head and the last window are compared.
        Otherwise everything before the point is read.
        """
        content = self._content()
        try:
            if sha256(content(0, point.head_size)).digest() != (point.head or sha256().digest()):
                return Continuation.NO
            start = point.offset - point.last_block_size
            if not (trust_inode and point.inode == self.inode and not self.packed):
                content, at, chain = self._content(), 0, START_DIGEST
                while at < start and (data := content(at, self._window_length)):
                    whole, _ = self._cut(data)
                    at, chain = at + len(whole), chain_digest(chain, sha256(whole).digest())
                if (at, chain) != (start, point.chain):
                    return Continuation.NO
            last = content(start, point.last_block_size + 1)
        except (FileDamaged, FileChanged):
            return Continuation.NO
        window, rest = last[: point.last_block_size], last[point.last_block_size :]
        if len(window) < point.last_block_size or sha256(window).digest() != (
            point.last_block_digest or sha256().digest()
        ):
            return Continuation.NO
        return Continuation.WITH_MORE if rest else Continuation.TO_THE_END

    def begins_as(self, marks: Sequence[Mark]) -> bool:
        """Whether the file begins with the content that was sent, up to the last mark that it reaches. Reads it all."""
        content, at, chain, left, agrees = self._content(), 0, START_DIGEST, [*marks], False
        try:
            while left and (data := content(at, self._window_length)):
                whole, _ = self._cut(data)
                while left and left[0].offset <= at + len(whole):
                    mark = left.pop(0)
                    agrees = mark_at(mark.offset, chain, sha256(whole[: mark.offset - at]).digest()) == mark
                at, chain = at + len(whole), chain_digest(chain, sha256(whole).digest())
        except (FileDamaged, FileChanged):
            return False
        return agrees

    def has_whole_line(self, offset: int) -> bool:
        """Whether a line ends after this offset."""
        if not self.packed:
            return self.size > offset
        try:
            content = self._content()
            while data := content(offset, _CHUNK):
                if b"\n" in data:
                    return True
                offset += len(data)
        except FileDamaged:
            return True
        return False

    def has_bytes_at(self, offset: int) -> bool:
        """Whether the file, or its text, has more than `offset` bytes."""
        try:
            return bool(self._content()(offset, 1))
        except (FileDamaged, FileChanged):
            return False

    def is_sound(self) -> bool:
        """Whether a packed file can be inflated to its end. Inflates all of it."""
        try:
            if self._unpacker is not None:
                for _ in self._inflated(self._unpacker(printable(self.source.path))):
                    pass
        except (FileDamaged, FileChanged):
            return False
        return True

    def was_written(self) -> bool:
        """Whether the file may have been written to since it was opened."""
        try:
            status = os.fstat(self._file.fileno())
        except OSError:
            return True
        is_same = (status.st_mtime_ns, status.st_size) == (self.status.st_mtime_ns, self.status.st_size)
        # A write in the same tick of the kernel's clock as the last one leaves the time unchanged.
        return not is_same or abs(self._opened_at - status.st_mtime_ns) < _CLOCK_TICK_NS

    def check_unchanged(self, digest: bytes) -> None:
        """Raise FileChanged if the blocks, read again, are not those with this digest (a chain over their digests)."""
        again = START_DIGEST
        for block in self.blocks():
            again = chain_digest(again, block.digest)
        if again != digest:
            raise self._changed("it was changed in place while it was sent, so what was sent is a mixture")

    def _check_content(self, data: bytes) -> None:
        """Raise FileChanged if the data does not begin with the last window before the resume point."""
        start = self._start
        if start and sha256(data[: start.last_block_size]).digest() != start.last_block_digest:
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
        raise self._changed("another file has its name, and the file that was being sent is not in its folder any more")

    def _inflated(self, unpacker: Gunzip | FrameUnpacker) -> Iterator[bytes]:
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


class Continuation(enum.Enum):
    """Whether a file begins with the content that was sent: no; yes, and it ends there; yes, and it has more."""

    NO = enum.auto()
    TO_THE_END = enum.auto()
    WITH_MORE = enum.auto()


Content = Callable[[int, int], bytes]
"""Returns this many bytes from an offset on; fewer only at the end."""


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


def _possible_paths(path: Path) -> Iterator[Path]:
    """The path itself, then every file in its folder and, if it is a link, in the folder of its target. All of this
    twice, because a rotation may rename the file during the search."""
    for _ in range(2):
        yield path
        for folder in {path.parent, Path(os.path.realpath(path)).parent}:
            yield from folder.iterdir()


def file_digest(path: AnyPath) -> str:
    """The digest of a file's exact bytes as a channel computes it, in hex: the SHA-256 of its blocks, chained."""
    digest = START_DIGEST
    with SourceReader(Source(Path(path), "")) as reader:
        for block in reader.blocks():
            digest = chain_digest(digest, block.digest)
    return digest.hex()
