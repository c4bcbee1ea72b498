"""`penstock logs …`: count access logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from cyclopts.types import ExistingFile

from penstock.cli.exits import Exit
from penstock.cli.files import check_paths
from penstock.cli.logs.run import CountOptions, CountReport, count_logs
from penstock.cli.logs.view import show_report, watching
from penstock.cli.where import AsJson, Flag, Limit, check_bounds
from penstock.counting.access_log import By, requests_per
from penstock.errors import ConfigurationError
from penstock.ops.wording import many
from penstock.settings import MiB
from penstock.terminal.tables import note, show_json


def count(
    *logs: Path,
    receivers: int = 2,
    by: str = "day,country",
    limit_mb: int = 64,
    utc: Flag = False,
    mmdb: ExistingFile | None = None,
    top: Limit = 10,
    url: str | None = None,
    as_json: AsJson = False,
) -> int:
    """Count the requests in web access logs, per day, country and host, in several processes.

    Starts a server in a temporary folder, one process that reads and several that count, and ends them all. Every line
    is counted or rejected, and the death of a process does not change the totals. Exit code 1 if a log could not be
    read completely, or if none of its lines is an access log line.

    Parameters
    ----------
    logs
        Files in the Common or Combined Log Format, plain, gzip or Zstandard, and folders, which stand for the files
        directly in them.
    receivers
        Number of processes that count, 1 to 64.
    by
        The tables: day, country, host.
    limit_mb
        MiB that the channel between the processes may hold, 2 or more.
    utc
        Count days in UTC instead of the day written in the line.
    mmdb
        Look countries up in this MMDB database.
    top
        How many countries and hosts to show, most requests first.
    url
        Use this server, for example valkey://host:6379/0. The command's keys have a prefix of their own and are deleted
        at its end. PENSTOCK_URL is ignored here.
    as_json
        Print the result as one JSON object.
    """
    check_bounds("--receivers", receivers, 1, 64)
    check_bounds("--limit-mb", limit_mb, 2)
    files = tuple(source.path for source in check_paths(logs, "counted"))
    _refuse_compressed(files)
    parts: list[By] = [name.strip() for name in by.split(",") if name.strip()]  # type: ignore[misc]
    requests_per(*parts)
    options = CountOptions(files, tuple(parts), receivers, limit_mb * MiB, utc, mmdb, top, url)
    with watching(quiet=as_json) as watch:
        report = count_logs(options, watch)
    if as_json:
        show_json(report.as_json())
    else:
        show_report(report)
    faults = list(_faults(report))
    for fault in faults:
        note(fault)
    return Exit.FAILED if faults else Exit.OK


def _faults(report: CountReport) -> Iterator[str]:
    if report.fault:
        yield report.fault
    elif report.lines and not report.counted:
        yield "no line is in the Common or Combined Log Format"
    if report.counted:
        for file, number in sorted(report.rejected_files.items()):
            yield f"{file}: all {many(number, 'line')} rejected"


_COMPRESSED = {"bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "xz": rb"\xfd7zXZ\0", "zip": rb"PK\x03\x04"}


def _refuse_compressed(files: Iterable[Path]) -> None:
    """Refuse formats that would be read as text and rejected line by line."""
    for file in files:
        with file.open("rb") as opened:
            head = opened.read(10)
        for name, signature in _COMPRESSED.items():
            if re.match(signature, head):
                raise ConfigurationError(f"{file} is compressed with {name}, which cannot be read: decompress it first")
