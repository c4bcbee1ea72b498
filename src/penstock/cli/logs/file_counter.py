"""Counts the lines of a log in its format, for one process as for many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from penstock.counting.access_log import DIRECTIVES, By, RequestCounter
from penstock.counting.countries import mmdb
from penstock.counting.tally import Tally
from penstock.counting.w3c import FEWEST, is_directive, layout_at
from penstock.errors import ConfigurationError

Layouts = Sequence[tuple[int, str]]
"""Of a W3C log: the lines at which the columns change, with the names of the columns."""


class FileCounter:
    """Counts lines of several logs, each in its format."""

    def __init__(self, by: Sequence[By], *, utc: bool, mmdb_path: str | Path | None) -> None:
        self._by, self._utc = tuple(by), utc
        self._countries = mmdb(mmdb_path) if mmdb_path else None
        self._counters: dict[str, RequestCounter] = {}

    def count_text(self, text: bytes, lines: int, format: str, first: int, layouts: Layouts) -> Tally:
        """Count the lines of a text, which begins with the line `first` of the log. Each line ends in LF. `lines`: how
        many they are."""
        if format != "w3c":
            return self._counter(format).count_text(text, lines)
        return self.count(text.split(b"\n")[:-1], format, first, layouts)

    def count(self, lines: Sequence[bytes], format: str, first: int, layouts: Layouts) -> Tally:
        """Count lines, of which the first is the line `first` of the log."""
        if format != "w3c":
            return self._counter(format).count(lines)
        tables: dict[str, Counter[str]] = {}
        rejected: dict[int, str] = {}
        changes = [line - first for line, _ in layouts if 0 < line - first < len(lines)]
        for start, end in pairwise([0, *changes, len(lines)]):
            fields = layout_at(layouts, first + start)
            tally = self._count_w3c(FEWEST if fields is None else fields, lines[start:end])
            for name, counts in tally.tables.items():
                tables.setdefault(name, Counter()).update(counts)
            rejected |= {start + index: reason for index, reason in tally.rejected.items()}
        return Tally(tables, rejected)

    def _count_w3c(self, fields: str, lines: Sequence[bytes]) -> Tally:
        """Count lines below `#Fields:`. If it does not name enough columns, they are rejected, and the next `#Fields:`
        may name more."""
        try:
            return self._counter(f"w3c {fields}").count(lines)
        except ConfigurationError as error:
            directives = sum(map(is_directive, lines))
            rejected = {index: str(error) for index, line in enumerate(lines) if not is_directive(line)}
            return Tally({DIRECTIVES: Counter({"#": directives})} if directives else {}, rejected)

    def _counter(self, format: str) -> RequestCounter:
        if format not in self._counters:
            self._counters[format] = RequestCounter(self._by, utc=self._utc, countries=self._countries, format=format)
        return self._counters[format]
