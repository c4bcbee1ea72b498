"""Shows the progress of a command on stderr: a live display on a terminal, otherwise an occasional line."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

T = TypeVar("T")

SECONDS_PER_REDRAW = 0.2
SECONDS_PER_LINE = 2.0


@contextlib.contextmanager
def progress_display(
    line: Callable[[T], str],
    screen: Callable[[T], RenderableType],
    *,
    first: RenderableType = "",
    quiet: bool = False,
    immutable: bool = False,
) -> Iterator[Callable[[T], None]]:
    """Yields a function that shows the progress; call it as often as you like.

    line       renders the progress as a line of text
    screen     renders it for the terminal
    first      shown before the first call
    quiet      True: show nothing
    immutable  True: progress objects never change, so a thread may redraw the last one between calls
    """
    console = Console(stderr=True, highlight=False, emoji=False, markup=False)
    if quiet:
        yield lambda _: None
    elif not console.is_terminal:
        yield _throttled(
            SECONDS_PER_LINE, lambda progress: console.print(line(progress), soft_wrap=True), after=SECONDS_PER_LINE
        )
    elif immutable:
        last: list[T] = []

        def render() -> RenderableType:
            return screen(last[-1]) if last else first

        with Live(
            get_renderable=render,
            console=console,
            refresh_per_second=1 / SECONDS_PER_REDRAW,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # output to a file stays there
        ):
            yield lambda progress: last.__setitem__(slice(None), [progress])
    else:
        with Live(first, console=console, auto_refresh=False, transient=True) as live:
            yield _throttled(SECONDS_PER_REDRAW, lambda progress: live.update(screen(progress), refresh=True))


def _throttled(seconds: float, show: Callable[[T], None], after: float = 0.0) -> Callable[[T], None]:
    """Limits how often `show` is called: once per interval, and not during the first `after` seconds."""
    due = time.monotonic() + after

    def show_if_due(progress: T) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            show(progress)

    return show_if_due


class GrowthRate:
    """How fast a number has grown per second during the last two seconds."""

    def __init__(self) -> None:
        self._samples = deque[tuple[float, float]](maxlen=10)

    def at(self, number: float) -> float:
        """Record that the number has reached this value, and return the rate. Call it as often as you like."""
        now = time.monotonic()
        if not self._samples or now >= self._samples[-1][0] + SECONDS_PER_REDRAW:
            self._samples.append((now, number))
        since, before = self._samples[0]
        return (number - before) / (now - since) if now > since else 0.0
