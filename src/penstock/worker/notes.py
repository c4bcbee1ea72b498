"""Keeps the reports of a process's running jobs until a turn carries them to the server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from penstock.jobs.constants import LOG_BYTES
from penstock.jobs.notes import encode_notes
from penstock.settings import Seal

MOST_NOTES: Final = 100
"""The most jobs whose reports one turn carries. A report costs the server about five commands."""


_SENT_WITHIN: Final = 0.5
"""Seconds after which a turn is due for reports that no other turn has carried."""


class PendingReports:
    """What running jobs have sent to their worker, and when a turn is to be taken for it."""

    def __init__(self, seal: Seal | None) -> None:
        """`seal`: seals the texts when a turn takes them."""
        self._seal = seal
        self._lock = threading.Lock()
        self._time_is_up = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: Callable[[], None] = lambda: None

    def start(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        """Call `due` on the loop when a turn is to be taken."""
        self._loop, self._due = loop, due

    @abstractmethod
    def _delay(self) -> float:
        """Seconds until a turn is to be taken for the first thing that is pending. Called on the loop."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether anything is pending."""

    @property
    def are_due(self) -> bool:
        """Whether a turn is to be taken for what is pending."""
        return self._time_is_up and bool(self)

    def _plan_turn(self) -> None:
        """The first thing is pending. Called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        assert self._loop is not None
        self._loop.call_later(self._delay(), self._be_due)

    def _be_due(self) -> None:
        self._time_is_up = True
        self._due()


class PendingNotes(PendingReports):
    """The reports of one queue's jobs: for each job its latest progress, and the log lines that were not sent yet.

    `add` is called in any thread, everything else on the worker's loop.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        super().__init__(seal)
        self._progress: dict[bytes, bytes] = {}
        self._lines: dict[bytes, list[bytes]] = {}
        self._sizes: dict[bytes, int] = {}

    def add(self, token: bytes, progress: bytes = b"", line: bytes | None = None) -> None:
        """Replace the progress of a job unless it is empty, and append a line to its log."""
        with self._lock:
            is_first = not self._progress
            self._progress[token] = progress or self._progress.get(token, b"")
            if line is not None:
                self._append(token, line)
        if is_first:
            self._plan_turn()

    def _delay(self) -> float:
        return _SENT_WITHIN

    def _append(self, token: bytes, line: bytes) -> None:
        lines = self._lines.setdefault(token, [])
        lines.append(line)
        size = self._sizes.get(token, 0) + len(line)
        while size > LOG_BYTES:  # the server would drop them
            size -= len(lines.pop(0))
        self._sizes[token] = size

    def __bool__(self) -> bool:
        return bool(self._progress)

    def take(self, first: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Remove and return the reports for one turn, tokens and encoded notes. Jobs in `first` go before others."""
        if not self._progress:
            return []
        with self._lock:
            tokens = dict.fromkeys([*(token for token in first if token in self._progress), *self._progress])
            taken = []
            for token in [*tokens][:MOST_NOTES]:
                self._sizes.pop(token, None)
                taken.append((token, encode_notes(self._progress.pop(token), self._lines.pop(token, ()), self._seal)))
            self._time_is_up = bool(self._progress)
        return taken

    def clear(self) -> None:
        with self._lock:
            self._progress.clear()
            self._lines.clear()
            self._sizes.clear()
