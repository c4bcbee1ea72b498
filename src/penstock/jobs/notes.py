"""What a running job reports: its progress, and the lines of its log. See `notes.lua`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock import sealing
from penstock.core.arguments import check_number
from penstock.jobs.constants import NOTED
from penstock.settings import Seal

MOST_TEXT: Final = 500
"""Characters of the text that is reported with a fraction."""

MOST_LINE: Final = 2000
"""Characters of one line of a log."""

_MOST_SEALED: Final = 16_000
"""Characters of a text that is sealed. The longest text without characters that take several bytes has about 3000."""

_SIZE: Final = struct.Struct(">H")
_TIME_SIZE: Final = 6


class _Progress(msgspec.Struct, array_like=True):
    fraction: float
    text: str


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job, as it last reported it.

    fraction  from 0 to 1
    text      what it reported with the fraction
    at        when the server got it, in seconds since 1970 by the server's clock
    """

    fraction: float
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a job logged.

    at  when the server got it, in seconds since 1970 by the server's clock
    id  its position, from which `job.log(after=…)` continues
    """

    at: float
    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """The last progress of a job, and the lines that are kept of its log, the oldest first."""

    progress: JobProgress | None = None
    log: tuple[LogLine, ...] = ()


def encode_progress(fraction: float, text: str) -> bytes:
    """Raises ValueError for a number that is not from 0 to 1."""
    check_number("progress", "fraction", fraction, 0, 1, "a fraction from 0 to 1")
    return msgspec.json.encode(_Progress(float(fraction), _shortened(text, MOST_TEXT)))


def encode_line(text: str) -> bytes:
    return _shortened(text, MOST_LINE).encode()


def encode_notes(progress: bytes, lines: Iterable[bytes], seal: Seal | None = None) -> bytes:
    """The text that `notes.lua` reads: progress and lines without times. An empty progress leaves the stored one.

    With `seal` the lines and the text of the progress are sealed, and its fraction stays readable.
    """
    if seal is not None:
        lines = [_sealed(line.decode(), seal).encode() for line in lines]
        if progress:
            found = msgspec.json.decode(progress, type=_Progress)
            progress = msgspec.json.encode(_Progress(found.fraction, _sealed(found.text, seal)))
    return b"".join([_SIZE.pack(len(part)) + part for part in (progress, *lines)])


def _sealed(text: str, seal: Seal) -> str:
    """The text, sealed. A codec may make any number of bytes of it, and a note has room for some."""
    sealed = sealing.seal_text(text, seal)
    return sealed if len(sealed) <= _MOST_SEALED else "(this text is too long when it is sealed)"


def decode_notes(encoded: bytes) -> list[bytes]:
    """Progress and lines again, as `encode_notes` got them."""
    parts, start = [], 0
    while start + _SIZE.size <= len(encoded):
        begin = start + _SIZE.size
        start = begin + _SIZE.unpack_from(encoded, start)[0]
        parts.append(encoded[begin:start])
    return parts


def read_progress(at: int, encoded: bytes | str, seal: Seal | None = None) -> JobProgress | None:
    """`at`: server ms. None for bytes that another program wrote."""
    try:
        found = msgspec.json.decode(encoded, type=_Progress)
    except msgspec.MsgspecError:
        return None
    return JobProgress(found.fraction, sealing.open_text(found.text, seal), at / 1000)


def read_notes(stored: bytes | None, seal: Seal | None = None) -> Notes:
    """The notes as the server stores them. Damaged bytes give what can be read of them."""
    if not stored or len(stored) < _SIZE.size:
        return Notes()
    start = _SIZE.size + _SIZE.unpack_from(stored)[0]
    progress = stored[_SIZE.size : start]
    lines, before, number = list[LogLine](), -1, 0
    while start + _TIME_SIZE + _SIZE.size <= len(stored):
        begin = start + _TIME_SIZE + _SIZE.size
        end = begin + _SIZE.unpack_from(stored, start + _TIME_SIZE)[0]
        text = sealing.open_text(stored[begin:end].decode(errors="replace"), seal)
        at = int.from_bytes(stored[start : start + _TIME_SIZE])
        number = number + 1 if at == before else 1
        before = at
        lines.append(LogLine(at / 1000, text, f"{at}-{number}"))
        start = end
    shown = read_progress(int.from_bytes(progress[:_TIME_SIZE]), progress[_TIME_SIZE:], seal) if progress else None
    return Notes(shown, tuple(lines))


class ProgressReports:
    """The messages about a job's progress, for one caller that waits for its result."""

    def __init__(self, show: Callable[[JobProgress], object] | None, seal: Seal | None) -> None:
        self._show, self._seal = show, seal
        self._shown: JobProgress | None = None

    def read(self, message: str) -> bool:
        """Show the progress in a message. Returns True for progress, output and the log: then the job still runs."""
        word, _, text = message.partition(" ")
        if word in ("output", "log"):
            return True
        if word != "progress":
            return False
        at, _, encoded = text.partition(" ")
        if self._show is not None and (progress := read_progress(int(at), encoded, self._seal)) is not None:
            self.show(progress)
        return True

    def show(self, progress: JobProgress) -> None:
        if self._show is not None and progress != self._shown:
            self._shown = progress
            self._show(progress)


def split_result(done: bytes | None) -> tuple[bytes | None, bytes | None]:
    """How a job ended (a letter, then the result or a text), and the notes that were kept with it."""
    if not done or done[:1] != NOTED:
        return done, None
    start = 1 + _SIZE.size
    end = start + _SIZE.unpack_from(done, 1)[0]
    return done[end:], done[start:end]


def _shortened(text: str, most: int) -> str:
    """The text with escapes for what UTF-8 cannot encode, cut to `most` characters."""
    text = str(text).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"
