"""What the demo shows: a live view or lines of progress on stderr while it runs, tables on stdout at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.demo.books import Account, Books
from penstock.demo.run import Order, Progress, Report
from penstock.terminal.progress import showing

Watch = Callable[[Progress], None]

BAR = 24
WIDEST = 100


@contextlib.contextmanager
def watching(order: Order, *, live: bool) -> Iterator[Watch]:
    """What to tell of the progress: a live view in a terminal, else a line now and then."""
    with showing(_line, lambda progress: _screen(order, progress), first=_title(order), quiet=not live) as watch:
        yield watch


def _title(order: Order) -> Text:
    return Text.assemble(("penstock demo", "bold"), f"  {order.source}\n", overflow="ellipsis", no_wrap=True)


def _names(books: Books) -> dict[str, str]:
    number, most = books.small_clients()
    return {
        "small": f"{number:,} with up to {most} jobs",
        "busiest": "the log's busiest",
        "flooder": "the flooder",
    }


# --- while it runs ---


def _line(progress: Progress) -> str:
    books, counts = progress.books, progress.counts
    waits = ", ".join(f"{name} {account.longest:.1f} s" for name, account in books.accounts().items())
    return f"{books.jobs:,} jobs in, {counts.completed:,} done, {progress.rate:,.0f}/s; longest waits: {waits}"


def _screen(order: Order, progress: Progress) -> Group:
    books, counts = progress.books, progress.counts
    ended = counts.completed + counts.dead
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(books.jobs or 1, ended, width=BAR),
        f"{ended:,} of {books.jobs:,}",
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
    accounts = books.accounts()
    for key, name in _names(books).items():
        account = accounts[key]
        bar = ProgressBar(account.jobs or 1, account.done, width=BAR // 2)
        table.add_row(name, f"{account.jobs:,}", f"{account.done:,}", bar, *_waits(account))
    return Group(_title(order), head, "", state, "", table)


# --- at the end ---


def show_report(report: Report) -> None:
    """The books, the waits, the days and the verdict."""
    console = Console()
    tables = (_books(report), "", _fairness(report), "", _days(report.books), "")
    console.print(Group(_title(report.order), *tables), width=WIDEST)
    console.print(_verdict(report), soft_wrap=True)


def _books(report: Report) -> Table:
    books, counts = report.books, report.counts
    table = _table("books", "jobs", "")
    for name, number, remark in (
        ("put in", books.jobs, f"{books.requests:,} requests, {books.flooder.jobs:,} of a flooder, 2 others"),
        ("completed", counts.completed, "as the server counted"),
        ("dead letters", counts.dead, "the one that always fails"),
        ("completed once", books.completed_once, "as each of them wrote down itself"),
        ("retries", counts.retried, f"{books.planned_retries:,} planned"),
        ("delayed", books.delayed, "none started before it was due"),
        ("malformed lines", books.malformed, "left out"),
    ):
        table.add_row(name, f"{number:,}", Text(remark, "dim"))
    return table


def _fairness(report: Report) -> Table:
    table = _table("client", "jobs", "mean wait", "longest", "by arrival", "longest")
    fair, by_arrival = report.books.accounts(), report.books.accounts_by_arrival()
    for key, name in _names(report.books).items():
        table.add_row(name, f"{fair[key].jobs:,}", *_waits(fair[key]), *_waits(by_arrival[key], "dim"))
    table.caption = (
        "waits: from due to start, by this machine's clock\n"
        "by arrival: had the same starts gone to the jobs in the order they came"
    )
    table.caption_justify = "left"
    return table


def _days(books: Books) -> Table:
    table = _table("day", "requests", "")
    most = max(books.days.values(), default=1)
    for day, number in sorted(books.days.items()):
        table.add_row(day, f"{number:,}", ProgressBar(most, number, width=BAR))
    return table


def _verdict(report: Report) -> Text:
    speed = f"{report.rate:,.0f} jobs/s; {report.seconds:.1f} s in all, on {report.server}.\n{_death(report)}"
    if not report.faults:
        return Text.assemble(speed, ("The books balance.", "bold green"))
    return Text.assemble(speed, ("The books do not balance:", "bold red"), *(f"\n- {fault}" for fault in report.faults))


def _death(report: Report) -> str:
    death = report.death
    if death is None:
        return ""
    return (
        f"One of two worker processes was killed with SIGKILL while it held {death.held:,} jobs: they were back after "
        f"{death.given_back:.2f} s, a new process worked after {death.replaced:.2f} s. None was lost; "
        f"{report.counts.lost:,} runs were cut short, {report.books.completed_twice:,} got to their end twice.\n"
    )


def _table(first: str, *others: str) -> Table:
    """Names to the left, numbers to the right, what has no heading to the left again."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, min_width=22)
    for other in others:
        table.add_column(other, justify="right" if other else "left", no_wrap=bool(other), min_width=6 if other else 0)
    return table


def _waits(account: Account, style: str = "") -> tuple[Text, Text]:
    numbers = (f"{account.mean:.2f} s", f"{account.longest:.2f} s") if account.done else ("", "")
    return Text(numbers[0], style), Text(numbers[1], style)
