"""`penstock top`: queues, tenants and workers, live in a terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.cli.top_screen import COLUMNS, Row, Screen, shown
from penstock.cli.where import HERE, AsJson, Flag, Where
from penstock.errors import ConfigurationError
from penstock.jobs.counts import Counts
from penstock.ops.inspect import Inspector
from penstock.terminal.tables import Kind, show_list

NAMES_KEPT = 60.0
"""Seconds for which the names of queues are kept. Finding them reads the names of all keys of the server."""

TENANTS = 200

_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}


def top(
    *,
    interval: Annotated[float, Parameter(validator=Number(gte=0.5, lte=60))] = 2.0,
    once: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Show queues with their rates, and the tenants and workers of one, until q is pressed.

    Keys: q quits, s sorts by the next column, r reverses, / filters, space holds the display, t and w show the tenants
    and the workers of the selected queue, b goes back.

    Parameters
    ----------
    interval
        Seconds between two updates, from 0.5 to 60.
    once
        Print the queues once. The rates are those of the last ten seconds that the server has recorded.
    as_json
        Print the queues once, as one JSON document.
    """
    with where.open() as inspector:
        watch = Watch(inspector)
        if once or as_json:
            rows = watch.rows(Screen())
            kinds: dict[str, Kind] = {name: "number" if space else "name" for name, space in COLUMNS["queues"].items()}
            lines = ((shown(name, row[name]) for name in kinds) for row in rows)
            return show_list(rows, kinds, lines, none="No queue was used here yet.", as_json=as_json)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigurationError("penstock top needs a terminal; without one use --once or --json")
        return _run(watch, interval)


def _run(watch: Watch, interval: float) -> None:
    screen, console = Screen(), Console(highlight=False)
    rows: list[Row] = []
    with _raw_keys() as descriptor, Live(console=console, screen=True, auto_refresh=False) as live:
        due, view = 0.0, ("", "")
        while True:
            if (not screen.is_held and time.monotonic() >= due) or view != (screen.view, screen.queue):
                rows = watch.rows(screen)
                due, view = time.monotonic() + interval, (screen.view, screen.queue)
            subject = f"{screen.view} of {screen.queue}" if screen.queue and screen.view != "queues" else screen.view
            title = f"penstock top: {subject}  {time.strftime('%H:%M:%S')}  {watch.location}"
            width, height = console.size
            live.update(Text("\n").join(screen.lines(rows, title, watch.totals(), width, height)), refresh=True)
            wait = max(0.05, min(interval, due - time.monotonic())) if not screen.is_held else interval
            if select.select([descriptor], [], [], wait)[0]:
                text = os.read(descriptor, 64).decode(errors="replace")
                for key in [_ARROWS[text]] if text in _ARROWS else text:
                    if not screen.press(key):
                        return


@contextlib.contextmanager
def _raw_keys() -> Iterator[int]:
    """Keys arrive one by one and are not echoed."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Watch:
    """Asks the inspector, and turns two counts of a queue into rates."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._names: list[str] = []
        self._searched_at = -NAMES_KEPT
        self._last: dict[str, tuple[float, Counts]] = {}
        self._queues: list[Row] = []

    @property
    def location(self) -> str:
        return self._inspector.location

    def totals(self) -> str:
        def total(name: str) -> float:
            return sum(float(row[name]) for row in self._queues)

        return (
            f"{len(self._queues)} queues  {total('ready'):,.0f} ready  {total('running'):,.0f} running  "
            f"{total('in/s'):,.1f} in/s  {total('out/s'):,.1f} out/s  {total('dead'):,.0f} dead"
        )

    def rows(self, screen: Screen) -> list[Row]:
        """The rows of the view: one round trip for each queue, or those of `queue show` or `worker ls`."""
        if screen.view == "tenants":
            found = self._inspector.queues.show(screen.queue, tenants=TENANTS).largest
            names = ("ready", "delayed", "sleeping", "parked", "running", "dead")
            return [
                {
                    "tenant": one.name,
                    "waiting": one.counts.dependent,
                    **{name: getattr(one.counts, name) for name in names},
                }
                for one in found
            ]
        if screen.view == "workers":
            return [
                {
                    "worker": one.name or "(a program)",
                    "queue": one.queue,
                    "jobs": one.held,
                    "at once": one.concurrency,
                    "release": one.release,
                    "lease": one.lease,
                }
                for one in self._inspector.workers.all(screen.queue)
            ]
        if time.monotonic() - self._searched_at >= NAMES_KEPT:
            self._names = self._inspector.queues.names()
            self._searched_at = time.monotonic()
        self._queues = [self._queue(view.name, view.counts) for view in self._inspector.queues.all(self._names)]
        return self._queues

    def _queue(self, name: str, counts: Counts) -> Row:
        now, before = time.monotonic(), self._last.get(name)
        self._last[name] = (now, counts)
        if before is None:
            latest = self._inspector.history.moments(name, moments=1)
            entered, left, failed = (
                (
                    latest[0].per_second("entered"),
                    latest[0].per_second("completed"),
                    latest[0].per_second("failed") + latest[0].per_second("retried"),
                )
                if latest
                else (0.0, 0.0, 0.0)
            )
        else:
            seconds, old = max(0.001, now - before[0]), before[1]
            entered = max(0, counts.entered - old.entered) / seconds
            left = max(0, counts.completed - old.completed) / seconds
            failed = max(0, counts.failed + counts.retried - old.failed - old.retried) / seconds
        return {
            "queue": name,
            "ready": counts.ready,
            "oldest": counts.oldest if counts.ready else 0.0,
            "delayed": counts.delayed,
            "parked": counts.parked,
            "running": counts.running,
            "in/s": entered,
            "out/s": left,
            "fail/s": failed,
            "dead": counts.dead,
            "sleeping": counts.sleeping,
        }
