"""Cuts bytes into lines. The result does not depend on the pieces in which the bytes arrive.

A line ends with LF or CR LF, which are not part of the line; a CR elsewhere is data. The beginning of an unfinished
line is kept, but never more of it than the longest line that is allowed.
"""

from __future__ import annotations

import sys

from penstock.core.arguments import check_whole


class CutLine(bytes):
    """The beginning of a line that is longer than allowed; the rest of the line was dropped."""


LONGEST = 1 << 20
"""Bytes of the longest line, unless the caller chooses another limit."""


class LineCutter:
    """Cuts the bytes that it is fed into lines.

    `longest` limits the bytes of a line without its end. A longer line is returned as a CutLine of that many bytes, as
    soon as the limit is passed. Holds `longest` bytes, and the lines of one `feed`.

    A second cutter can continue inside a line where a first one stopped: it takes over `in_long_line` and `unfinished`.
    """

    def __init__(self, longest: int = LONGEST, *, in_long_line: bool = False, unfinished: bytes = b"") -> None:
        check_whole("LineCutter", "longest", longest, 1, sys.maxsize, "at least 1 byte")
        self.in_long_line = in_long_line
        """Whether the next bytes belong to a line that was returned as a CutLine; they are dropped."""
        self._longest = longest
        # At most two bytes more than `longest`: the first may be the CR of the line's end, the second shows that the
        # line is longer.
        self._kept = bytearray(unfinished[: longest + 2])

    @property
    def unfinished(self) -> bytes:
        """The beginning of a line whose end was not fed yet."""
        return bytes(self._kept)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in these bytes."""
        lines: list[bytes] = []
        start = 0
        if self._kept or self.in_long_line:
            start = data.find(b"\n") + 1
            lines += self._extend(data[: start - 1] if start else data, ended=start > 0)
            if not start:
                return lines
        end = data.rfind(b"\n") + 1
        if start < end:
            lines += self._split(data[start:end])
        return lines + self._extend(data[end:], ended=False)

    def finish(self) -> list[bytes]:
        """The last line of a file that does not end with a line end, if there is one. The next `feed` begins a new
        file."""
        lines = [self._bounded(bytes(self._kept))] if self._kept else []
        self._kept.clear()
        self.in_long_line = False
        return lines

    def _extend(self, data: bytes, *, ended: bool) -> list[bytes]:
        """Add data to the unfinished line; `ended`: the line ends with it."""
        line: bytes | None = None
        if not self.in_long_line:
            self._kept += data[: self._longest + 2 - len(self._kept)]
            if ended:
                line = bytes(self._kept).removesuffix(b"\r")
            elif len(self._kept) > self._longest + 1:
                line = bytes(self._kept)
                self.in_long_line = True
        if line is not None:
            self._kept.clear()
        self.in_long_line = self.in_long_line and not ended
        return [] if line is None else [self._bounded(line)]

    def _split(self, data: bytes) -> list[bytes]:
        """Lines that all end in the data. Fast: one `split`, and one search for CRs."""
        lines = data.split(b"\n")
        del lines[-1]
        if b"\r" in data:
            lines = [line.removesuffix(b"\r") for line in lines]
        if len(data) > self._longest and len(max(lines, key=len)) > self._longest:
            return [self._bounded(line) for line in lines]
        return lines

    def _bounded(self, line: bytes) -> bytes:
        return line if len(line) <= self._longest else CutLine(line[: self._longest])
