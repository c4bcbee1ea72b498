"""`penstock logs …`: count access logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import ExistingFile

from penstock.cli.exits import Exit
from penstock.cli.logs.local import count_here
from penstock.cli.logs.log_files import LogFile, LogSearch, Selection, select
from penstock.cli.logs.report import CountOptions, CountProgress, CountReport
from penstock.cli.logs.view import show_report, watching
from penstock.cli.where import AsJson, Flag, Limit, check_bounds
from penstock.counting.access_log import By, RequestCounter
from penstock.errors import ConfigurationError
from penstock.files.source import source_name
from penstock.ops.wording import many
from penstock.settings import MiB
from penstock.terminal.tables import note, show_json

Patterns = Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=False)]


def count(
    *logs: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    by: str = "day,country",
    top: Limit = 10,
    format: str | None = None,
    recursive: Annotated[Flag, Parameter(name=["--recursive", "-r"])] = False,
    include: Patterns = (),
    exclude: Patterns = (),
    utc: Flag = False,
    mmdb: ExistingFile | None = None,
    receivers: int = 1,
    limit_mb: int = 64,
    url: str | None = None,
    follow: Flag = False,
    final: Flag = False,
    identity: Literal["content", "path"] | None = None,
    source: str | None = None,
    strict: Flag = False,
    rejected: Path | None = None,
    html: Path | None = None,
    as_csv: Annotated[Flag, Parameter(name="--csv")] = False,
    as_json: AsJson = False,
) -> int:
    """Count the requests in web access logs: per day, hour, country, host, URL, status and agent, and their bytes.

    Every line is counted or rejected. The format of each log is guessed from its first lines and printed; lines in any
    other format are rejected. A file that cannot be read or is not an access log is reported, and the others are
    counted. Exit code 1 if a log is damaged or could not be read to its end, and if none of the lines is a request.

    Parameters
    ----------
    logs
        Files, plain, gzip, bzip2, xz or Zstandard; folders, for the files directly in them; or - for standard input.
    by
        The tables: day, hour, country, host, url, status, agent, and bytes for the sum of the sizes in each.
    top
        How many countries, hosts, URLs and agents to show, most requests first.
    format
        The format of all logs: common, combined, vhost_common, vhost_combined, caddy, traefik, envoy, nginx-json, alb,
        w3c, any; with a prefix as in syslog+combined, cri+…, docker+…, kubectl+…, compose+…; or as in the configuration
        of nginx ($remote_addr …) or Apache (%h …).
    recursive
        Count the files in subfolders too.
    include
        Of folders, count only files with a name or path that matches this pattern, such as "access*". Repeatable.
    exclude
        Of folders, leave out files with a name or path that matches this pattern. Repeatable.
    utc
        Count days and hours in UTC instead of those written in the line.
    mmdb
        Look countries up in this MMDB database.
    receivers
        Number of processes that count, 1 to 64. One counts without a server. Several start a server in a temporary
        folder and a process that reads, and the death of a process does not change the totals.
    limit_mb
        MiB that the channel between several processes may hold, 2 or more.
    url
        Use this server for several processes, for example valkey://host:6379/0. The command's keys have a prefix of
        their own and are deleted at its end. PENSTOCK_URL is ignored here.
    follow
        Continue to count what is written from now on, through rotations, and new files of the folders, until the first
        Ctrl-C or SIGTERM, which prints the report. Starts a server in a temporary folder, unless --url names one.
    final
        With --follow: at the end, count the last line of a log even if it has no line end.
    identity
        How to recognise a log that was counted before: by its content, so that copies of a log are counted once, or by
        its path alone. By default by the content with --follow, and by the path without. The content needs a server, as
        --follow does.
    source
        The name of this host in the report. By default $PENSTOCK_SOURCE or the host's own name.
    strict
        Exit code 1 also if a file cannot be read, is not an access log, or has a rejected line.
    rejected
        Write the rejected lines to this file: log, number, reason and line, separated by tabs.
    html
        Write a report with charts to this file: one page that needs no network.
    as_csv
        Print all tables as CSV: table, key, requests, and bytes if they are counted.
    as_json
        Print the result as one JSON object.
    """
    check_bounds("--receivers", receivers, 1, 64)
    check_bounds("--limit-mb", limit_mb, 2)
    parts: list[By] = [name.strip() for name in by.split(",") if name.strip()]  # type: ignore[misc]
    reasons = {"--receivers": receivers > 1, "--url": url is not None}
    reasons |= {"--follow": follow, "--identity content": identity == "content"}
    in_processes = any(reasons.values())
    if as_csv and as_json:
        raise ConfigurationError("--csv and --json print different things: choose one")
    if final and not follow:
        raise ConfigurationError("--final is about --follow: without it, every log is counted to its end anyway")
    RequestCounter(parts, utc=utc, countries=None, format=None)
    found = select(logs, recursive=recursive, include=include, exclude=exclude, format=format)
    if in_processes:
        _refuse_in_processes(found.logs, rejected, " and ".join(name for name, is_given in reasons.items() if is_given))
    if follow:
        _refuse_to_follow(found.logs)
    for name, reason in found.skipped.items():
        note(f"{name} skipped: {reason}")
    for name, other in found.same.items():
        note(f"{name} is the same file as {other}: counted once")
    if found.folders:
        some = f"{', '.join(map(str, found.folders[:3]))}{', …' if len(found.folders) > 3 else ''}"
        note(f"{many(len(found.folders), 'subfolder')} skipped: {some}")
    search = LogSearch([os.path.abspath(path) for path in logs], recursive, [*include], [*exclude], [*found.skipped])
    options = CountOptions(
        found.logs,
        tuple(parts),
        receivers,
        limit_mb * MiB,
        utc,
        mmdb,
        top,
        rejected,
        format,
        source_name(source),
        search if follow else None,
        final,
        (identity or ("content" if follow else "path")) == "content",
        url,
    )
    with watching(quiet=as_json or as_csv) as watch:
        report = _count(options, watch, in_processes=in_processes)
    if html:
        _write_html(report, html)
    if as_json:
        show_json(report.as_json())
    elif as_csv:
        report.write_csv(sys.stdout)
    else:
        show_report(report)
    failures = list(report.failures())
    for text in (*report.remarks(), *failures):
        note(text)
    failed = bool(failures) or (strict and _is_imperfect(found, report))
    return Exit.FAILED if failed else Exit.OK


def _refuse_in_processes(logs: tuple[LogFile, ...], rejected: Path | None, reasons: str) -> None:
    for log in logs:
        if log.streamed:
            raise ConfigurationError(f"{log.name} can be read by one process only: leave out {reasons}")
    if rejected:
        raise ConfigurationError(f"--rejected is written by one process: leave out {reasons}")


def _refuse_to_follow(logs: tuple[LogFile, ...]) -> None:
    for log in logs:
        if log.format == "w3c":
            raise ConfigurationError(
                f"{log.name} is a W3C log, whose columns may change while it is written: count it without --follow"
            )


def _count(options: CountOptions, watch: Callable[[CountProgress], None], *, in_processes: bool) -> CountReport:
    if not in_processes:
        return count_here(options, watch)
    from penstock.cli.logs.run import count_in_processes  # it needs the app, which takes time to import

    return count_in_processes(options, watch)


def _write_html(report: CountReport, path: Path) -> None:
    from penstock.cli.logs.html_report import write_html

    try:
        write_html(report, path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    note(f"report written to {path}")


def _is_imperfect(found: Selection, report: CountReport) -> bool:
    return bool(found.skipped or report.rejected)
