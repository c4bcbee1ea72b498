"""Counts logs in this process, without a server."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from penstock.cli.logs.file_counter import FileCounter
from penstock.cli.logs.log_files import LogFile, format_of_sample
from penstock.cli.logs.report import FIRST_REJECTED, CountOptions, CountProgress, CountReport
from penstock.counting.access_log import DIRECTIVES, JOINED
from penstock.counting.pieces import may_be_split, open_from
from penstock.counting.request import LONGEST
from penstock.counting.w3c import layouts
from penstock.errors import ConfigurationError, FilesError
from penstock.files.source_reader import SourceReader
from penstock.files.unpack import HEAD, unpacker_for
from penstock.settings import MiB
from penstock.terminal.signals import interrupted_by

_PIECE = MiB
"""Bytes of text that are counted at a time. More would need more memory, and fewer would count less per call."""

_HELD_PIECES = MiB // 4
"""Most bytes of the pieces of a split line that wait for its last piece."""

_LONG_LINE = b"x" * (LONGEST + 1) + b"\n"
"""Stands for a line that is longer than a piece."""


def count_here(options: CountOptions, watch: Callable[[CountProgress], None]) -> CountReport:
    """Count logs in this process. Calls `watch` with the progress. Memory does not depend on the size of the logs, only
    on the number of different keys."""
    with interrupted_by(signal.SIGTERM, signal.SIGHUP), ExitStack() as files:
        out = files.enter_context(open_output(options.rejected)) if options.rejected else None
        return _LocalCount(options, watch, out).run()


def open_output(path: Path) -> IO[bytes]:
    """Open a file that the command writes. Raises ConfigurationError if it cannot be written."""
    try:
        return path.open("wb")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


class _LocalCount:
    def __init__(self, options: CountOptions, watch: Callable[[CountProgress], None], out: IO[bytes] | None) -> None:
        self._options = options
        self._watch = watch
        self._out = out
        self._counter = FileCounter(options.by, utc=options.utc, mmdb_path=options.mmdb)
        self._tables: dict[str, Counter[str]] = {}
        self._rejected_lines: list[tuple[str, int, str]] = []
        self._lines = self._rejected = 0
        self._layouts: list[tuple[int, str]] = []
        self._size = sum(log.size for log in options.logs)

    def run(self) -> CountReport:
        began = time.monotonic()
        faults: list[str] = []
        all_rejected: dict[str, int] = {}
        formats: list[str] = []
        read = 0
        for log in self._options.logs:
            lines, rejected = self._lines, self._rejected
            self._layouts = []
            formats.append(log.format)
            try:
                for text, position, format in _pieces(log):
                    formats[-1] = format
                    self._add(log, self._lines - lines + 1, text, format)
                    self._watch(CountProgress(read + position, self._size, self._lines))
            except FilesError as error:
                faults.append(str(error))
            read += log.size
            if self._lines - lines == self._rejected - rejected > 0:
                all_rejected[log.name] = self._lines - lines
        directives, joined = (self._tables.pop(name, Counter()).total() for name in (DIRECTIVES, JOINED))
        return CountReport(
            self._options.with_formats(formats),
            self._lines,
            self._rejected,
            directives,
            joined,
            self._tables,
            self._rejected_lines,
            all_rejected,
            max(read, self._size),
            time.monotonic() - began,
            "; ".join(faults),
        )

    def _add(self, log: LogFile, first: int, text: bytes, format: str) -> None:
        if log.streamed and format == "w3c":
            self._layouts += layouts(text, first)
        known = self._layouts if log.streamed else log.layouts
        number = text.count(b"\n")
        tally = self._counter.count_text(text, number, format, first, known)
        for name, counts in tally.tables.items():
            self._tables.setdefault(name, Counter()).update(counts)
        self._lines += number
        self._rejected += len(tally.rejected)
        if tally.rejected and (self._out or len(self._rejected_lines) < FIRST_REJECTED):
            self._note(log.name, first, text, tally.rejected.items())

    def _note(self, name: str, first: int, text: bytes, rejected: Iterable[tuple[int, str]]) -> None:
        lines = text.split(b"\n")
        for index, reason in rejected:
            if len(self._rejected_lines) < FIRST_REJECTED:
                self._rejected_lines.append((name, first + index, reason))
            if self._out:
                self._out.write(f"{name}\t{first + index}\t{reason}\t".encode(errors="replace") + lines[index] + b"\n")


# --- the text of a log ---


def _pieces(log: LogFile) -> Iterator[tuple[bytes, int, str]]:
    """Text of whole lines, position in the file, and format, for each piece of a log."""
    format = log.format
    texts = _stream_texts(log) if log.streamed else _file_texts(log)

    def pieces_may_follow() -> bool:
        return may_be_split(format)

    for text, position in _whole_lines(texts, pieces_may_follow):
        if not format:
            format = format_of_sample(text)
        yield text, position, format


def _file_texts(log: LogFile) -> Iterator[tuple[bytes, int]]:
    with SourceReader(log.source, lines=True) as reader:
        for block in reader.blocks():
            yield block.data, reader.bytes_read


def _stream_texts(log: LogFile) -> Iterator[tuple[bytes, int]]:
    with ExitStack() as files:
        file = sys.stdin.buffer if log.path is None else files.enter_context(log.path.open("rb"))
        head = file.read(HEAD)
        packing = unpacker_for(head)
        unpacker = packing(log.name) if packing is not None else None
        position, data = 0, head
        while data:
            position += len(data)
            if unpacker is None:
                yield data, position
            else:
                for text in unpacker.feed(data):
                    yield text, position
            data = file.read(_PIECE // 4)
        if unpacker is not None:
            unpacker.finish()


def _whole_lines(
    texts: Iterator[tuple[bytes, int]], pieces_may_follow: Callable[[], bool]
) -> Iterator[tuple[bytes, int]]:
    """Pieces of about a megabyte that end at a line end, and not inside a line that a container runtime may have split.
    Each line ends in LF, also the last one. If the texts end in an error, the lines before it are returned first."""
    held: list[bytes] = []
    size = position = 0
    error: FilesError | None = None
    in_long_line = False
    while True:
        try:
            text, position = next(texts, (b"", position))
        except FilesError as fault:
            error, text = fault, b""
        if text:
            held.append(text)
            size += len(text)
            if size < _PIECE:
                continue
        piece = b"".join(held)
        if text:
            end = _end_of_lines(piece, may_be_split=pieces_may_follow())
            whole, rest = piece[:end], piece[end:]
        else:
            whole, rest = piece + b"\n" * (piece[-1:] not in {b"", b"\n"}), b""
        if in_long_line and whole:
            whole = _LONG_LINE + whole[whole.index(b"\n") + 1 :]
            in_long_line = False
        if text and not whole and len(rest) >= _PIECE:  # a line that fills the whole piece
            in_long_line, rest = True, b""
        if whole:
            yield whole, position
        held, size = [rest], len(rest)
        if not text:
            break
    if in_long_line:
        yield _LONG_LINE, position
    if error:
        raise error


def _end_of_lines(piece: bytes, *, may_be_split: bool) -> int:
    """Where the last whole line of a piece ends."""
    end = piece.rfind(b"\n") + 1
    if may_be_split and len(piece) - (first_open := open_from(piece[:end])) <= _HELD_PIECES:
        return first_open
    return end
