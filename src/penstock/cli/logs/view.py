"""The output of `penstock logs count`: progress while it runs, tables at the end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.logs.run import CountProgress, CountReport
from penstock.ops.wording import age, many, size
from penstock.terminal.progress import GrowthRate, progress_display
from penstock.terminal.tables import GAP, Kind, show, show_table

BAR = 40
WIDEST = 100
FIRST = 5
"""Rejected lines that are printed one by one."""

LONG = 3.0
"""Seconds. The speed of a shorter run would mostly measure the start of the processes."""

_BUCKETS = {
    "private": "addresses that are not routed",
    "invalid": "look like addresses, but are not valid",
    "unknown": "addresses without a country",
    "name": "host names: not resolved",
}


@contextlib.contextmanager
def watching(*, quiet: bool) -> Iterator[Callable[[CountProgress], None]]:
    bytes_, lines = GrowthRate(), GrowthRate()

    def speeds(progress: CountProgress) -> tuple[str, str]:
        return f"{size(bytes_.at(progress.read))}/s", f"{lines.at(progress.lines):,.0f} lines/s"

    def line(progress: CountProgress) -> str:
        done = f"{size(progress.read)} of {size(progress.size)}, {many(progress.lines, 'line')}"
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
        return Group(head, Text(f"{size(progress.held)} of {size(progress.limit)} in the channel", "dim"))

    with progress_display(line, screen, quiet=quiet) as watch:

        def update(progress: CountProgress) -> None:
            speeds(progress)  # else the first line would have no earlier value to compare with
            watch(progress)

        yield update


def show_report(report: CountReport) -> None:
    """Print days with bars, countries, hosts, rejected lines, and the speed."""
    if report.days:
        _show("day", report.days, bars=True)
    if report.countries:
        _show_countries(report)
    if report.by_day:
        _show_matrix(report.by_day, report.countries)
    if report.hosts:
        _show("host", report.hosts, of=report.counted)
    if report.rejected:
        _show_rejected(report)
    took = age(report.seconds)
    if report.seconds >= LONG:
        took += f", {size(report.size / report.seconds)}/s, {report.lines / report.seconds:,.0f} lines/s"
    show(
        f"{many(report.lines, 'line')} in {many(len(report.options.logs), 'file')}: {report.counted:,} counted, "
        f"{report.rejected:,} rejected.",
        f"{took}; {size(report.peak)} in the channel at most.",
    )
    if report.deaths:
        show(
            f"{many(report.deaths, 'process', 'processes')} died and were restarted; the counts are exact nevertheless."
        )


def _show(
    what: str, counts: Mapping[str, int], *, of: int = 0, bars: bool = False, notes: Mapping[str, str] | None = None
) -> None:
    columns: dict[str, Kind] = {what: "name", "requests": "number"}
    if of:
        columns["share"] = "number"
    columns[""] = "text"
    most = max(counts.values(), default=1)
    rows = []
    for key, number in counts.items():
        share = [f"{number / of:.1%}"] if of else []
        last: str | Text = _bar(number / most) if bars else (notes or {}).get(key, "")
        rows.append([key, f"{number:,}", *share, last])
    show_table(columns, rows)
    show("")


def _bar(share: float) -> Text:
    eighths = max(1, round(share * BAR * 8))
    return Text("█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8], "cyan")


def _top(counts: Mapping[str, int], n: int) -> list[tuple[str, int]]:
    return Counter(counts).most_common(n)


def _show_countries(report: CountReport) -> None:
    shown = dict(_top(report.countries, report.options.top))
    _show("country", shown, of=report.counted, notes=_BUCKETS)
    if more := len(report.countries) - len(shown):
        requests = many(sum(report.countries.values()) - sum(shown.values()), "request")
        show(f"and {requests} from {many(more, 'other')}", "")


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
        {"rejected": "name", "line": "number", "reason": "text"},
        [(file, f"{number:,}", reason) for file, number, reason in report.rejected_lines[:FIRST]],
    )
    if (more := report.rejected - FIRST) > 0:
        show(f"and {many(more, 'more line', 'more lines')}")
    show("")
