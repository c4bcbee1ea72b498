"""The output of `penstock logs count`: progress while it runs, tables at the end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.logs.report import COUNTRY_BUCKETS, SINGULAR, TABLES, CountProgress, CountReport
from penstock.ops.wording import age, many, size
from penstock.terminal.progress import GrowthRate, progress_display
from penstock.terminal.tables import GAP, Kind, headings, show, show_table

BAR = 40
WIDEST = 100
FIRST = 5
"""Rejected lines that are printed one by one."""

LONG = 3.0
"""Seconds. The speed of a shorter run would mostly measure the start of the processes."""


@contextlib.contextmanager
def watching(*, quiet: bool) -> Iterator[Callable[[CountProgress], None]]:
    bytes_, lines = GrowthRate(), GrowthRate()

    def speeds(progress: CountProgress) -> tuple[str, str]:
        return f"{size(bytes_.at(progress.read))}/s", f"{lines.at(progress.lines):,.0f} lines/s"

    def line(progress: CountProgress) -> str:
        of = f" of {size(progress.size)}" if progress.size else ""
        done = f"{size(progress.read)}{of}, {many(progress.lines, 'line')}"
        return ", ".join((done, *speeds(progress)))

    def screen(progress: CountProgress) -> Group:
        read, counted = speeds(progress)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(progress.size or 1, progress.read, width=24)
        head.add_row(
            bar,
            f"{size(progress.read)} of {size(progress.size)}",
            Text(read, "bold"),
            f"{progress.lines:,} lines",
            counted,
        )
        if not progress.limit:
            return Group(head)
        return Group(head, Text(f"{size(progress.held)} of {size(progress.limit)} in the channel", "dim"))

    with progress_display(line, screen, quiet=quiet) as watch:

        def update(progress: CountProgress) -> None:
            speeds(progress)  # else the first line would have no earlier value to compare with
            watch(progress)

        yield update


def show_report(report: CountReport) -> None:
    """Print each table, the rejected lines, the formats, and the speed."""
    for table in TABLES:
        if table == "by_day" and report.by_day:
            _show_matrix(report.by_day, report.tables["countries"])
        elif report.tables.get(table):
            _show_table(report, table)
    if report.rejected:
        _show_rejected(report)
    for format, files in report.formats.items():
        _show_format(report, format, files)
    directives = f", {many(report.directives, 'directive')}" if report.directives else ""
    joined = f", {many(report.joined, 'piece')} of split lines joined" if report.joined else ""
    show(
        f"{many(report.lines, 'line')} in {many(len(report.options.logs), 'file')}: {report.counted:,} counted, "
        f"{report.rejected:,} rejected{directives}{joined}."
    )
    if report.bytes is not None:
        show(f"{report.bytes:,} bytes ({size(report.bytes)}).")
    took = age(report.seconds)
    if report.seconds >= LONG:
        took += f", {size(report.size / report.seconds)}/s, {report.lines / report.seconds:,.0f} lines/s"
    show(f"{took}; {size(report.peak)} in the channel at most." if report.peak else f"{took}.")
    if report.deaths:
        show(
            f"{many(report.deaths, 'process', 'processes')} died and were restarted; the counts are exact nevertheless."
        )


def _show_format(report: CountReport, format: str, files: Sequence[str]) -> None:
    guessed = any(log.guessed for log in report.options.logs)
    if format == "any":
        show(f"Not in a format that is known: {', '.join(files[:3])}{', …' if len(files) > 3 else ''}.")
    else:
        where = f" ({many(len(files), 'file')})" if len(report.formats) > 1 else ""
        show(f"Format: {format}{where}{', guessed from the first lines' if guessed else ''}.")


def _show_table(report: CountReport, table: str) -> None:
    """Show a table: bars if its keys have an order, else the share of each key."""
    whole, shown, sums = report.whole(table), report.top(table), report.bytes_of(table)
    bars = table in {"days", "hours"}
    columns: dict[str, Kind] = {SINGULAR[table]: "name", "requests": "number"}
    if not bars:
        columns["share"] = "number"
    if sums is not None:
        columns["bytes"] = "number"
    columns[""] = "text"
    most, total = max(whole.values()), report.counted or 1
    rows = []
    for key, number in shown.items():
        cells: list[str | Text] = [key, f"{number:,}"]
        if not bars:
            cells.append(f"{number / total:.1%}")
        if sums is not None:
            cells.append(f"{sums.get(key, 0):,}")
        note = COUNTRY_BUCKETS.get(key, "") if table == "countries" else ""
        rows.append([*cells, _bar(number / most) if bars else note])
    show_table(columns, rows)
    if more := len(whole) - len(shown):
        requests = many(sum(whole.values()) - sum(shown.values()), "request")
        show(f"and {requests} from {many(more, 'other')}")
    show("")


def _bar(share: float) -> Text:
    eighths = max(1, round(share * BAR * 8))
    return Text("█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8], "cyan")


def _top(counts: Mapping[str, int], n: int) -> list[tuple[str, int]]:
    return Counter(counts).most_common(n)


def _show_matrix(by_day: Mapping[str, Mapping[str, int]], countries: Mapping[str, int]) -> None:
    """Show as many of the countries with the most requests as fit the terminal."""
    console = Console()
    width = max(len(f"{max(countries.values()):,}"), 7) + GAP
    room = ((console.width if console.is_terminal else WIDEST) - len("2026-03-02")) // width - 1
    shown = [country for country, _ in _top(countries, max(1, room))]
    columns: dict[str, Kind] = {"day": "name", **dict.fromkeys(shown, "number")}
    if len(countries) > len(shown):
        columns["others"] = "number"
    rows = []
    for day, counts in by_day.items():
        others = sum(counts.values()) - sum(counts.get(country, 0) for country in shown)
        numbers = [*(counts.get(country, 0) for country in shown), others]
        rows.append([day, *(f"{number:,}" if number else "" for number in numbers[: len(columns) - 1])])
    show_table(columns, rows)
    show("")


def _show_rejected(report: CountReport) -> None:
    show_table(
        headings("rejected:name", "line", "reason:text"),
        [(file, f"{number:,}", reason) for file, number, reason in report.rejected_lines[:FIRST]],
    )
    if (more := report.rejected - FIRST) > 0:
        show(f"and {many(more, 'more line', 'more lines')}")
    show("")
