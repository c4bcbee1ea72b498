"""`penstock worker --reload`: restarts a command when a source file changes.

watchfiles, where it is installed, reports a change at once. Otherwise the files are compared twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from pathlib import Path

from penstock.cli import RELOADED
from penstock.terminal.signals import not_ignored
from penstock.worker.parent_pipe import ParentPipe, StopRequests

log = logging.getLogger("penstock.reload")

CHECK_INTERVAL = 0.5
WATCH_INTERVAL = 5.0
"""Seconds between two comparisons where changes are reported. A change before the first report would be missed."""

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
        self._process: _Process | None = None
        self._signal = signal.SIGTERM
        self._stops = 0

    async def run(self) -> int:
        requests = StopRequests(self._stop)

        def signalled(number: signal.Signals) -> None:
            self._signal = number
            requests.signalled()

        for number in not_ignored(signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled, number)
        requests.follow_parent(3 * STOP_TIMEOUT)
        while True:
            before = dict(_files(self._folder))
            process = await self._start()
            changed = await self._changed_since(before)
            if self._stopping.is_set():
                return await self._final_code(process)
            log.info("%s changed: restarting", ", ".join(changed[:3]))
            await process.end()
            process.pipe.close()
            if self._stopping.is_set():
                return await self._final_code(process)

    async def _changed_since(self, before: dict[str, int]) -> list[str]:
        """Wait until a file has changed, or the reloader stops. Returns the names of the changed files."""
        async with contextlib.aclosing(self._may_have_changed()) as reports:
            async for _ in reports:
                now = dict(_files(self._folder))
                if now != before:
                    return sorted({name for name, _ in before.items() ^ now.items()})
        return []

    async def _may_have_changed(self) -> AsyncGenerator[None, None]:
        """Yields when a file may have changed. Ends when the reloader stops."""
        try:
            from watchfiles import awatch
        except ImportError:
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), CHECK_INTERVAL)
                yield
            return
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        reports = awatch(
            self._folder,
            watch_filter=lambda _, path: path.endswith(".py"),
            stop_event=self._stopping,
            rust_timeout=int(WATCH_INTERVAL * 1000),
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        async for _ in reports:
            yield

    async def _start(self) -> _Process:
        with ParentPipe(passes_stops=True) as pipe:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                start_new_session=True,
                pass_fds=(pipe.child_end,),
                env={**os.environ, **pipe.environment, RELOADED: "1"},
            )
        self._process = _Process(process, pipe)
        if self._stops:  # the signal came while it started
            self._process.stop(self._stops)
        return self._process

    def _stop(self) -> None:
        """Called for each request to stop, and when the parent ends."""
        running = self._process is not None and self._process.is_running
        if not running and not self._stopping.is_set():
            self._code = 128 + self._signal
        self._stops += 1
        self._stopping.set()
        if self._process:
            self._process.stop(self._stops)

    async def _final_code(self, process: _Process) -> int:
        """The exit code of the process, or of the signal if no process ran."""
        code = await process.wait()
        return self._code or (code if code >= 0 else 128 - code)


class _Process:
    """A process that the reloader has started."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: ParentPipe) -> None:
        self._process = process
        self.pipe = pipe
        self.wait = process.wait

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def stop(self, number: int) -> None:
        """Pass on the first stop (1), or a further one."""
        self.pipe.pass_stop(number)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def end(self) -> None:
        """Stop the process: gracefully, then with jobs handed back, then by force."""
        for stop in (partial(self.stop, 1), partial(self.stop, 2), self._process.kill):
            with contextlib.suppress(ProcessLookupError):
                stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), STOP_TIMEOUT)
                return


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
