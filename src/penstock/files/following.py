"""Finds the followed logs that have changed since the last look, also when they were rotated or truncated.

A log that is being written is kept open. So lines that a program writes after the log was renamed, packed or deleted
are read, too. The log is closed when nobody has written to it for `settle` seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.files.regular_file import identity_of, inode_of, open_regular_file
from penstock.files.rotation import unpacked_path
from penstock.files.source import Source

LOOK_INTERVAL = 0.5
"""Seconds between two looks at the files. A look sends no command to the server."""

MAX_OPEN = 256
"""The most logs that are kept open: those that were written last."""

FULL_LOOKS = 4
"""How often in `settle` seconds all files are looked at again, because one of them may be finished by now."""


@dataclass(slots=True)
class _OpenLog:
    file: int
    source: Source


class FollowedLogs:
    """The logs that `find` returns, each time it is called. Close it at the end."""

    def __init__(self, find: Callable[[], list[Source]], settle: float) -> None:
        self._find = find
        self._settle = settle
        self._open: dict[str, _OpenLog] = {}
        self._seen: dict[str, str] = {}
        """Inode -> identity of the file at the last look."""
        self._sizes: dict[str, int] = {}
        """Inode -> size of the file at the last look."""
        self._finished: list[str] = []
        self._full_look_at = 0.0

    def changed(self) -> list[Source]:
        """The files that have changed since the last call, or that may be finished since."""
        found = self._find()
        now = time.monotonic()
        is_full = now >= self._full_look_at
        if is_full:
            self._full_look_at = now + max(1.0, self._settle / FULL_LOOKS)
        changed, seen, sizes = list[Source](), dict[str, str](), dict[str, int]()
        for source in found:
            try:
                status = os.stat(source.path)
            except OSError:  # it is being rotated: the next look finds it
                continue
            inode = inode_of(status)
            seen[inode], sizes[inode] = identity_of(status, status.st_size), status.st_size
            if status.st_size < self._sizes.get(inode, 0):
                source = replace(source, shrunk=True)
            if is_full or self._seen.get(inode) != seen[inode]:
                changed.append(source)
                self._keep_open(inode, source)
        changed += self._lost(seen, is_full)
        self._seen, self._sizes = seen, sizes
        return changed

    def _keep_open(self, inode: str, source: Source) -> None:
        if inode in self._open:
            self._open[inode].source = source
        elif unpacked_path(os.fspath(source.path)) == os.fspath(source.path):
            try:
                file = open_regular_file(Path(source.path))
            except OSError:
                return
            if len(self._open) >= MAX_OPEN:
                self._close(next(iter(self._open)))
            self._open[inode] = _OpenLog(os.dup(file.fileno()), source)
            file.close()

    def _lost(self, seen: dict[str, str], is_full: bool) -> list[Source]:
        """The open logs that were not found, because they were renamed or deleted. Those that are finished are
        returned for the last time."""
        lost = []
        for inode in [inode for inode in self._open if inode not in seen]:
            log = self._open[inode]
            status = os.fstat(log.file)
            seen[inode] = identity_of(status, status.st_size)
            is_finished = time.time() - status.st_mtime >= self._settle
            if is_full or is_finished or self._seen.get(inode) != seen[inode]:
                lost.append(Source(log.source.path, log.source.name, opened=log.file))
            if is_finished and self._seen.get(inode) == seen[inode]:
                self._finished.append(inode)
        return lost

    def close_finished(self) -> None:
        """Close the logs that are finished. Call it once the files that `changed` returned have been sent."""
        for inode in self._finished:
            self._close(inode)
        self._finished.clear()

    def _close(self, inode: str) -> None:
        if (log := self._open.pop(inode, None)) is not None:
            os.close(log.file)

    def close(self) -> None:
        for inode in list(self._open):
            self._close(inode)
