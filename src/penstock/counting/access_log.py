"""Reads and counts lines of access logs.

    192.0.2.7 - - [02/Mar/2026:10:05:03 +0000] "GET /docs/ HTTP/1.1" 200 5120 "https://example.org/" "Mozilla/5.0"

Lines are bytes, because a request may be any garbage. `formats.py` lists the formats.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from typing import Literal, get_args

from penstock.counting.countries import registration
from penstock.counting.formats import ANY, log_format
from penstock.counting.kinds import Sum
from penstock.counting.pieces import has_pieces, join_pieces, may_be_split
from penstock.counting.reasons import NO_DATE, NO_END, NO_HOST, TOO_LONG, reason_for
from penstock.counting.request import (
    ALL_COLUMNS,
    LONGEST,
    Column,
    LineReader,
    LogFormat,
    Precision,
    Request,
    is_host,
    method_and_url,
    without_marks,
    without_port,
)
from penstock.counting.tally import Tally
from penstock.errors import ConfigurationError

By = Literal["day", "hour", "country", "host", "url", "status", "agent", "bytes"]

MAX_HOSTS = 65_536
"""For how many hosts the country is cached: about 18 MB."""

MAX_PAIRS = 100_000
"""For how many pairs of time and client the keys are remembered: about 40 MB."""

_Pair = tuple[bytes, bytes]
_Keys = tuple[tuple[str, str], ...]

_EXPLAINED = 20
"""For how many rejected lines of a batch other formats are tried, to give a better reason."""

DIRECTIVES = "directives"
"""Table of the lines of a W3C log that begin with #: they are neither requests nor rejected."""

JOINED = "joined"
"""Table of the pieces of split lines, without the last piece of each: they are neither requests nor rejected."""

_TABLES: dict[str, set[By]] = {
    "days": {"day"},
    "hours": {"hour"},
    "countries": {"country"},
    "by_day": {"day", "country"},
    "hosts": {"host"},
    "urls": {"url"},
    "statuses": {"status"},
    "agents": {"agent"},
    "bytes": {"bytes"},
}
_COLUMNS: dict[By, Column] = {
    "country": "client",
    "host": "client",
    "url": "request",
    "status": "status",
    "agent": "agent",
    "bytes": "size",
}


def parse(line: bytes, format: str | LogFormat | None = None) -> Request | None:
    """The request in a line, given with or without its line end; None if the line is malformed. Bytes that are not
    UTF-8 become U+FFFD. `format`: as for `requests_per`."""
    text = without_marks(_text([line]))
    for reader in _request_readers(_format(format)):
        for row in reader.rows(text):
            if reader.reads(row):
                return _request(reader, row)
    return None


@cache
def _request_readers(format: LogFormat) -> Sequence[LineReader]:
    return format.readers(ALL_COLUMNS, "second", utc=False)


def _request(reader: LineReader, row: tuple[bytes, ...]) -> Request:
    cells = {column: row[index] for column, index in reader.cell.items()}
    text = {column: cell.decode("utf-8", "replace") for column, cell in cells.items()}
    method, path = method_and_url(text.get("request", ""))
    day, _, time = (reader.moment(cells["stamp"]) or "").partition(" ")
    return Request(
        client=without_port(cells.get("client", b"")).decode(),
        day=day,
        method=method,
        path=path,
        status=_number(text.get("status", "")),
        size=_number(text.get("size", "")),
        time=time,
        agent=text.get("agent", ""),
        referer=text.get("referer", ""),
        vhost=text.get("vhost", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def requests_per(
    *by: By,
    utc: bool = False,
    countries: Callable[[str], str] | None = None,
    format: str | LogFormat | None = None,
) -> Callable[[Sequence[bytes]], Tally]:
    """Make a function for an aggregate, which counts the requests in a batch of lines. The function is pure and never
    raises.

    by         "day" fills the table `days` (2015-05-17), "hour" fills `hours` (2015-05-17 10), "country" fills
               `countries` (a code or a bucket), "host" fills `hosts` (as written), "url" fills `urls` (with the query),
               "status" fills `statuses`, and "agent" fills `agents`. "day" and "country" together also fill `by_day`
               ("2015-05-17 US"). "bytes" fills `bytes`, whose only key `all` has the sum of all sizes, and for each of
               the other tables a table of sums, such as `days_bytes`
    utc        convert days and hours to UTC; otherwise they are those in the line
    countries  returns the country of a host as written, and should not raise. Default: `registration()`; `mmdb(path)`
               uses your own database
    format     the name of a format, or the text that describes it in the configuration of nginx or Apache. None: any
               format that is known, except those whose lines do not suffice to recognise them (W3C)

    A line that `parse` can read is counted once in each table. Any other line is rejected; with `utc`, also a line
    whose day is before year 1 or after year 9999. What a line lacks is counted as "-", and a missing size as 0. The
    client of a list of proxies (X-Forwarded-For) is the first one, and it is counted without its port. The directives
    of a W3C log are counted in a table of their own, `directives`. The pieces of a line that Kubernetes or Docker has
    split are joined if they are in one batch; all but the last are counted in the table `joined`.

    A size is below 2**53. Where the sizes of a table may add up to more, declare it to the aggregate as `Sum()`.

    Raises ConfigurationError if there is nothing to count by, for a word that is not in the list above, for an unknown
    format, and if iptocc is needed and not installed.
    """
    return RequestCounter(by, utc=utc, countries=countries, format=format).count


def _format(format: str | LogFormat | None) -> LogFormat:
    return log_format(format) if isinstance(format, str) else format or ANY


class RequestCounter:
    """Counts the requests in lines, or in a text, by what `requests_per` describes."""

    def __init__(
        self, by: Sequence[By], *, utc: bool, countries: Callable[[str], str] | None, format: str | LogFormat | None
    ) -> None:
        if not by or set(by) - set(get_args(By)):
            raise ConfigurationError(
                f"requests are counted by {', '.join(get_args(By))}, not by {', '.join(by) or 'none'}"
            )
        self.format = _format(format)
        self._by = {*by}
        self._tables = [name for name, parts in _TABLES.items() if parts <= self._by]
        if "bytes" in self._by:
            self._tables += [f"{name}_bytes" for name in self._tables if name != "bytes"]
        if self.format.name.startswith("w3c "):
            self._tables.append(DIRECTIVES)
        self._may_be_split = may_be_split(self.format.name)
        self._country_of = _cached(countries or registration()) if "country" in by else None
        precision: Precision = "hour" if "hour" in by else "day"
        columns = frozenset[Column](_COLUMNS[part] for part in by if part in _COLUMNS)
        self._readers = self.format.readers(columns, precision, utc=utc)
        self._known: dict[int, dict[_Pair, _Keys | str]] = {}

    def count(self, lines: Sequence[bytes]) -> Tally:
        """The requests in these lines."""
        return self._count(_text(lines), len(lines), lines)

    def count_text(self, text: bytes, lines: int) -> Tally:
        """The requests in a text of this many lines, each of which ends in LF."""
        if _has_long_line(text):
            return self.count(text.split(b"\n")[:-1])
        return self._count(text, lines)

    def _count(self, text: bytes, number: int, lines: Sequence[bytes] = ()) -> Tally:
        tables = {name: Counter[str]() for name in self._tables}
        text = without_marks(text)
        reasons: dict[int, str] = {}
        joined: Collection[int] = ()
        if self._may_be_split and has_pieces(text):
            text, joined, too_long, without_end, _ = join_pieces(text, LONGEST)
            reasons = dict.fromkeys(too_long, TOO_LONG) | dict.fromkeys(without_end, NO_END)
            if joined:
                tables[JOINED] = Counter({"pieces": len(joined)})
            joined, lines = {*joined}, ()
        all_text = text
        remaining: Sequence[int] = range(number)
        for reader in self._readers:
            unread = self._add(tables, reader, reader.rows(text), len(remaining))
            reasons |= {remaining[index]: reason for index, reason in unread.items() if reason and not reader.quick}
            if 0 < len(unread) < len(remaining):
                split = text.split(b"\n")
                text = b"\n".join([*(split[index] for index in unread), b""])
            remaining = [remaining[index] for index in unread]
            if not remaining:
                break
        remaining = [index for index in remaining if index not in joined] if joined else remaining
        if remaining:
            lines = lines or all_text.split(b"\n")
            if self.format.name.startswith("w3c "):
                directives = {index: lines[index] for index in remaining if lines[index].startswith(b"#")}
                names = (line.partition(b":")[0] for line in directives.values())
                tables[DIRECTIVES].update(map(_or_hyphen, names))
                remaining = [index for index in remaining if index not in directives]
        return Tally(tables, dict(self._rejected(remaining, reasons, lines)))

    def _add(
        self, tables: dict[str, Counter[str]], reader: LineReader, rows: list[tuple[bytes, ...]], lines: int
    ) -> dict[int, str]:
        """Count rows. Returns the index of each line that could not be read, with the reason if it is known."""
        if len(rows) != lines:
            return dict.fromkeys(range(lines), "")
        pair_of = _pair_of(reader)
        malformed: dict[_Pair, str] = {}
        known = self._known_pairs(reader)
        for pair, n in Counter(map(pair_of, rows)).items():
            if (keys := known.get(pair)) is None:
                keys = known[pair] = self._keys(reader, *pair)
            if isinstance(keys, str):
                malformed[pair] = keys
                continue
            for table, key in keys:
                tables[table][key] += n
        unread: dict[int, str] = {}
        if malformed:
            pairs = list(map(pair_of, rows))
            unread = {index: malformed[pair] for index, pair in enumerate(pairs) if pair in malformed}
            rows = [row for row, pair in zip(rows, pairs, strict=True) if pair not in malformed]
        self._add_columns(tables, reader, rows)
        if "bytes" in self._by:
            self._add_bytes(tables, reader, rows, known)
        return unread

    def _known_pairs(self, reader: LineReader) -> dict[_Pair, _Keys | str]:
        """The results of `_keys` for the pairs of a reader so far."""
        known = self._known.setdefault(id(reader), {})
        if len(known) > MAX_PAIRS:
            known.clear()
        return known

    def _keys(self, reader: LineReader, stamp: bytes, client: bytes) -> _Keys | str:
        """Tables, and the key of a request in each, as far as they depend only on its time and its client; or the
        reason why this is not a request."""
        moment = reader.moment(stamp) if stamp else None
        if moment is None:
            return NO_DATE if stamp else ""
        if not is_host(client):
            return NO_HOST
        client = without_port(client)
        day = moment[:10]
        country = self._country_of(client) if self._country_of else ""
        keys = {
            "days": day,
            "hours": moment[:13],
            "countries": country,
            "by_day": f"{day} {country}",
            "hosts": client.decode(),
        }
        return tuple((table, keys[table]) for table in self._tables if table in keys)

    def _add_columns(self, tables: dict[str, Counter[str]], reader: LineReader, rows: list[tuple[bytes, ...]]) -> None:
        for table, (column, text_of) in _TEXTS.items():
            if table in self._tables:
                for cell, n in Counter(_cells(reader, column, rows)).items():
                    tables[table][text_of(cell)] += n

    def _add_bytes(
        self,
        tables: dict[str, Counter[str]],
        reader: LineReader,
        rows: list[tuple[bytes, ...]],
        known: dict[_Pair, _Keys | str],
    ) -> None:
        sizes = [int(cell) if cell.isdigit() else 0 for cell in _cells(reader, "size", rows)]
        tables["bytes"]["all"] += sum(sizes)
        sums: defaultdict[_Pair, int] = defaultdict(int)
        for pair, size in zip(map(_pair_of(reader), rows), sizes, strict=True):
            sums[pair] += size
        for pair, total in sums.items():
            keys = known[pair]
            assert not isinstance(keys, str)
            for table, key in keys:
                tables[f"{table}_bytes"][key] += total
        for table, (column, text_of) in _TEXTS.items():
            if table in self._tables:
                by_cell: defaultdict[bytes, int] = defaultdict(int)
                for cell, size in zip(_cells(reader, column, rows), sizes, strict=True):
                    by_cell[cell] += size
                for cell, total in by_cell.items():
                    tables[f"{table}_bytes"][text_of(cell)] += total

    def _rejected(
        self, indexes: Sequence[int], reasons: dict[int, str], lines: Sequence[bytes]
    ) -> Iterator[tuple[int, str]]:
        for n, index in enumerate(indexes):
            line = lines[index].removesuffix(b"\n")
            yield index, reasons.get(index) or reason_for(line, self.format, explain=n < _EXPLAINED)


def tables_of_bytes(by: Sequence[By]) -> dict[str, Sum]:
    """Declares the tables of sizes to an aggregate, so that they may grow beyond 2**53."""
    if "bytes" not in by:
        return {}
    tables = [name for name, parts in _TABLES.items() if name != "bytes" and parts <= {*by}]
    return {name: Sum() for name in ("bytes", *(f"{name}_bytes" for name in tables))}


def _url(request: bytes) -> str:
    """The URL of a request. A malformed request of one word counts as its own URL."""
    word, url = method_and_url(request.decode("utf-8", "replace"))
    return url or word or "-"


def _or_hyphen(cell: bytes) -> str:
    return cell.decode("utf-8", "replace") or "-"


_TEXTS: dict[str, tuple[Column, Callable[[bytes], str]]] = {
    "urls": ("request", _url),
    "statuses": ("status", _or_hyphen),
    "agents": ("agent", _or_hyphen),
}


def _pair_of(reader: LineReader) -> Callable[[tuple[bytes, ...]], _Pair]:
    """A function that returns the stamp and the client of a row."""
    stamp, client = reader.cell["stamp"], reader.cell.get("client")
    return (lambda row: (row[stamp], b"-")) if client is None else itemgetter(stamp, client)


def _cells(reader: LineReader, column: Column, rows: list[tuple[bytes, ...]]) -> Iterable[bytes]:
    index = reader.cell.get(column)
    return [b""] * len(rows) if index is None else map(itemgetter(index), rows)


def _text(lines: Sequence[bytes]) -> bytes:
    """All lines joined, each with one LF at its end. A line that is too long or has an LF inside becomes empty, which
    is malformed."""
    text = b"\n".join([*lines, b""])
    if text.count(b"\n") == len(lines) and not _has_long_line(text):
        return text
    bare = [line.removesuffix(b"\n") for line in lines]
    return b"\n".join([*(b"" if len(line) > LONGEST or b"\n" in line else line for line in bare), b""])


def _has_long_line(text: bytes) -> bool:
    """Whether a line may be too long: such a line covers one of these windows."""
    half = LONGEST // 2
    return any(text.find(b"\n", start, start + half) < 0 for start in range(0, len(text) - half, half))


def _cached(countries: Callable[[str], str]) -> Callable[[bytes], str]:
    return lru_cache(MAX_HOSTS)(lambda host: countries(host.decode()))
