"""The demo's output: a live view or lines of progress on stderr while it runs, tables on stdout at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.demo.ledger import Ledger, TenantWaits
from penstock.demo.run import DemoOptions, DemoProgress, DemoReport
from penstock.terminal.progress import progress_display

Watch = Callable[[DemoProgress], None]

BAR = 24
WIDEST = 100


@contextlib.contextmanager
def watching(options: DemoOptions, *, live: bool) -> Iterator[Watch]:
    """Yields a function that shows progress: a live view in a terminal, else a line now and then."""
    with progress_display(
        _line, lambda progress: _screen(options, progress), first=_title(options), quiet=not live
    ) as watch:
        yield watch


def _title(options: DemoOptions) -> Text:
    return Text.assemble(("penstock demo", "bold"), f"  {options.source}\n", overflow="ellipsis", no_wrap=True)


def _names(ledger: Ledger) -> dict[str, str]:
    number, most = ledger.small_clients()
    return {
        "small": f"{number:,} with up to {most} jobs",
        "busiest": "the log's busiest",
        "flooder": "the flooder",
    }


# --- while it runs ---


def _line(progress: DemoProgress) -> str:
    ledger, counts = progress.ledger, progress.counts
    waits = ", ".join(f"{name} {account.longest:.1f} s" for name, account in ledger.waits().items())
    return f"{ledger.jobs:,} jobs enqueued, {counts.completed:,} done, {progress.rate:,.0f}/s; longest waits: {waits}"


def _screen(options: DemoOptions, progress: DemoProgress) -> Group:
    ledger, counts = progress.ledger, progress.counts
    ended = counts.completed + counts.dead
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(ledger.jobs or 1, ended, width=BAR),
        f"{ended:,} of {ledger.jobs:,}",
        Text(f"{progress.rate:,.0f} jobs/s" if progress.rate else "", "bold"),
        Text(progress.phase, "dim"),
    )
    numbers = {
        "ready": f"{counts.ready:,}",
        "oldest": f"{counts.oldest:.0f} s",
        "running": f"{counts.running:,}",
        "delayed": f"{counts.delayed:,}",
        "retries": f"{counts.retried:,}",
        "dead": f"{counts.dead:,}",
    }
    state = Text("   ").join(Text.assemble((f"{name} ", "dim"), number) for name, number in numbers.items())
    table = _table("client", "jobs", "done", "", "mean wait", "longest")
    waits = ledger.waits()
    for key, name in _names(ledger).items():
        account = waits[key]
        bar = ProgressBar(account.jobs or 1, account.done, width=BAR // 2)
        table.add_row(name, f"{account.jobs:,}", f"{account.done:,}", bar, *_waits(account))
    return Group(_title(options), head, "", state, "", table)


# --- at the end ---


def show_report(report: DemoReport) -> None:
    """Print the ledger, the waits, the requests per day, and the verdict."""
    console = Console()
    tables = (_ledger(report), "", _fairness(report), "", _days(report.ledger), "")
    console.print(Group(_title(report.options), *tables), width=WIDEST)
    console.print(_verdict(report), soft_wrap=True)


def _ledger(report: DemoReport) -> Table:
    ledger, counts = report.ledger, report.counts
    table = _table("ledger", "jobs", "")
    for name, number, remark in (
        ("enqueued", ledger.jobs, f"{ledger.requests:,} requests, {ledger.flooder.jobs:,} of a flooder, 2 others"),
        ("completed", counts.completed, "by the server's counts"),
        ("dead letters", counts.dead, "the one that always fails"),
        ("ran once", ledger.completed_once, "by the entries that the jobs wrote"),
        ("retries", counts.retried, f"{ledger.planned_retries:,} planned"),
        ("delayed", ledger.delayed, "none started before it was due"),
        ("malformed lines", ledger.malformed, "skipped"),
    ):
        table.add_row(name, f"{number:,}", Text(remark, "dim"))
    return table


def _fairness(report: DemoReport) -> Table:
    table = _table("client", "jobs", "mean wait", "longest", "by arrival", "longest")
    fair, by_arrival = report.ledger.waits(), report.ledger.waits_by_arrival()
    for key, name in _names(report.ledger).items():
        table.add_row(name, f"{fair[key].jobs:,}", *_waits(fair[key]), *_waits(by_arrival[key], "dim"))
    table.caption = (
        "waits: from due time to start, by this machine's clock\n"
        "by arrival: if the same starts had gone to the jobs in the order of their arrival"
    )
    table.caption_justify = "left"
    return table


def _days(ledger: Ledger) -> Table:
    table = _table("day", "requests", "")
    most = max(ledger.days.values(), default=1)
    for day, number in sorted(ledger.days.items()):
        table.add_row(day, f"{number:,}", ProgressBar(most, number, width=BAR))
    return table


def _verdict(report: DemoReport) -> Text:
    speed = f"{report.rate:,.0f} jobs/s; {report.seconds:.1f} s in all, on {report.server}.\n{_death(report)}"
    if not report.faults:
        return Text.assemble(speed, ("The ledger balances.", "bold green"))
    return Text.assemble(
        speed, ("The ledger does not balance:", "bold red"), *(f"\n- {fault}" for fault in report.faults)
    )


def _death(report: DemoReport) -> str:
    death = report.death
    if death is None:
        return ""
    return (
        f"One of two worker processes was killed with SIGKILL while it held {death.held:,} jobs. They were "
        f"available again after {death.given_back:.2f} s, and a new process ran after {death.replaced:.2f} s. "
        f"None was lost; {report.counts.lost:,} runs were cut off, {report.ledger.completed_twice:,} jobs ran twice.\n"
    )


def _table(first: str, *others: str) -> Table:
    """Names are left-aligned and numbers right-aligned; a column without a heading is left-aligned too."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, min_width=22)
    for other in others:
        table.add_column(other, justify="right" if other else "left", no_wrap=bool(other), min_width=6 if other else 0)
    return table


def _waits(account: TenantWaits, style: str = "") -> tuple[Text, Text]:
    numbers = (f"{account.mean:.2f} s", f"{account.longest:.2f} s") if account.done else ("", "")
    return Text(numbers[0], style), Text(numbers[1], style)
