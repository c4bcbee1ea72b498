"""`penstock worker --reload`: a command that starts anew when a source file changes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.worker.lifeline import Lifeline

log = logging.getLogger("penstock.reload")

LOOK_EVERY = 0.5
PATIENCE = 5.0
"""Seconds that running jobs have before they are handed back: whoever saves a file waits for the new code."""


def run(command: Sequence[str]) -> int:
    """Run it until a signal ends it; returns its exit code. One that ends by itself waits for the next change."""
    current = _Current(command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, current.stop)
    while True:
        before = now = dict(_files())
        current.start()
        while now == before:
            time.sleep(LOOK_EVERY)
            if current.stopped:
                return current.process.wait()
            now = dict(_files())
        changed = sorted({name for name, _ in before.items() ^ now.items()})
        log.info("%s changed: starting anew", ", ".join(changed[:3]))
        current.end()


class _Current:
    """The process that runs now. It stops when this one is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.stopped = False

    def start(self) -> None:
        with Lifeline() as self._lifeline:
            self.process = subprocess.Popen(
                self._command, start_new_session=True, pass_fds=(self._lifeline.theirs,),
                env={**os.environ, **self._lifeline.environment},
            )  # fmt: skip

    def stop(self, number: int, _: object) -> None:
        """A signal, each time one comes."""
        self.stopped = True
        if self.process.poll() is not None:
            sys.exit(128 + number)
        self.process.terminate()

    def end(self) -> None:
        """Gracefully, then by handing back, then by force."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
                break
        self._lifeline.cut()


def _files() -> Iterator[tuple[str, int]]:
    """The Python files below the working directory, with their times; not those of environments and hidden folders."""
    folders = [Path.cwd()]
    while folders:
        for path in folders.pop().iterdir():
            with contextlib.suppress(FileNotFoundError):  # an editor replaces files
                if path.suffix == ".py":
                    yield str(path), path.stat().st_mtime_ns
                elif path.is_dir() and not path.is_symlink() and not _is_strange(path):
                    folders.append(path)


def _is_strange(folder: Path) -> bool:
    return folder.name.startswith((".", "__pycache__")) or (folder / "pyvenv.cfg").exists()
