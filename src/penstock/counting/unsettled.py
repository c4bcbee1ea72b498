"""Counts that the server does not know yet, combined until they are settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from penstock.counting.dead_batches import CountingFailure, encode_failure, pack_lines
from penstock.counting.kinds import Count, Declared, Kind, TimeWindow, Uniques, stored_name
from penstock.counting.tally import Tally
from penstock.files.batches import LineBatch
from penstock.files.settlement import CountPiece

MAX_KEYS = 4000
"""How many different keys to collect before counts are settled. With more keys, the same key is added less often: for a
real access log by host, URL and agent, 4,000 cost the server a fifth less time than 500."""

CALL_KEYS = 800
"""The most keys that one call adds; more are settled in pieces. Each takes 4 to 6 microseconds of the server."""

PIECE_KEYS = 500
"""How many keys such a piece has."""

PIECE_TEXTS = 450
"""The most texts of one key of Uniques() in such a piece."""

TABLE_KEYS = 4
"""A table in a call costs the server as much as this many keys."""

MAX_LINES = 500_000
"""Lines after which counts are settled: after a crash it takes a second or two to count that many again."""

MAX_DEAD = 4
"""Dead batches after which counts are settled: a megabyte of lines."""

MAX_REJECTED = 1000
"""Rejected lines that are kept for `rejected`; further ones are only counted."""

_COUNT = Count()

_pack = msgspec.msgpack.Encoder().encode
_encode_rejected = msgspec.json.Encoder().encode


class UnsettledCounts:
    """Counts that the server does not know yet."""

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._clear()

    def _clear(self) -> None:
        self.keys = self.lines = self._rejected = 0
        self._tables: dict[str, _Table] = {}
        self._rejected_rows: list[str] = []
        self._dead: list[tuple[int, str, str]] = []

    @property
    def is_enough(self) -> bool:
        """Whether there are enough counts, so that they must be settled now."""
        return self.keys > MAX_KEYS or self.lines > MAX_LINES or len(self._dead) >= MAX_DEAD

    def take(self) -> list[CountPiece]:
        """Return the counts, and begin again at zero. Only the first piece has lines."""
        pieces: list[CountPiece] = []
        if self.lines or self._rejected_rows or self._dead:
            for tables, keys in self._split() if self.keys > CALL_KEYS else [(self._tables, self.keys)]:
                packed = {name: table.packed() for name, table in tables.items()}
                rest = (
                    (0, 0, packed, (), ())
                    if pieces
                    else (self.lines, self._rejected, packed, self._rejected_rows, self._dead)
                )
                pieces.append(CountPiece(_pack(rest), keys))
        self._clear()
        return pieces

    def _split(self) -> Iterator[tuple[dict[str, _Table], int]]:
        """The tables, in pieces with a bounded number of keys."""
        tables: dict[str, _Table] = {}
        keys = 0
        for name, table in self._tables.items():
            for key, value, more in table.rows():
                is_there = name in tables
                if keys + more > PIECE_KEYS or (is_there and key in tables[name].values):
                    yield tables, keys
                    tables, keys, is_there = {}, 0, False
                if not is_there:
                    tables[name] = table.empty()
                tables[name].values[key] = value
                keys += more + (0 if is_there else TABLE_KEYS)
        yield tables, keys

    def add(self, lines: int, tally: Tally) -> None:
        self.lines += lines
        for name, rows in tally.tables.items():
            declared = self._declared.get(name, _COUNT)
            if isinstance(declared, TimeWindow):
                for moment, of_window in rows.items():
                    start = declared.start(cast("float", moment))
                    self._add(f"{name}@{start}", declared.of, of_window, int(declared.keep * 1000))
            else:
                self._add(name, declared, rows, 0)

    def _add(self, name: str, kind: Kind, rows: Mapping[str, Any], keep: int) -> None:
        if (table := self._tables.get(name)) is None:
            table = self._tables[name] = _Table(kind, keep)
            self.keys += TABLE_KEYS
        self.keys += table.add(rows)

    def add_dead(self, lines: LineBatch, numbers: Sequence[int], failure: CountingFailure) -> None:
        """Add a batch that could not be counted. Its lines that were rejected stay rejected."""
        packed = pack_lines(lines, () if isinstance(numbers, range) else numbers)
        self._dead.append((len(lines), encode_failure(failure), packed))

    def reject(self, file: str, number: int, reason: str, source: str) -> None:
        self._rejected += 1
        self.note(file, number, reason, source)

    def note(self, file: str, number: int, reason: str, source: str = "") -> None:
        """Add a row to those that `rejected` returns, without counting a rejected line."""
        if len(self._rejected_rows) < MAX_REJECTED:
            self._rejected_rows.append(_encode_rejected((file, number, reason, source)).decode())


class _Table:
    """The unsettled values of one table, combined."""

    def __init__(self, kind: Kind, keep: int) -> None:
        self._kind, self._keep = kind, keep
        self.values: dict[str, Any] = Counter() if kind is _COUNT else {}

    def add(self, rows: Mapping[str, Any]) -> int:
        """Add values. Returns how many more the server will have to add."""
        before, values = len(self.values), self.values
        if self._kind is _COUNT:
            values.update(rows)  # of a Counter: adds
            return len(values) - before
        for key, value in rows.items():
            values[key] = self._kind.combine(values.get(key), value)
        more = len(values) - before
        return more + sum(map(len, rows.values())) if isinstance(self._kind, Uniques) else 2 * more

    def empty(self) -> _Table:
        return _Table(self._kind, self._keep)

    def rows(self) -> Iterator[tuple[str, Any, int]]:
        """Keys, values, and the number of keys that each takes. A key with very many texts has several rows."""
        if not isinstance(self._kind, Uniques):
            cost = 1 if self._kind is _COUNT else 2
            yield from ((key, value, cost) for key, value in self.values.items())
            return
        for key, found in self.values.items():
            texts = list(found)
            for start in range(0, len(texts) or 1, PIECE_TEXTS):
                some = texts[start : start + PIECE_TEXTS]
                yield key, some, 1 + len(some)

    def packed(self) -> tuple[str, int, dict[str, Any]]:
        """As counts.lua expects it: kind, ms that the table is kept, values."""
        values = self.values
        if self._kind is not _COUNT:
            values = {key: self._kind.pack(value) for key, value in values.items()}
        return stored_name(self._kind), self._keep, values
