"""`penstock worker --reload`: a command that starts anew when a source file changes."""

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
"""The environment's name for the mark of a process that is started anew from outside: it must not reload itself."""

LOOK_EVERY = 0.5
PATIENCE = 5.0
"""Seconds that running jobs have before they are handed back: whoever saves a file waits for the new code."""


def run(command: Sequence[str]) -> int:
    """Run it until a signal or the parent's end ends it; returns its exit code. One that ends by itself waits for the
    next change."""
    return asyncio.run(_Reloader(command).run())


class _Reloader:
    """Keeps one process. It stops when this one is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._folder = Path.cwd()
        self._stopping = asyncio.Event()
        self._code: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        for number in not_ignored(signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        stop_with_parent(partial(self._stop, signal.SIGTERM), 3 * PATIENCE)
        while True:
            before = now = dict(_files(self._folder))
            process, pipe = await self._start()
            while now == before:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), LOOK_EVERY)
                if self._stopping.is_set():
                    return await self._last(process)
                now = dict(_files(self._folder))
            changed = sorted({name for name, _ in before.items() ^ now.items()})
            log.info("%s changed: starting anew", ", ".join(changed[:3]))
            await _end(process)
            pipe.close()
            if self._stopping.is_set():
                return await self._last(process)

    async def _start(self) -> tuple[asyncio.subprocess.Process, ParentPipe]:
        with ParentPipe() as pipe:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, start_new_session=True, pass_fds=(pipe.child_end,),
                env={**os.environ, **pipe.environment, RELOADED: "1"},
            )  # fmt: skip
        if self._stopping.is_set():  # while it was on its way
            _send(self._process, signal.SIGTERM)
        return self._process, pipe

    def _stop(self, number: signal.Signals) -> None:
        """A signal, each time one comes, or the end of the parent."""
        running = self._process is not None and self._process.returncode is None
        if not running and not self._stopping.is_set():
            self._code = 128 + number
        self._stopping.set()
        if self._process:
            _send(self._process, signal.SIGTERM)

    async def _last(self, process: asyncio.subprocess.Process) -> int:
        """The exit code of the process, unless none ran when the signal came."""
        code = await process.wait()
        return self._code or (code if code >= 0 else 128 - code)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Gracefully, then by handing back, then by force."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        _send(process, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), PATIENCE)
            return


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """The Python files below a folder, with their times; not those of environments and hidden folders, nor what
    vanishes meanwhile or may not be read."""
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError):
            for path in list(folders.pop().iterdir()):
                with contextlib.suppress(OSError):
                    if path.suffix == ".py":
                        yield str(path), path.stat().st_mtime_ns
                    elif path.is_dir() and not path.is_symlink() and not _is_strange(path):
                        folders.append(path)


def _is_strange(folder: Path) -> bool:
    return folder.name.startswith((".", "__pycache__")) or (folder / "pyvenv.cfg").exists()
