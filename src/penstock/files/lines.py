"""Bytes in any split, cut into lines.

A line ends with LF or CR LF, which are not part of it; a CR elsewhere is data. However the bytes are split, the lines
are the same. What is not complete yet is carried, and never more of it than the longest line that is allowed.
"""

from __future__ import annotations


class CutLine(bytes):
    """The beginning of a line that is longer than allowed; the rest of it was dropped."""


LONGEST = 1 << 20


class Lines:
    """Cuts what it is fed. `longest`: bytes of a line without its end; of a longer one it gives that many, as CutLine,
    as soon as it is known to be longer. What comes first may be the rest of a line that another has begun: of one that
    was given already (`inside`), or of what that one has `carried`.

    Holds `longest` bytes and what one `cut` answers with.
    """

    def __init__(self, longest: int = LONGEST, *, inside: bool = False, carried: bytes = b"") -> None:
        if longest < 1:
            raise ValueError(f"Lines(longest={longest}): at least 1 byte")
        self.inside = inside
        """It is in a line that was given already; the rest of it is dropped."""
        self._longest = longest
        # At most one more than `longest`, since a last CR may turn out to be of the end.
        self._kept = bytearray(carried[: longest + 2])

    @property
    def carried(self) -> bytes:
        """The line that is not complete yet."""
        return bytes(self._kept)

    def cut(self, data: bytes) -> list[bytes]:
        """The lines that are complete with these bytes."""
        lines: list[bytes] = []
        start = 0
        if self._kept or self.inside:
            start = data.find(b"\n") + 1
            lines += self._go_on(data[: start - 1] if start else data, ended=start > 0)
            if not start:
                return lines
        end = data.rfind(b"\n") + 1
        if start < end:
            lines += self._split(data[start:end])
        return lines + self._go_on(data[end:], ended=False)

    def rest(self) -> list[bytes]:
        """The last line of a file that ends without a line end, else nothing. The next `cut` begins a new file."""
        lines = [self._bounded(bytes(self._kept))] if self._kept else []
        self._kept.clear()
        self.inside = False
        return lines

    def _go_on(self, data: bytes, *, ended: bool) -> list[bytes]:
        """With more of the line that is not complete."""
        line: bytes | None = None
        if not self.inside:
            self._kept += data[: self._longest + 2 - len(self._kept)]
            if ended:
                line = bytes(self._kept).removesuffix(b"\r")
            elif len(self._kept) > self._longest + 1:
                line = bytes(self._kept)
                self.inside = True
        if line is not None:
            self._kept.clear()
        self.inside = self.inside and not ended
        return [] if line is None else [self._bounded(line)]

    def _split(self, data: bytes) -> list[bytes]:
        """Lines that are all complete: no more than one `split` and a look for CRs, if there are none."""
        lines = data.split(b"\n")
        del lines[-1]
        if b"\r" in data:
            lines = [line.removesuffix(b"\r") for line in lines]
        if len(data) > self._longest and len(max(lines, key=len)) > self._longest:
            return [self._bounded(line) for line in lines]
        return lines

    def _bounded(self, line: bytes) -> bytes:
        return line if len(line) <= self._longest else CutLine(line[: self._longest])
