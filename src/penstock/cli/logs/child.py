"""A process of `penstock logs count`: the sender of the logs, or one of the counters.

It reads its work from stdin. The sender writes its progress to stdout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec

from penstock.app import Penstock
from penstock.cli.logs.file_counter import FileCounter
from penstock.cli.logs.log_files import LogSearch
from penstock.counting.access_log import By, tables_of_bytes
from penstock.counting.aggregate import Aggregate
from penstock.counting.formats import ANY
from penstock.counting.tally import Tally
from penstock.errors import ChannelError, FilesError, PenstockError
from penstock.files.batches import LineBatch
from penstock.files.rotation import log_path
from penstock.files.upload import Progress
from penstock.settings import Settings
from penstock.worker.parent_pipe import exit_with_parent

PREFIX = "penstock-logs"
RECEIVER = "count"

LINES, REJECTED = "lines", "rejected"
"""Names of the tables that count all lines, and rejected lines, of each file."""

CANNOT_WORK = 3
"""Exit code of a process that cannot do its work; the last line on stderr is the reason."""

INCOMPLETE = 4
"""Exit code of a sender that could not send everything; the last line on stderr names the rest."""

WIDTH = 20
"""Bytes of a progress number on the sender's stdout. Each number overwrites the one before."""

LEASE = 3.0
"""Seconds after which the blocks of a dead process go to another. Counting a block takes a few milliseconds."""


class Work(msgspec.Struct, frozen=True):
    """The work of the processes. `size`: bytes of all logs; `format`: of a log that is not in `formats`. With a
    `search` the logs are followed. The other fields are those of CountOptions."""

    address: str
    channel: str
    logs: list[str]
    size: int
    by: list[By]
    utc: bool
    mmdb: str | None
    formats: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    """Names of the logs in the channel -> the format, and the layouts of a W3C log."""
    format: str = ANY.name
    source: str = ""
    search: LogSearch | None = None
    final: bool = True
    by_content: bool = False

    def function(self) -> Callable[[LineBatch], Tally]:
        """A function that counts the requests in a batch, and for each file its lines and its rejected lines."""
        counter = FileCounter(self.by, utc=self.utc, mmdb_path=self.mmdb)

        def count(lines: LineBatch) -> Tally:
            format, layouts = self.formats.get(lines.file) or self.formats.get(log_path(lines.file), (self.format, []))
            tally = counter.count(lines, format, lines.first, layouts)
            by_file = {LINES: {lines.file: len(lines)}}
            if tally.rejected:
                by_file[REJECTED] = {lines.file: len(tally.rejected)}
            return tally._replace(tables={**tally.tables, **by_file})

        return count

    def send(self, app: Penstock) -> None:
        with _logged_faults() as faults:
            sent = app.files(self.channel).send_lines(
                self.search.find if self.search else self.logs,
                identity="content" if self.by_content else "path",
                source=self.source or None,
                final=self.final,
                progress=self._progress(),
                follow=bool(self.search) and (lambda: not is_stopped(0)),
            )
        copies = {copy.name: copy.of for copy in sent.copies}
        result = SenderReport(copies, {held.name: held.bytes for held in sent.held_back}, "; ".join(faults))
        os.pwrite(1, msgspec.json.encode(result), WIDTH)

    def _progress(self) -> Callable[[Progress], None]:
        read = dict[str, int]()
        total = 0

        def report(progress: Progress) -> None:
            nonlocal total
            if self.search:
                total += progress.done - min(read.get(progress.name, 0), progress.done)
                read[progress.name] = progress.done
            else:
                # The total does not include files that an earlier process sent in full.
                total = self.size - progress.total + progress.sent
            os.pwrite(1, b"%*d" % (WIDTH, total), 0)

        return report

    def count(self, app: Penstock) -> None:
        self.aggregate(app).run(share=True)

    def aggregate(self, app: Penstock) -> Aggregate:
        """The counts of all processes."""
        tables = tables_of_bytes(self.by)
        return app.aggregate(self.channel, receiver=RECEIVER, tables=tables)(self.function())


class SenderReport(msgspec.Struct, frozen=True):
    """The result that the sender writes to stdout after its progress. CountReport has the same fields."""

    copies: dict[str, str] = {}
    held_back: dict[str, int] = {}
    fault: str = ""


STOP = b"\n"
"""Written after the work on a sender's stdin, it ends a sender that follows logs. It stays there, so that a sender that
is restarted ends, too."""


def is_stopped(work: int) -> bool:
    return os.pread(work, 1, os.fstat(work).st_size - 1) == STOP


@contextlib.contextmanager
def _logged_faults() -> Iterator[list[str]]:
    """The logs that could not be sent whole, which a sender that follows logs only writes to Python's log."""
    faults: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        is_fault = isinstance(record.args, tuple) and any(isinstance(one, FilesError) for one in record.args)
        if is_fault and (text := record.getMessage()) not in faults:
            faults.append(text)
        return not is_fault

    log = logging.getLogger("penstock")
    log.addFilter(note)
    try:
        yield faults
    finally:
        log.removeFilter(note)


def main(role: str) -> None:
    exit_with_parent()
    work = msgspec.json.decode(os.pread(0, os.fstat(0).st_size, 0), type=Work)
    try:
        with Penstock(work.address, prefix=PREFIX, settings=Settings(lease=LEASE)) as app:
            work.send(app) if role == "send" else work.count(app)
    except PenstockError as error:
        cannot_work = isinstance(error, ChannelError) or not isinstance(error, FilesError)
        _end(error, CANNOT_WORK if cannot_work else INCOMPLETE)


def _end(error: PenstockError, code: int) -> NoReturn:
    print(" ".join(str(error).split()), file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
