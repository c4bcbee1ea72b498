"""One run of `penstock logs count`: a server, a channel, a process that sends and several that share the counting.

A process that dies is restarted. The sender resumes after its last block, and counts are committed atomically with the
blocks that they count. So the totals are exact, whatever happens to the processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.app import Penstock
from penstock.cli.logs.child import LINES, PREFIX, RECEIVER, REJECTED, Work
from penstock.cli.logs.processes import counting_processes
from penstock.core.ids import mint_id
from penstock.counting.access_log import By
from penstock.counting.aggregate import MAX_REJECTED, Aggregate
from penstock.ops.raw_client import delete_keys, disable_persistence
from penstock.settings import MiB, Settings
from penstock.terminal.signals import interrupted_by, uninterrupted
from penstock.testing.server import ServerInUse, given_or_temporary_server

TICK = 0.05
"""Seconds between two checks of the processes."""

TABLES = ("days", "countries", "by_day", LINES, REJECTED)


@dataclass(frozen=True)
class CountOptions:
    """The options of one run. `top`: countries and hosts to show; `limit`: bytes that the channel may hold."""

    logs: tuple[Path, ...]
    by: tuple[By, ...] = ("day", "country")
    receivers: int = 2
    limit: int = 64 * MiB
    utc: bool = False
    mmdb: Path | None = None
    top: int = 10
    url: str | None = None
    """None: an embedded server in a temporary folder."""


@dataclass(frozen=True)
class CountProgress:
    """Bytes read of `size`, lines counted or rejected, bytes that the channel holds of its `limit`."""

    read: int
    size: int
    lines: int
    held: int
    limit: int


@dataclass(frozen=True)
class CountReport:
    """The result of a run. `fault`: logs that could not be read; `deaths`: processes that died."""

    options: CountOptions
    lines: int
    rejected: int
    days: dict[str, int]
    countries: dict[str, int]
    by_day: dict[str, dict[str, int]]
    hosts: dict[str, int]
    rejected_lines: list[tuple[str, int, str]]
    """File, line number and reason of the first rejected lines."""
    rejected_files: dict[str, int]
    """Files whose lines were all rejected -> how many."""
    peak: int
    seconds: float
    size: int
    fault: str
    deaths: int

    @property
    def counted(self) -> int:
        return self.lines - self.rejected

    def as_json(self) -> dict[str, Any]:
        hosts = {"hosts": self.hosts} if "host" in self.options.by else {}
        return {
            "files": len(self.options.logs),
            "lines": self.lines,
            "counted": self.counted,
            "rejected": self.rejected,
            "days": self.days,
            "countries": self.countries,
            "by_day": self.by_day,
            **hosts,
            "rejected_lines": [
                {"file": file, "line": number, "reason": reason} for file, number, reason in self.rejected_lines
            ],
            "rejected_files": self.rejected_files,
            "fault": self.fault or None,
            "peak_bytes": self.peak,
            "deaths": self.deaths,
            "seconds": round(self.seconds, 3),
        }


def count_logs(options: CountOptions, watch: Callable[[CountProgress], None]) -> CountReport:
    """Count logs, including the start of the server. Calls `watch` with the progress several times a second.

    Leaves no process, no file and no key behind, also when a signal interrupts it. Raises PenstockError.
    """
    with (
        interrupted_by(signal.SIGTERM, signal.SIGHUP),
        given_or_temporary_server(options.url) as server,
        Penstock(server.address, prefix=PREFIX, settings=Settings(give_up_after=3)) as app,
    ):
        if server.pid is not None:
            disable_persistence(app)
        run = _CountRun(options, app, server)
        run.open()
        try:
            return run.run(watch)
        finally:
            with uninterrupted():
                run.clear()


class _CountRun:
    def __init__(self, options: CountOptions, app: Penstock, server: ServerInUse) -> None:
        self._options = options
        self.app = app
        self._server = server
        self._channel = app.files(f"count-{mint_id()}")
        self._size = sum(os.path.getsize(log) for log in options.logs)
        self._work = Work(
            server.address, self._channel.name, [os.path.abspath(log) for log in options.logs], self._size,
            list(options.by), options.utc, str(options.mmdb.absolute()) if options.mmdb else None,
        )  # fmt: skip

    def open(self) -> None:
        self._channel.open([RECEIVER], limit=self._options.limit)

    def run(self, watch: Callable[[CountProgress], None]) -> CountReport:
        began = time.monotonic()
        counting = self.app.aggregate(self._channel.name, receiver=RECEIVER)(self._work.function())
        with counting_processes(self._work, self._options.receivers) as processes:
            sender, closed = processes[0], False
            while True:
                info, totals = self._channel.info(), counting.totals()
                watch(CountProgress(sender.bytes_sent, self._size, totals.lines, info.bytes, info.limit))
                if all(receiver.state == "done" for receiver in info.receivers):
                    break
                for process in processes:
                    process.restart_if_dead(info.last + totals.lines)
                if sender.ended and not closed:
                    closed = self._channel.close()
                time.sleep(TICK)
        return self._report(
            counting, info.peak, time.monotonic() - began, sender.fault, sum(process.deaths for process in processes)
        )

    def clear(self) -> None:
        """Delete the keys on a server at --url; a temporary server is deleted as a whole."""
        if self._server.pid is None:
            delete_keys(self.app, f"{self._channel.bindings.keys.base}*")

    def _report(self, counting: Aggregate, peak: int, seconds: float, fault: str, deaths: int) -> CountReport:
        totals, by = counting.totals(), self._options.by
        tables = {name: counting.table(name) for name in TABLES if name in totals.tables}
        by_day: dict[str, dict[str, int]] = {}
        for key, number in tables.get("by_day", {}).items():
            day, _, country = key.partition(" ")
            by_day.setdefault(day, {})[country] = number
        of_file = tables.get(LINES, {})
        all_rejected = {file: n for file, n in tables.get(REJECTED, {}).items() if n == of_file[file]}
        lines = [row for row in counting.rejected(MAX_REJECTED) if row[1]]
        return CountReport(
            self._options, totals.lines, totals.rejected, dict(sorted(tables.get("days", {}).items())),
            tables.get("countries", {}), dict(sorted(by_day.items())),
            counting.top("hosts", self._options.top) if "host" in by else {}, lines, all_rejected,
            peak, seconds, self._size, fault, deaths,
        )  # fmt: skip
