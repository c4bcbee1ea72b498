"""Bytes in any split, cut into lines.

A line ends with LF or CR LF, which are not part of it; a CR elsewhere is data. However the bytes are split, the lines
are the same. What is not complete yet is carried, and never more of it than the longest line that is allowed.
"""

from __future__ import annotations


class CutLine(bytes):
    """The beginning of a line that is longer than allowed; the rest of it was dropped."""


class Lines:
    """Cuts what it is fed. `longest`: bytes of a line without its end; of a longer one it gives that many, as CutLine.

    Holds `longest` bytes and what one `cut` answers with.
    """

    def __init__(self, longest: int = 1 << 20) -> None:
        if longest < 1:
            raise ValueError(f"Lines(longest={longest}): at least 1 byte")
        self.carried = 0
        """Bytes of the line that is not complete yet, with those that are dropped: so far back it began."""
        self._longest = longest
        self._kept = bytearray()  # of these; one more than `longest`, since a last CR may turn out to be of the end

    def cut(self, data: bytes) -> list[bytes]:
        """The lines that are complete with these bytes."""
        lines = []
        start = 0
        if self.carried:
            start = data.find(b"\n") + 1
            self._carry(data, 0, start - 1 if start else len(data))
            if not start:
                return []
            lines.append(self._carried_line(ended=True))
        end = data.rfind(b"\n") + 1
        lines += self._split(data[start:end])
        self._carry(data, end, len(data))
        return lines

    def rest(self) -> list[bytes]:
        """The last line of a file that ends without a line end, else nothing. The next `cut` begins a new file."""
        return [self._carried_line(ended=False)] if self.carried else []

    def _split(self, data: bytes) -> list[bytes]:
        """Lines that are all complete: no more than one `split` and a look for CRs, if there are none."""
        lines = data.split(b"\n")
        del lines[-1]
        if b"\r" in data:
            lines = [line.removesuffix(b"\r") for line in lines]
        if len(data) > self._longest and len(max(lines, key=len)) > self._longest:
            return [self._bounded(line) for line in lines]
        return lines

    def _carry(self, data: bytes, start: int, end: int) -> None:
        room = self._longest + 1 - len(self._kept)
        self._kept += data[start : min(end, start + room)]
        self.carried += end - start

    def _carried_line(self, *, ended: bool) -> bytes:
        line = bytes(self._kept)
        if ended and len(line) == self.carried:
            line = line.removesuffix(b"\r")
        self._kept.clear()
        self.carried = 0
        return self._bounded(line)

    def _bounded(self, line: bytes) -> bytes:
        return line if len(line) <= self._longest else CutLine(line[: self._longest])
