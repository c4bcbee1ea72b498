"""The output of the bench: its conditions, then one table per scenario, printed row by row during the run."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from penstock.bench.figures import Figure
from penstock.bench.run import BenchRun, Conditions
from penstock.bench.topic import Scenario

PLACES = {
    "same": "server, workers and client on one CPU",
    "split": "server on one CPU, workers and client on another",
    "free": "not pinned: the kernel moves processes, and figures change with them; see --pin",
}

NOTE = (
    "\n± half the distance between the lowest and the highest repetition; ≤ ≥ targets; a missed target is not a failure"
)


def show(run: BenchRun) -> None:
    """Measure, and print each figure at once."""
    console = Console(highlight=False)
    _show_conditions(console, run.conditions)
    for scenario, figures in run:
        _show_scenario(console, scenario, figures)
    console.print(Text(NOTE, "dim"), soft_wrap=True)


def _show_conditions(console: Console, found: Conditions) -> None:
    for name, text in (
        ("server", f"{found.server} at {found.at}, appendonly {found.appendonly}"),
        ("client", f"{found.python}, {found.client}, {found.parser}; workers: {found.worker_loop}"),
        ("machine", f"{found.cpus} CPUs, load {found.load:g}"),
        ("placed", PLACES[found.pin]),
    ):
        console.print(Text.assemble((f"{name:9}", "dim"), text), soft_wrap=True)


def _show_scenario(console: Console, scenario: Scenario, figures: Iterator[Figure]) -> None:
    console.print(Text.assemble("\n", (scenario.name, "bold"), (f"  {scenario.summary}", "dim")), soft_wrap=True)
    with console.status(f"measuring {scenario.name}"):
        for one in figures:
            console.print(_row(one), soft_wrap=True)


def _row(one: Figure) -> Text:
    head, colon, part = one.name.partition(": ")
    name = f"- {part}" if colon else head
    row = Text(f"  {name:38}{_number(one.value):>9} {one.unit:7}")
    row.append(f"{_spread(one):>6}  ", "dim")
    ratio = f"{_number(one.ratio.value):>6} × {one.ratio.to}" if one.ratio else ""
    if one.target is None:
        return row.append(ratio, "dim")
    sign, what = ("≤" if one.target.bound == "at most" else "≥"), " ×" * (one.target.of == "ratio")
    row.append(f"{ratio:40}", "dim")
    row.append(f"{sign} {_number(one.target.limit)}{what}".rjust(10) + "  ")
    return row.append(*(("met", "green") if one.met else ("missed", "bold red")))


def _spread(one: Figure) -> str:
    """Half the distance between lowest and highest, in per cent."""
    if one.lowest is None or one.highest is None or not one.value or one.lowest == one.highest:
        return ""
    return f"±{(one.highest - one.lowest) / 2 / one.value:.0%}"


def _number(number: float) -> str:
    """Three digits, or all digits before the decimal point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
