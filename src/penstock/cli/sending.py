"""What `penstock files send` shows: how far it is, and who holds it up, also while nothing moves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.files.bindings import ChannelInfo
from penstock.files.sender import Progress
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, size
from penstock.terminal.progress import SECONDS_PER_LINE, GrowthRate, progress_display
from penstock.terminal.tables import cell

SILENT = 10.0
"""Seconds after which a receiver that holds all up is not just slow: who works has its lease renewed, and pulls."""


@contextlib.contextmanager
def sending(inspector: Inspector, channel: str) -> Iterator[Callable[[Progress], None]]:
    """What to tell of the progress. While there is no space, the channel is asked every two seconds who it is now."""
    view, over = _View(inspector, channel), threading.Event()
    with progress_display(view.line, view.screen, immutable=True) as watch:

        def tell(told: Progress) -> None:
            view.take(told)
            watch(told)

        def look() -> None:
            while not over.wait(SECONDS_PER_LINE):
                if (told := view.told) is not None and told.waiting:
                    view.look()
                    watch(told)

        looking = threading.Thread(target=look, name="penstock-look", daemon=True)
        looking.start()
        try:
            yield tell
        finally:
            over.set()
            looking.join()


class _View:
    def __init__(self, inspector: Inspector, channel: str) -> None:
        self.told: Progress | None = None
        self._inspector = inspector
        self._channel = channel
        self._pace = GrowthRate()
        self._holder = ""

    def take(self, told: Progress) -> None:
        self._pace.at(told.sent)
        if self.told is None or not (told.waiting and self.told.waiting):
            self._holder = told.slowest
        self.told = told

    def look(self) -> None:
        with contextlib.suppress(PenstockError):  # who sends tells it
            self._holder = holder(self._inspector.channel(self._channel), self._inspector.now())

    def line(self, told: Progress) -> str:
        return f"{told.name}: {size(told.sent)} of {size(told.total)}, {self._speed(told)}; {self._window(told)}"

    def screen(self, told: Progress) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(told.total or 1, told.sent, width=24)
        head.add_row(bar, f"{size(told.sent)} of {size(told.total)}", Text(self._speed(told), "bold"))
        name = cell(told.name)
        name.truncate(60, overflow="ellipsis")
        return Group(head, name, Text(self._window(told), "yellow" if told.waiting else "dim"))

    def _speed(self, told: Progress) -> str:
        return f"{size(self._pace.at(told.sent))}/s"

    def _window(self, told: Progress) -> str:
        held = f"{size(told.held)} in the channel"
        if told.waiting:
            return f"{held}, full: waiting for {self._holder}"
        return f"{held}, {told.slowest} is furthest behind" if told.slowest else held


def holder(channel: ChannelInfo, now: float) -> str:
    """Who is furthest behind; of one that is silent, since when and what can be done."""
    reading = [one for one in channel.receivers if one.state == "reading"]
    last = max(reading, key=lambda one: one.behind, default=None)
    if last is None:
        return "nobody"
    if now - last.seen <= SILENT:
        return last.name
    return (
        f"{last.name}, not heard of for {age(now - last.seen)}: "
        f"`penstock files rm {channel.name} {last.name}` takes it out, or --patience"
    )
