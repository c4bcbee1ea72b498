"""The progress of `penstock files receive`: the file that arrives, and how fast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.files.saving import ReceiveProgress
from penstock.ops.wording import size
from penstock.terminal.progress import GrowthRate, progress_display
from penstock.terminal.tables import cell


@contextlib.contextmanager
def showing_download() -> Iterator[Callable[[ReceiveProgress], None]]:
    """Yields a function that shows progress."""
    pace = GrowthRate()

    def speed(progress: ReceiveProgress) -> str:
        return f"{size(progress.received)} received, {size(pace.at(progress.received))}/s"

    def line(progress: ReceiveProgress) -> str:
        return f"{progress.name}: {_done(progress)}; {speed(progress)}"

    def screen(progress: ReceiveProgress) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(progress.size, progress.done, width=24) if progress.size else Text("")
        head.add_row(bar, _done(progress), Text(speed(progress), "bold"))
        name = cell(progress.name)
        name.truncate(60, overflow="ellipsis")
        return Group(head, name)

    with progress_display(line, screen, immutable=True) as watch:

        def update(progress: ReceiveProgress) -> None:
            pace.at(progress.received)
            watch(progress)

        yield update


def _done(progress: ReceiveProgress) -> str:
    return f"{size(progress.done)} of {size(progress.size)}" if progress.size else size(progress.done)
