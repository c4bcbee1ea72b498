"""What is sent: paths become files with names, and one open file becomes blocks. No server in it.

    paths --sources--> Source, … --Reading--> Block, Block, …
                                 ^
                                 Mark: behind which block a sender that was started again goes on

The content of a file is what it was when the sending began: so many bytes of one inode. Blocks are cut by a rule that
looks at nothing but the content and the place where a block begins, so that each sender cuts alike.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO
from pathlib import Path

from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files import gunzip, unzstd
from penstock.files.gunzip import Gunzip
from penstock.files.unzstd import Unzstd

BLOCK = 255 * 1024
"""Bytes of a block at most: with what stands around it, it stays below 256 KiB."""

NO_BLOCKS = bytes(32)
"""The digest of a file without content."""

_STEP = 64 * 1024


# --- paths become sources ---


@dataclass(frozen=True, slots=True)
class Source:
    """A file to send. `name` is relative, with `/` between its parts, and says which file it is to who receives it."""

    path: Path
    name: str


AnyPath = str | os.PathLike[str]


def sources(paths: AnyPath | Iterable[AnyPath]) -> list[Source]:
    """The files to send, in the order given; a folder stands for its regular files in name order, hidden ones too.

    Folders in a folder are not looked into, and a link to a file of the same folder is left out. A file is called by
    its own name; where several have the same, by as many of its parent folders too as tell it from them.

    Raises one FilesError for all that cannot be sent: what is missing, cannot be read, is no regular file, is given
    twice, or has a name that is no UTF-8.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise FilesError("nothing was sent: name at least one file or folder")
    files: dict[str, Path] = {}  # by place
    faults: list[str] = []
    for path in given:
        with _noting(faults, path):
            for file in _files_of(path):
                with _noting(faults, file):
                    _add(files, file)
    found = [Source(file, name) for file, name in _named(files.values())]
    faults += [f"{_shown(file.path)}: its name is no UTF-8, rename it" for file in found if not _is_text(file.name)]
    if faults:
        raise FilesError("\n  ".join(["nothing was sent, because of", *faults]))
    return found


@contextmanager
def _noting(faults: list[str], path: AnyPath) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        faults.append(f"{_shown(path)}: {_reason(error)}")


def _files_of(path: AnyPath) -> list[Path]:
    if path == "":
        raise ValueError("an empty path")  # which Path takes for the working directory
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    here = {place_of(file.stat()) for file in files if not file.is_symlink()}
    return [file for file in files if not file.is_symlink() or place_of(file.stat()) not in here]


def _add(files: dict[str, Path], file: Path) -> None:
    with _open(file) as opened:
        place = place_of(os.fstat(opened.fileno()))
    if other := files.get(place):
        raise ValueError("given twice" if other == file else f"the same file as {_shown(other)}")
    files[place] = file


def _named(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each with its name: the last parts of its path, as many as no other file's path ends with."""
    parts = {file: _parts(file) for file in files}
    ends = Counter(path[-n:] for path in parts.values() for n in range(1, len(path) + 1))
    for file, path in parts.items():
        depth = next((n for n in range(1, len(path)) if ends[path[-n:]] == 1), len(path))
        yield file, "/".join(path[-depth:])


def _parts(file: Path) -> tuple[str, ...]:
    """Of its absolute path. A link in it keeps its name, unless a `..` behind it makes another path of it."""
    path = file.absolute()
    return (path.parent.resolve() / path.name if ".." in path.parts else path).parts[1:]


def _is_text(name: str) -> bool:
    """Bytes of a file name that are no UTF-8 are halves of surrogate pairs in Python."""
    return name.encode(errors="ignore").decode() == name


# --- a source becomes blocks ---


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a file. `offset`: of its first byte in the file, or in the text if lines are read.

    Of lines: `first_line` is the number, from 1, of the line that the first byte belongs to, `lines` says how many
    end in this block, `more` that the last one goes on in the next. Of exact bytes they are 0, 0 and False.
    """

    offset: int
    data: bytes
    first_line: int = 0
    lines: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """What a sender notes behind a block: where the next one begins, and by what to know the file again.

    `lines`: how many end before `offset`; `last` and `length`: SHA-256 and size of the block before it; `size` and
    `place`: those of the Reading.
    """

    offset: int
    lines: int
    last: bytes
    length: int
    size: int
    place: str


class Reading:
    """One open source, cut into blocks: its exact bytes, or, with `lines`, its text (inflated if it is packed) so that
    blocks end at a line end. `start`: go on behind that mark, in the file that it was made of, though it was renamed.

    Raises FilesError if the file cannot be read, FileChanged if it is not the one that the mark was made of.
    """

    def __init__(self, source: Source, *, lines: bool = False, start: Mark | None = None) -> None:
        self.source = source
        self._lines = lines
        self._start = start
        try:
            self._file = self._found(start.place) if start else _open(source.path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        status = os.fstat(self._file.fileno())
        self.size = start.size if start else status.st_size
        """Bytes of the file when its sending began; what is appended later is not sent."""
        self.place = place_of(status)
        """Device and inode: who has it is this file, whatever its name."""
        self.identity = identity_of(status, self.size)
        """Changes with the content: a file that was sent with this identity and name need not be sent again."""
        try:
            self._unpacked_by = _unpacks(self._bytes(0, 4), source.path)
        except FilesError:
            self.close()
            raise
        self.packed = self._unpacked_by is not None
        """It is gzip or Zstandard, or should be by its name: one that is damaged must not pass for text."""
        self.read = 0
        """How far in the file the last block that was cut from it ends, or a little farther: for showing progress."""

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def mark(self, block: Block, digest: bytes) -> Mark:
        """What to note when this block was sent; `digest` is the SHA-256 of its data."""
        lines = block.first_line - 1 + block.lines if self._lines else 0
        return Mark(block.offset + len(block.data), lines, digest, len(block.data), self.size, self.place)

    def blocks(self) -> Iterator[Block]:
        """All blocks behind the mark, each at most `BLOCK` bytes; of an empty file none. Holds a few of them in memory.

        A line longer than a block is spread over several. The first block costs O(1), but in a packed file the time to
        inflate what is before it. Raises FileChanged if the content before the mark is another, or the file became
        shorter; FileDamaged for what is no sound gzip or Zstandard, when all lines that end before the damage were
        given; FilesError for a disk that cannot read, and for Zstandard where the extra `zstd` is missing.
        """
        unpack = self._unpacked_by if self._lines else None
        content = _Text(self._inflated(unpack(_shown(self.source.path)))).at if unpack else self._bytes
        offset = lines = 0
        if self._start:
            self._compare(content, self._start)
            offset, lines = self._start.offset, self._start.lines
        cut, most = (_cut_lines, BLOCK + 1) if self._lines else (_cut_bytes, BLOCK)
        while data := content(offset, most):
            block = cut(offset, data, lines)
            yield block
            offset += len(block.data)
            lines += block.lines

    def _compare(self, content: Content, mark: Mark) -> None:
        if mark.length and sha256(content(mark.offset - mark.length, mark.length)).digest() != mark.last:
            raise self._changed(f"what stands before byte {mark.offset:,} is not what was sent")

    def _found(self, place: str) -> FileIO:
        """The file of that place: at its path, or under another name in the same folder, if it was rotated."""
        for path in _names_it_may_have(self.source.path):
            if _place_of(path) == place:
                with suppress(FileNotFoundError):  # renamed since
                    file = _open(path)
                    if place_of(os.fstat(file.fileno())) == place:
                        return file
                    file.close()
        raise self._changed("another file has its name, and it is in its folder under no other")

    def _inflated(self, packed: Gunzip | Unzstd) -> Iterator[bytes]:
        for offset in range(0, self.size, _STEP):
            yield from packed.feed(self._bytes(offset, _STEP))
        packed.end()

    def _bytes(self, offset: int, length: int) -> bytes:
        """So many bytes of the file; fewer at its end alone."""
        length = max(0, min(length, self.size - offset))
        file = self._file.fileno()
        try:
            data = os.pread(file, length, offset)
            while len(data) < length and (more := os.pread(file, length - len(data), offset + len(data))):
                data += more
            # After the read: else what stands behind a truncation could be taken for what stood there before.
            size = os.fstat(file).st_size
        except OSError as error:
            raise self._unreadable(error) from error
        if size < self.size or len(data) < length:
            raise self._changed(f"it had {self.size:,} bytes, and has {size:,}")
        self.read = offset + length
        return data

    def _unreadable(self, error: OSError | ValueError) -> FilesError:
        return FilesError(f"{_shown(self.source.path)} cannot be read: {_reason(error)}")

    def _changed(self, how: str) -> FileChanged:
        return FileChanged(f"{_shown(self.source.path)} changed since its sending began: {how}")


Content = Callable[[int, int], bytes]
"""Gives, from an offset on, so many bytes; fewer at the end alone."""


def _unpacks(head: bytes, path: Path) -> type[Gunzip] | type[Unzstd] | None:
    if head.startswith(gunzip.MAGIC) or (path.suffix == ".gz" and head != unzstd.MAGIC):
        return Gunzip
    return Unzstd if head == unzstd.MAGIC or path.suffix == ".zst" else None


class _Text:
    """What pieces make together, at any offset, as long as that never goes back. Where they end in damage, the lines
    that are whole are given before that is raised."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._damage: FileDamaged | None = None
        self._held = b""
        self._begin = 0  # of what is held

    def at(self, offset: int, length: int) -> bytes:
        parts = [self._held[offset - self._begin :]]
        end = self._begin + len(self._held)
        try:
            while end < offset + length and (piece := next(self._pieces, b"")):
                end += len(piece)
                if end > offset:
                    parts.append(piece[-(end - offset) :])
        except FileDamaged as error:
            self._damage = error
        self._held = b"".join(parts)
        self._begin = offset
        if self._damage is not None:
            self._held = self._held[: self._held.rfind(b"\n") + 1]
            if not self._held:
                raise self._damage
        return self._held[:length]


def _cut_bytes(offset: int, data: bytes, lines: int) -> Block:
    return Block(offset, data)


def _cut_lines(offset: int, data: bytes, lines: int) -> Block:
    """The data is a byte longer than a block, unless it is the last of the file."""
    if len(data) <= BLOCK:
        return Block(offset, data, lines + 1, data.count(b"\n") + (not data.endswith(b"\n")))
    end = data.rfind(b"\n", 0, BLOCK) + 1
    data = data[: end or BLOCK]
    return Block(offset, data, lines + 1, data.count(b"\n"), more=not end)


def _names_it_may_have(path: Path) -> Iterator[Path]:
    """Twice, since a rotation may rename it while we look."""
    for _ in range(2):
        yield path
        yield from path.parent.iterdir()


# --- digests ---


def chain(digest: bytes, block_digest: bytes) -> bytes:
    """The digest of a file up to a block: of that up to the block before, at first `NO_BLOCKS`, and the block's own."""
    return sha256(digest + block_digest).digest()


def file_digest(path: AnyPath) -> str:
    """The digest of a file's exact bytes as a channel computes it, in hex: of its blocks' SHA-256, chained."""
    digest = NO_BLOCKS
    with Reading(Source(Path(path), "")) as reading:
        for block in reading.blocks():
            digest = chain(digest, sha256(block.data).digest())
    return digest.hex()


# --- files ---

_KINDS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFDIR: "folder"}


def _open(path: Path) -> FileIO:
    """A regular file. Raises OSError for anything else, which is not opened: that may block, or wake who writes."""
    _refuse_special(path.stat())
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    try:
        _refuse_special(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _refuse_special(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"a {_KINDS.get(stat.S_IFMT(status.st_mode), 'device')}, no regular file")


def place_of(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def identity_of(status: os.stat_result, size: int) -> str:
    return f"{place_of(status)}:{size}:{status.st_mtime_ns}"


def _place_of(path: Path) -> str | None:
    try:
        return place_of(path.stat())
    except OSError:
        return None


def _shown(path: AnyPath) -> str:
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", "") or str(error)
