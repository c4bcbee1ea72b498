"""A process of `penstock logs count`: the sender of the logs, or one of the counters.

It reads its work from stdin. The sender writes its progress to stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from penstock.app import Penstock
from penstock.cli.logs.file_counter import FileCounter
from penstock.counting.access_log import By
from penstock.counting.formats import ANY
from penstock.counting.tally import Tally
from penstock.errors import ChannelError, FilesError, PenstockError
from penstock.files.batches import LineBatch
from penstock.files.sender import Progress
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
    """The work of the processes. `size`: bytes of all logs."""

    address: str
    channel: str
    logs: list[str]
    size: int
    by: list[By]
    utc: bool
    mmdb: str | None
    formats: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    """Names of the logs in the channel -> the format, and the layouts of a W3C log."""

    def function(self) -> Callable[[LineBatch], Tally]:
        """A function that counts the requests in a batch, and for each file its lines and its rejected lines."""
        counter = FileCounter(self.by, utc=self.utc, mmdb_path=self.mmdb)

        def count(lines: LineBatch) -> Tally:
            format, layouts = self.formats.get(lines.file, (ANY.name, []))
            tally = counter.count(lines, format, lines.first, layouts)
            by_file = {LINES: {lines.file: len(lines)}}
            if tally.rejected:
                by_file[REJECTED] = {lines.file: len(tally.rejected)}
            return tally._replace(tables={**tally.tables, **by_file})

        return count

    def send(self, app: Penstock) -> None:
        def report(progress: Progress) -> None:
            # The total does not include files that an earlier process sent in full.
            os.pwrite(1, b"%*d" % (WIDTH, self.size - progress.total + progress.sent), 0)

        # Every log that is named is counted, and wholly.
        app.files(self.channel).send_lines(self.logs, identity="path", final=True, progress=report)

    def count(self, app: Penstock) -> None:
        app.aggregate(self.channel, receiver=RECEIVER)(self.function()).run(share=True)


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
