"""One run of `penstock logs count` in several processes: a server, a channel, one that sends, several that count.

A process that dies is restarted. The sender resumes after its last block, and counts are committed atomically with the
blocks that they count. So the totals are exact, whatever happens to the processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from penstock.app import Penstock
from penstock.cli.logs.child import LINES, PREFIX, RECEIVER, REJECTED, Work
from penstock.cli.logs.processes import counting_processes
from penstock.cli.logs.report import FIRST_REJECTED, CountOptions, CountProgress, CountReport
from penstock.core.ids import mint_id
from penstock.counting.access_log import DIRECTIVES, JOINED
from penstock.counting.aggregate import Aggregate
from penstock.counting.formats import ANY
from penstock.ops.raw_client import delete_keys, disable_persistence
from penstock.settings import Settings
from penstock.terminal.signals import interrupted_by, uninterrupted, until_stopped
from penstock.testing.server import ServerInUse, given_or_temporary_server

TICK = 0.05
"""Seconds between two checks of the processes."""


def count_in_processes(options: CountOptions, watch: Callable[[CountProgress], None]) -> CountReport:
    """Count logs, including the start of the server. Calls `watch` with the progress several times a second.

    Leaves no process, no file and no key behind, also when a signal interrupts it. Raises PenstockError.
    """
    with (
        interrupted_by(signal.SIGTERM, signal.SIGHUP),
        until_stopped(options.search is not None) as go_on,
        given_or_temporary_server(options.url) as server,
        Penstock(server.address, prefix=PREFIX, settings=Settings(give_up_after=3)) as app,
    ):
        if server.pid is not None:
            disable_persistence(app)
        run = _CountRun(options, app, server)
        run.open()
        try:
            return run.run(watch, go_on)
        finally:
            with uninterrupted():
                run.clear()


class _CountRun:
    def __init__(self, options: CountOptions, app: Penstock, server: ServerInUse) -> None:
        self._options = options
        self.app = app
        self._server = server
        self._channel = app.files(f"count-{mint_id()}")
        self._size = sum(log.size for log in options.logs)
        self._work = Work(
            server.address,
            self._channel.name,
            [os.path.abspath(log.source.path) for log in options.logs],
            self._size,
            list(options.by),
            options.utc,
            str(options.mmdb.absolute()) if options.mmdb else None,
            {log.name: (log.format, list(log.layouts)) for log in options.logs if log.size or not options.search},
            options.format or ANY.name,
            options.source,
            options.search,
            options.final or not options.search,
            options.by_content,
        )

    def open(self) -> None:
        self._channel.open([RECEIVER], limit=self._options.limit)

    def run(self, watch: Callable[[CountProgress], None], go_on: Callable[[], bool]) -> CountReport:
        began = time.monotonic()
        counting = self._work.aggregate(self.app)
        with counting_processes(self._work, self._options.receivers) as processes:
            sender, closed = processes[0], False
            while True:
                info, totals = self._channel.info(), counting.totals()
                size = 0 if self._options.search else self._size
                watch(CountProgress(sender.bytes_sent, size, totals.lines, info.bytes, info.limit))
                if all(receiver.state == "done" for receiver in info.receivers):
                    break
                for process in processes:
                    process.restart_if_dead(info.last + totals.lines)
                if not go_on():
                    sender.stop()
                if sender.ended and not closed:
                    closed = self._channel.close()
                time.sleep(TICK)
            read, deaths = sender.bytes_sent, sum(process.deaths for process in processes)
        report = self._report(counting, max(self._size, read), time.monotonic() - began)
        return replace(
            report,
            peak=info.peak,
            deaths=deaths,
            fault=sender.fault,
            copies=sender.result.copies,
            held_back=sender.result.held_back,
        )

    def clear(self) -> None:
        """Delete the keys on a server at --url; a temporary server is deleted as a whole."""
        if self._server.pid is None:
            delete_keys(self.app, f"{self._channel.bindings.keys.base}*")

    def _report(self, counting: Aggregate, size: int, seconds: float) -> CountReport:
        totals = counting.totals()
        tables = {name: counting.table(name) for name in totals.tables}
        directives, joined = (sum(tables.pop(name, {}).values()) for name in (DIRECTIVES, JOINED))
        of_file = tables.pop(LINES, {})
        all_rejected = {file: n for file, n in tables.pop(REJECTED, {}).items() if n == of_file[file]}
        lines = [row for row in counting.rejected(2 * FIRST_REJECTED) if row[1]]
        return CountReport(
            self._options, totals.lines, totals.rejected, directives, joined, tables, lines, all_rejected, size, seconds
        )
