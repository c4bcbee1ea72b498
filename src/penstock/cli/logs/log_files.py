"""The logs that the arguments of `penstock logs count` select, and the format of each."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from penstock.counting.formats import SAMPLE_LINES, guess_format, log_format
from penstock.counting.request import LONGEST
from penstock.counting.w3c import layouts
from penstock.errors import ConfigurationError, FilesError
from penstock.files.regular_file import inode_of, printable, reason_of
from penstock.files.source import Source, find_sources
from penstock.files.source_reader import SourceReader

STDIN = "-"


@dataclass(frozen=True)
class LogFile:
    """A log. Standard input has no `path`. `streamed`: it can be read once, and from its beginning.

    format   the name of its format: "any" if its first lines are in none that is known, "" if it was not read yet
    guessed  whether the format was guessed
    layouts  of a W3C log: the lines at which the columns change, with the names of the columns
    """

    path: Path | None
    name: str
    size: int = 0
    format: str = ""
    guessed: bool = True
    layouts: tuple[tuple[int, str], ...] = ()
    streamed: bool = False

    @property
    def source(self) -> Source:
        assert self.path is not None
        return Source(self.path, self.name)


@dataclass(frozen=True)
class Selection:
    """The logs to count. `skipped`: files that cannot be read -> the reason; `same`: other names of a log -> the name
    by which it is counted; `folders`: subfolders that were left out."""

    logs: tuple[LogFile, ...]
    skipped: dict[str, str]
    same: dict[str, str]
    folders: tuple[Path, ...]


class LogSearch(msgspec.Struct, frozen=True):
    """Which files are logs, so that a process that follows them finds those that are created later. `skipped`: names of
    files that were there and cannot be counted."""

    paths: list[str]
    recursive: bool = False
    include: list[str] = []
    exclude: list[str] = []
    skipped: list[str] = []

    def find(self) -> list[Path]:
        found = list[Path]()
        for path in map(Path, self.paths):
            if path.is_dir():
                found += _files_below(path, self.recursive, self.include, self.exclude, [])
            else:
                found.append(path)
        return [path for path in found if not {path.name, printable(path)} & set(self.skipped)]


def select(
    paths: Sequence[Path], *, recursive: bool, include: Sequence[str], exclude: Sequence[str], format: str | None
) -> Selection:
    """The logs that the paths select. A folder stands for the files in it; those with names that match a pattern of
    `include`, if there is one, and none of `exclude`.

    Raises ConfigurationError for a path that does not exist, or that is neither a file nor a folder, and where nothing
    is selected.
    """
    if not paths:
        raise ConfigurationError("nothing was counted: name at least one file or folder, or - for standard input")
    if unknown := next((path for path in paths if str(path).startswith("-") and str(path) != STDIN), None):
        raise ConfigurationError(f"unknown option {unknown}; a file of this name is ./{unknown}")
    skipped: dict[str, str] = {}
    folders: list[Path] = []
    streams, named, found = list[LogFile](), list[Path](), list[Path]()
    for path in paths:
        if stream := _stream(path):
            streams.append(stream)
        elif path.is_dir():
            found += _files_below(path, recursive, include, exclude, folders)
        else:
            named.append(path)
    readable = [path for path in found if _is_readable(path, skipped)]
    same: dict[str, str] = {}
    sources = _sources(_once([*named, *readable], same))
    logs = [LogFile(source.path, source.name, source.path.stat().st_size) for source in sources]
    with_formats = list(_with_formats([*streams, *logs], format, skipped))
    if not with_formats:
        why = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        wanted = " that is wanted" if include or exclude else ""
        raise ConfigurationError(f"nothing was counted: {why or f'{_all(paths)} contains no file{wanted}'}")
    return Selection(tuple(with_formats), skipped, same, tuple(folders))


def _all(paths: Iterable[Path]) -> str:
    return ", ".join(map(printable, paths))


def _stream(path: Path) -> LogFile | None:
    """Standard input, or a pipe as the shell makes it for `<(zcat log.gz)`."""
    if str(path) in {STDIN, "/dev/stdin"}:
        return LogFile(None, STDIN, streamed=True)
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        return None
    return LogFile(path, str(path), streamed=True) if is_pipe else None


def _files_below(
    folder: Path, recursive: bool, include: Sequence[str], exclude: Sequence[str], folders: list[Path]
) -> Iterator[Path]:
    """The regular files of a folder, in the order of their names. A link to a file that is found anyway is left out,
    and a link to a folder is not followed."""
    files: list[Path] = []
    for parent, below, names in os.walk(folder):
        below.sort()
        here = Path(parent)
        files += [here / name for name in sorted(names) if _is_wanted(here / name, folder, include, exclude)]
        if not recursive:
            folders += [here / name for name in below]
            below.clear()
    real = {path.resolve() for path in files if not path.is_symlink()}
    return (path for path in files if path.is_file() and not (path.is_symlink() and path.resolve() in real))


def _is_wanted(path: Path, folder: Path, include: Sequence[str], exclude: Sequence[str]) -> bool:
    texts = (path.name, path.relative_to(folder).as_posix())
    matches = [[any(fnmatchcase(text, pattern) for text in texts) for pattern in many] for many in (include, exclude)]
    return (any(matches[0]) or not include) and not any(matches[1])


def _is_readable(path: Path, skipped: dict[str, str]) -> bool:
    try:
        path.open("rb").close()
    except OSError as error:
        skipped[printable(path)] = reason_of(error)
        return False
    return True


def _once(paths: Iterable[Path], same: dict[str, str]) -> list[Path]:
    """The paths without those that lead to a file again: hard links, such as rotatelogs makes to the log of today, and
    several links to one file."""
    found: dict[object, Path] = {}
    for path in paths:
        try:
            inode: object = inode_of(path.stat())
        except OSError:  # reported when it is opened
            inode = path
        if (other := found.setdefault(inode, path)) is not path:
            same[printable(path)] = printable(other)
    return list(found.values())


def _sources(paths: list[Path]) -> list[Source]:
    if not paths:
        return []
    try:
        return find_sources(paths)
    except FilesError as error:
        first, *faults = map(str.strip, str(error).splitlines())
        why = "; ".join(faults) or first.partition(": ")[2]
        raise ConfigurationError(f"nothing was counted: {why}") from None


# --- formats ---

_ZIP = b"PK\x03\x04"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def _with_formats(logs: Sequence[LogFile], format: str | None, skipped: dict[str, str]) -> Iterator[LogFile]:
    if format is not None and format != "w3c":
        log_format(format)
    for log in logs:
        if log.streamed:
            yield replace(log, format=format or "", guessed=format is None)
            continue
        try:
            yield _with_format(log, format)
        except _Unreadable as error:
            skipped[log.name] = str(error)


class _Unreadable(Exception):
    """Raised for a file that cannot be read as text in any known form."""


def _with_format(log: LogFile, format: str | None) -> LogFile:
    """The log with its format: the given one, or as guessed from its first lines."""
    assert log.path is not None
    with log.path.open("rb") as file:
        head = file.read(len(_ZIP))
    if head == _ZIP:
        raise _Unreadable("it is compressed with zip, which cannot be read: decompress it first")
    if head.startswith(_UTF_16):
        raise _Unreadable("it is UTF-16 text, which cannot be read: convert it to UTF-8 first")
    if format is not None and format != "w3c":
        return replace(log, format=format, guessed=False)
    name = format_of_sample(_first_text(log))
    if "w3c" in {name, format}:
        return replace(log, format="w3c", layouts=tuple(_all_layouts(log)), guessed=format is None)
    return replace(log, format=name)


def format_of_sample(text: bytes) -> str:
    """The name of the format of the first lines of a log; "any" if they are in none."""
    lines = text.split(b"\n")
    if layouts(b"\n".join(lines[:SAMPLE_LINES])):
        return "w3c"
    found = guess_format([line for line in (lines[:-1] if len(lines) > 1 else lines) if len(line) <= LONGEST])
    return "any" if found is None else found.name


def _first_text(log: LogFile) -> bytes:
    try:
        with SourceReader(log.source, lines=True) as reader:
            return next((block.data for block in reader.blocks()), b"")
    except FilesError:  # reported when the log is counted
        return b""


def _all_layouts(log: LogFile) -> Iterator[tuple[int, str]]:
    try:
        with SourceReader(log.source, lines=True) as reader:
            for block in reader.blocks():
                yield from layouts(block.data, block.first_line)
    except FilesError:
        return
