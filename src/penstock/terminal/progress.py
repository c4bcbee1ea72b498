"""What is shown on stderr while something runs: a live view at a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

T = TypeVar("T")

REDRAW = 0.2
LINE_EVERY = 2.0


@contextlib.contextmanager
def showing(
    line: Callable[[T], str], screen: Callable[[T], RenderableType], *, first: RenderableType = "",
    quiet: bool = False, frozen: bool = False,
) -> Iterator[Callable[[T], None]]:  # fmt: skip
    """What to tell of the progress, as often as one likes.

    first   the view before anything is told
    frozen  what is told never changes: a thread shows it, also while nothing is told for long
    """
    console = Console(stderr=True, highlight=False, emoji=False, markup=False)
    if quiet:
        yield lambda _: None
    elif not console.is_terminal:
        yield _every(LINE_EVERY, lambda progress: console.print(line(progress), soft_wrap=True), after=LINE_EVERY)
    elif frozen:
        told: list[T] = []

        def view() -> RenderableType:
            return screen(told[-1]) if told else first

        with Live(get_renderable=view, console=console, refresh_per_second=1 / REDRAW, transient=True):
            yield lambda progress: told.__setitem__(slice(None), [progress])
    else:
        with Live(first, console=console, auto_refresh=False, transient=True) as shown:
            yield _every(REDRAW, lambda progress: shown.update(screen(progress), refresh=True))


def _every(seconds: float, show: Callable[[T], None], after: float = 0.0) -> Callable[[T], None]:
    due = time.monotonic() + after

    def watch(progress: T) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            show(progress)

    return watch


class Pace:
    """How fast a number grows, per second, over the last two seconds; to be told as often as one likes."""

    def __init__(self) -> None:
        self._told = deque[tuple[float, float]](maxlen=10)

    def at(self, number: float) -> float:
        now = time.monotonic()
        if not self._told or now >= self._told[-1][0] + REDRAW:
            self._told.append((now, number))
        since, before = self._told[0]
        return (number - before) / (now - since) if now > since else 0.0
