"""The options and the result of `penstock logs count`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from penstock.cli.logs.log_files import LogFile, LogSearch
from penstock.counting.access_log import By
from penstock.ops.wording import many
from penstock.settings import MiB

TABLES = ("days", "hours", "countries", "by_day", "hosts", "urls", "statuses", "agents")
"""The tables of requests, in the order in which they are shown."""

SINGULAR = {
    "days": "day",
    "hours": "hour",
    "countries": "country",
    "by_day": "day and country",
    "hosts": "host",
    "urls": "url",
    "statuses": "status",
    "agents": "agent",
}

IN_ORDER = ("days", "hours", "by_day", "statuses")
"""Tables that are sorted by key, and shown as a whole; of the others the keys with the most requests are shown."""

COUNTRY_BUCKETS = {
    "private": "addresses that are not routed",
    "invalid": "look like addresses, but are not valid",
    "unknown": "addresses without a country",
    "name": "host names: not resolved",
}
"""The keys of a table of countries that are not codes of countries."""

FIRST_REJECTED = 10
"""Rejected lines that a report names one by one."""


@dataclass(frozen=True)
class CountOptions:
    """The options of one run. `top`: how many keys of a long table to show; `limit`: bytes that the channel may hold;
    `rejected`: a file for the rejected lines; `source`: the host that has the logs; `by_content`: copies of a log are
    not counted. With a `search` the logs are followed, and with `final` an unfinished last line is a line."""

    logs: tuple[LogFile, ...]
    by: tuple[By, ...] = ("day", "country")
    receivers: int = 1
    limit: int = 64 * MiB
    utc: bool = False
    mmdb: Path | None = None
    top: int = 10
    rejected: Path | None = None
    format: str | None = None
    source: str = ""
    search: LogSearch | None = None
    final: bool = False
    by_content: bool = False
    url: str | None = None
    """None: an embedded server in a temporary folder, and no server for one process."""

    def with_formats(self, formats: Sequence[str]) -> CountOptions:
        """A copy of these options with these formats of the logs, in their order."""
        logs = [replace(log, format=format) for log, format in zip(self.logs, formats, strict=True)]
        return replace(self, logs=tuple(logs))


@dataclass(frozen=True)
class CountProgress:
    """Bytes read of `size`, lines counted or rejected, bytes that the channel holds of its `limit`."""

    read: int
    size: int
    lines: int
    held: int = 0
    limit: int = 0


@dataclass
class CountReport:
    """The result of a run. `fault`: logs that could not be read to their end; `deaths`: processes that died; `peak`:
    the most bytes that the channel held; `copies`: logs that were not counted -> the log with the same content;
    `held_back`: logs -> bytes of an unfinished line at their end, which were not counted."""

    options: CountOptions
    lines: int = 0
    rejected: int = 0
    directives: int = 0
    """Lines of W3C logs that begin with #."""
    joined: int = 0
    """Pieces of split lines, without the last piece of each."""
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rejected_lines: Sequence[tuple[str, int, str]] = ()
    """File, line number and reason of the first rejected lines."""
    rejected_files: Mapping[str, int] = field(default_factory=dict)
    """Files whose lines were all rejected -> how many."""
    size: int = 0
    seconds: float = 0.0
    fault: str = ""
    peak: int = 0
    deaths: int = 0
    copies: Mapping[str, str] = field(default_factory=dict)
    held_back: Mapping[str, int] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        return self.lines - self.rejected - self.directives - self.joined

    @cached_property
    def formats(self) -> dict[str, list[str]]:
        """Names of formats -> the files in that format, the format with the most files first."""
        found: dict[str, list[str]] = {}
        for log in self.options.logs:
            if log.format:
                found.setdefault(log.format, []).append(log.name)
        return dict(sorted(found.items(), key=lambda item: (item[0] == "any", -len(item[1]))))

    def whole(self, table: str) -> dict[str, int]:
        """A table, in the order of its keys or else with the highest counts first."""
        counts = self.tables.get(table, {})
        if table in IN_ORDER:
            return dict(sorted(counts.items()))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def top(self, table: str) -> dict[str, int]:
        """The rows of a table that are shown."""
        rows = self.whole(table)
        return rows if table in IN_ORDER else dict(list(rows.items())[: self.options.top])

    @property
    def bytes(self) -> int | None:
        """The sum of the sizes, if it was asked for."""
        return self.tables["bytes"].get("all", 0) if "bytes" in self.tables else None

    def bytes_of(self, table: str) -> Mapping[str, int] | None:
        """The sums of sizes for the keys of a table, if they were asked for."""
        return self.tables.get(f"{table}_bytes")

    @cached_property
    def by_day(self) -> dict[str, dict[str, int]]:
        """Day -> country -> requests."""
        found: dict[str, dict[str, int]] = {}
        for key, number in self.whole("by_day").items():
            day, _, country = key.partition(" ")
            found.setdefault(day, {})[country] = number
        return found

    def failures(self) -> Iterator[str]:
        """The reasons why the result is not complete."""
        if self.fault:
            yield self.fault
        elif self.lines > self.directives and not self.counted:
            yield "no line is in a format that is known: see --format"

    def remarks(self) -> Iterator[str]:
        """Notes about single files."""
        if self.counted:
            for file, number in sorted(self.rejected_files.items()):
                yield f"{file}: all {many(number, 'line')} rejected"
        for name, of in self.copies.items():
            yield f"same content as {of}: {name} not counted again"
        for name, held_back in self.held_back.items():
            yield f"{name}: {many(held_back, 'byte')} of an unfinished line not counted (--final)"
        (most, usual), *others = self.formats.items() or [("", [])]
        for format, files in others:
            for file in files if format != "any" else ():
                yield f"{file} is in the format {format}, and {many(len(usual), 'other file')} in {most}"

    def as_json(self) -> dict[str, Any]:
        tables: dict[str, Any] = {name: self.top(name) for name in TABLES if name in self.tables and name != "by_day"}
        tables["countries"] = self.whole("countries")
        shown = {"days": {}, **tables, "by_day": self.by_day}
        if self.bytes is not None:
            shown["bytes"] = self.bytes
            shown |= {f"{name}_bytes": self._bytes_of_shown(name) for name in shown if self.bytes_of(name)}
        return {
            "source": self.options.source,
            "files": len(self.options.logs),
            "formats": self.formats,
            "lines": self.lines,
            "counted": self.counted,
            "rejected": self.rejected,
            **shown,
            "rejected_lines": [
                {"file": file, "line": number, "reason": reason}
                for file, number, reason in self.rejected_lines[:FIRST_REJECTED]
            ],
            "rejected_files": self.rejected_files,
            "copies": dict(self.copies),
            "held_back": dict(self.held_back),
            "fault": self.fault or None,
            "peak_bytes": self.peak,
            "deaths": self.deaths,
            "seconds": round(self.seconds, 3),
        }

    def _bytes_of_shown(self, table: str) -> dict[str, int]:
        sums = self.bytes_of(table) or {}
        keys = self.whole(table) if table in {"countries", "by_day"} else self.top(table)
        return {key: sums.get(key, 0) for key in keys}

    def write_csv(self, out: IO[str]) -> None:
        """Write every table as a whole: table, key, requests, and bytes if they were asked for."""
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["table", "key", "requests", *(["bytes"] if self.bytes is not None else [])])
        for name in TABLES:
            sums = self.bytes_of(name)
            for key, number in self.whole(name).items():
                writer.writerow([name, key, number, *([sums.get(key, 0)] if sums is not None else [])])
        if self.bytes is not None:
            writer.writerow(["all", "", self.counted, self.bytes])
