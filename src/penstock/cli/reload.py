"""`penstock worker --reload`: restarts a command when a source file changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from penstock.terminal.signals import not_ignored
from penstock.worker.parent_pipe import ParentPipe, stop_with_parent

log = logging.getLogger("penstock.reload")

RELOADED = "PENSTOCK_RELOADED"
"""Environment variable that marks a process started by a reloader: it must not reload itself."""

CHECK_INTERVAL = 0.5
STOP_TIMEOUT = 5.0
"""Seconds that running jobs have before they are handed back. Short, because the developer waits for the new code."""


def run(command: Sequence[str]) -> int:
    """Run a command until a signal, or the end of the parent process, stops it. Returns its exit code.

    A command that ends by itself is restarted at the next change.
    """
    return asyncio.run(_Reloader(command).run())


class _Reloader:
    """Keeps one process running. That process stops when this one ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._folder = Path.cwd()
        self._stopping = asyncio.Event()
        self._code: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        for number in not_ignored(signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        stop_with_parent(partial(self._stop, signal.SIGTERM), 3 * STOP_TIMEOUT)
        while True:
            before = now = dict(_files(self._folder))
            process, pipe = await self._start()
            while now == before:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), CHECK_INTERVAL)
                if self._stopping.is_set():
                    return await self._final_code(process)
                now = dict(_files(self._folder))
            changed = sorted({name for name, _ in before.items() ^ now.items()})
            log.info("%s changed: restarting", ", ".join(changed[:3]))
            await _end(process)
            pipe.close()
            if self._stopping.is_set():
                return await self._final_code(process)

    async def _start(self) -> tuple[asyncio.subprocess.Process, ParentPipe]:
        with ParentPipe() as pipe:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                start_new_session=True,
                pass_fds=(pipe.child_end,),
                env={**os.environ, **pipe.environment, RELOADED: "1"},
            )
        if self._stopping.is_set():  # the signal came while it started
            _send(self._process, signal.SIGTERM)
        return self._process, pipe

    def _stop(self, number: signal.Signals) -> None:
        """Called for each signal, and when the parent ends."""
        running = self._process is not None and self._process.returncode is None
        if not running and not self._stopping.is_set():
            self._code = 128 + number
        self._stopping.set()
        if self._process:
            _send(self._process, signal.SIGTERM)

    async def _final_code(self, process: asyncio.subprocess.Process) -> int:
        """The exit code of the process, or of the signal if no process ran."""
        code = await process.wait()
        return self._code or (code if code >= 0 else 128 - code)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Stop the process: gracefully, then with jobs handed back, then by force."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        _send(process, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            return


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """The Python files below a folder with their modification times.

    Skips virtual environments, hidden folders, and files that vanish meanwhile or cannot be read.
    """
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError):
            for path in list(folders.pop().iterdir()):
                with contextlib.suppress(OSError):
                    if path.suffix == ".py":
                        yield str(path), path.stat().st_mtime_ns
                    elif path.is_dir() and not path.is_symlink() and not _is_skipped(path):
                        folders.append(path)


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith((".", "__pycache__")) or (folder / "pyvenv.cfg").exists()
