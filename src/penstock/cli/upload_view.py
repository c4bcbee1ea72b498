"""The progress of `penstock files send` (bytes sent, and the receiver that holds the upload up), and its result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.files.bindings import ChannelInfo
from penstock.files.sender import Sent
from penstock.files.upload import Progress
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, many, size
from penstock.terminal.progress import SECONDS_PER_LINE, GrowthRate, progress_display
from penstock.terminal.tables import cell, show

SILENT = 10.0
"""Seconds after which a receiver is silent, not just slow: a working one renews its lease and pulls."""


@contextlib.contextmanager
def showing_upload(inspector: Inspector, channel: str) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that shows progress.

    While the channel is full, a thread asks the server every two seconds which receiver holds the upload up.
    """
    view, ended = _UploadView(inspector, channel), threading.Event()
    with progress_display(view.line, view.screen, immutable=True) as watch:

        def update(progress: Progress) -> None:
            view.update(progress)
            watch(progress)

        def keep_checking() -> None:
            while not ended.wait(SECONDS_PER_LINE):
                if (progress := view.progress) is not None and progress.waiting:
                    view.find_slowest()
                    watch(progress)

        checker = threading.Thread(target=keep_checking, name="penstock-upload-view", daemon=True)
        checker.start()
        try:
            yield update
        finally:
            ended.set()
            checker.join()


class _UploadView:
    def __init__(self, inspector: Inspector, channel: str) -> None:
        self.progress: Progress | None = None
        self._inspector = inspector
        self._channel = channel
        self._pace = GrowthRate()
        self._slowest = ""

    def update(self, progress: Progress) -> None:
        self._pace.at(progress.sent)
        if self.progress is None or not (progress.waiting and self.progress.waiting):
            self._slowest = progress.slowest
        self.progress = progress

    def find_slowest(self) -> None:
        with contextlib.suppress(PenstockError):  # the sender reports it
            self._slowest = describe_slowest(self._inspector.files.channel(self._channel), self._inspector.now())

    def line(self, progress: Progress) -> str:
        done = f"{progress.name}: {size(progress.sent)} of {size(progress.total)}, {self._speed(progress)}"
        return f"{done}; {self._channel_state(progress)}"

    def screen(self, progress: Progress) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(progress.total or 1, progress.sent, width=24)
        head.add_row(bar, f"{size(progress.sent)} of {size(progress.total)}", Text(self._speed(progress), "bold"))
        name = cell(progress.name)
        name.truncate(60, overflow="ellipsis")
        return Group(head, name, Text(self._channel_state(progress), "yellow" if progress.waiting else "dim"))

    def _speed(self, progress: Progress) -> str:
        return f"{size(self._pace.at(progress.sent))}/s"

    def _channel_state(self, progress: Progress) -> str:
        held = f"{size(progress.held)} in the channel"
        if progress.waiting:
            return f"{held}, full: waiting for {self._slowest}"
        return f"{held}, {progress.slowest} is furthest behind" if progress.slowest else held


def describe_slowest(channel: ChannelInfo, now: float) -> str:
    """Names the receiver that is furthest behind. If it is silent, says since when and what to do."""
    reading = [one for one in channel.receivers if one.state == "reading"]
    last = max(reading, key=lambda one: one.behind, default=None)
    if last is None:
        return "a receiver"
    if now - last.seen <= SILENT:
        return last.name
    return (
        f"{last.name}, silent for {age(now - last.seen)}: "
        f"`penstock files rm {channel.name} {last.name}` removes it, --patience passes it over"
    )


def show_sent(channel: str, sent: Sent, seconds: float) -> None:
    whole = sum(file.size for file in sent.files)
    text = f"{many(len(sent.files), 'file')} sent to {channel}: {size(whole)} in {age(seconds)}"
    if seconds >= 1:
        text += f", {size(whole / seconds)}/s"
    show(f"{text}.")
    if resumed := sum(file.resumed for file in sent.files):
        show(f"{many(resumed, 'file')} resumed.")
    if sent.skipped:
        show(f"{many(len(sent.skipped), 'file')} skipped: sent before and unchanged (--again sends them).")
    _show_some([f"same content as {one.of}: {one.name} not sent again" for one in sent.copies])
    _show_some([f"{one.name}: {size(one.bytes)} of an unfinished line held back (--final)" for one in sent.held_back])
    _show_some([f"{name}: not sent yet, because something still seems to write it" for name in sent.waiting])
    if sent.forgotten:
        show(
            f"The channel remembers 100,000 files, and forgot the {many(sent.forgotten, 'oldest', 'oldest')}: the next "
            "send that names them sends them again."
        )
    if sent.closed:
        show(f"{channel} is closed.")


def _show_some(lines: Sequence[str], most: int = 10) -> None:
    for line in lines[:most]:
        show(line)
    if len(lines) > most:
        show(f"… and {len(lines) - most:,} more.")
