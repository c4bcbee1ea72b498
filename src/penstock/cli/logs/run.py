"""One run of `penstock logs count`: a server, a channel, one process that sends and some that share what it sends.

Whoever of them dies is started again: the sender goes on behind its last block, and what was counted was settled in one
step with the blocks it was counted from. So the totals are exact whatever happens to them.
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
from penstock.cli.logs.crew import crew
from penstock.core.ids import mint_id
from penstock.counting.access_log import By
from penstock.counting.aggregate import MAX_REJECTED, Aggregate
from penstock.ops.raw_client import delete_keys, disable_persistence
from penstock.settings import MiB, Settings
from penstock.terminal.signals import interrupted_by, uninterrupted
from penstock.testing.server import ServerInUse, given_or_temporary_server

TICK = 0.05

TABLES = ("days", "countries", "by_day", LINES, REJECTED)


@dataclass(frozen=True)
class Order:
    """What is to be counted. `logs`: files; `top`: hosts to tell; `limit`: bytes of the window."""

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
class Progress:
    """How far it is: bytes read of all, lines counted or rejected, bytes in the window."""

    read: int
    size: int
    lines: int
    held: int
    limit: int


@dataclass(frozen=True)
class Report:
    """What came of it. `fault`: what of the logs could not be read; `deaths`: of processes on the way."""

    order: Order
    lines: int
    rejected: int
    days: dict[str, int]
    countries: dict[str, int]
    by_day: dict[str, dict[str, int]]
    hosts: dict[str, int]
    rejected_lines: list[tuple[str, int, str]]
    """File, number and reason of the first."""
    rejected_files: dict[str, int]
    """Those that have no other lines than rejected ones -> how many."""
    peak: int
    seconds: float
    size: int
    fault: str
    deaths: int

    @property
    def counted(self) -> int:
        return self.lines - self.rejected

    def as_json(self) -> dict[str, Any]:
        asked = {"hosts": self.hosts} if "host" in self.order.by else {}
        return {
            "files": len(self.order.logs),
            "lines": self.lines,
            "counted": self.counted,
            "rejected": self.rejected,
            "days": self.days,
            "countries": self.countries,
            "by_day": self.by_day,
            **asked,
            "rejected_lines": [
                {"file": file, "line": number, "reason": reason} for file, number, reason in self.rejected_lines
            ],
            "rejected_files": self.rejected_files,
            "fault": self.fault or None,
            "peak_bytes": self.peak,
            "deaths": self.deaths,
            "seconds": round(self.seconds, 3),
        }


def count_logs(order: Order, watch: Callable[[Progress], None]) -> Report:
    """Do it, from the server to its end; `watch` is told of the progress some times a second.

    Leaves no process, no file and no key behind, also when a signal interrupts it. Raises PenstockError.
    """
    with (
        interrupted_by(signal.SIGTERM, signal.SIGHUP),
        given_or_temporary_server(order.url) as server,
        Penstock(server.address, prefix=PREFIX, settings=Settings(give_up_after=3)) as app,
    ):
        if server.pid is not None:
            disable_persistence(app)
        run = _Run(order, app, server)
        run.open()
        try:
            return run.run(watch)
        finally:
            with uninterrupted():
                run.clear()


class _Run:
    def __init__(self, order: Order, app: Penstock, server: ServerInUse) -> None:
        self._order = order
        self._own_app = app
        self._server = server
        self._channel = app.files(f"count-{mint_id()}")
        self._size = sum(os.path.getsize(log) for log in order.logs)
        self._work = Work(
            server.address, self._channel.name, [os.path.abspath(log) for log in order.logs], self._size,
            list(order.by), order.utc, str(order.mmdb.absolute()) if order.mmdb else None,
        )  # fmt: skip

    def open(self) -> None:
        self._channel.open([RECEIVER], limit=self._order.limit)

    def run(self, watch: Callable[[Progress], None]) -> Report:
        began = time.monotonic()
        counting = self._own_app.aggregate(self._channel.name, receiver=RECEIVER)(self._work.function())
        with crew(self._work, self._order.receivers) as children:
            sender, closed = children[0], False
            while True:
                info, totals = self._channel.info(), counting.totals()
                watch(Progress(sender.told, self._size, totals.lines, info.bytes, info.limit))
                if all(receiver.state == "done" for receiver in info.receivers):
                    break
                for child in children:
                    child.look(info.last + totals.lines)
                if sender.ended and not closed:
                    closed = self._channel.close()
                time.sleep(TICK)
        return self._report(
            counting, info.peak, time.monotonic() - began, sender.fault, sum(c.deaths for c in children)
        )

    def clear(self) -> None:
        """A server of our own ends with all that is in it."""
        if self._server.pid is None:
            delete_keys(self._own_app, f"{self._channel.bindings.keys.base}*")

    def _report(self, counting: Aggregate, peak: int, seconds: float, fault: str, deaths: int) -> Report:
        totals, by = counting.totals(), self._order.by
        tables = {name: counting.table(name) for name in TABLES if name in totals.tables}
        by_day: dict[str, dict[str, int]] = {}
        for key, number in tables.get("by_day", {}).items():
            day, _, country = key.partition(" ")
            by_day.setdefault(day, {})[country] = number
        of_file = tables.get(LINES, {})
        in_vain = {file: n for file, n in tables.get(REJECTED, {}).items() if n == of_file[file]}
        lines = [row for row in counting.rejected(MAX_REJECTED) if row[1]]
        return Report(
            self._order, totals.lines, totals.rejected, dict(sorted(tables.get("days", {}).items())),
            tables.get("countries", {}), dict(sorted(by_day.items())),
            counting.top("hosts", self._order.top) if "host" in by else {}, lines, in_vain,
            peak, seconds, self._size, fault, deaths,
        )  # fmt: skip
