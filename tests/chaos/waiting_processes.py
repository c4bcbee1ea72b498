"""Processes that wait, and report what ends their waits.

Each process is forked from one interpreter that has imported everything. It waits in threads or on an event loop, and
writes a line for each event that it hears of. When the test has ended, for whatever reason, the processes are killed.

    with WaitingProcesses(address, rounds=2) as processes:
        processes.start(Waiting("aio", [("lock", "a"), ("mailbox", "b")]))         components as in `waits.WAITS`
        processes.trigger(app, 0)
        assert processes.late(0, limit=1.0) == []

    python -m tests.chaos.waiting_processes ADDRESS ROUNDS < PROCESSES             the interpreter
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock import Penstock
from penstock.testing.history import Event, MessageRead, MessageSent, ReaderOpened
from tests.chaos.waits import PREFIX, WAITS, Heard, Steps, Wait, follow_aio, follow_blocking
from tests.servers import eventually
from tests.speed import scaled

ROOT = Path(__file__).parents[2]

PATIENCE = float(os.environ.get("PENSTOCK_PATIENCE", "30"))
"""Seconds after which a wait counts as endless. Only a test that fails waits for so long."""


@dataclass(frozen=True)
class Waiting:
    """What one process waits for.

    waits  pairs of a component and a name
    fork   the waits of a child that it forks, at its first event and between its waits
    """

    face: str
    waits: Sequence[tuple[str, str]]
    fork: Waiting | None = None


@dataclass
class Report:
    """An event ended a wait. `who`: the name of the wait; `at`: seconds since 1970."""

    who: str
    n: int
    at: float


class WaitingProcesses:
    """The test's side.

    pids     the process ids, in the order in which the processes were started
    reports  every event that was heard of
    errors   what went wrong in the processes
    """

    def __init__(self, address: str, rounds: int) -> None:
        """Each wait is for `rounds` events."""
        self.pids: list[int] = []
        self.reports: list[Report] = []
        self.errors: list[str] = []
        self.waits: dict[str, Wait] = {}
        self.triggered: dict[tuple[str, int], float] = {}
        self._address, self._rounds = address, rounds
        self._places: dict[str, Wait] = {}
        self._heard: dict[tuple[str, int], float] = {}
        self._started: set[str] = set()
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.waiting_processes", address, str(rounds)],
            env=variables,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, *processes: Waiting) -> None:
        """Prepare the waits of these processes, and start the processes. Returns when all of them begin to wait."""
        waits = [wait for process in processes for wait in _all_waits(process, self._rounds)]
        with Penstock(self._address, prefix=PREFIX) as app:
            for wait in waits:
                if wait.place not in self._places:
                    self._places[wait.place] = wait
                    wait.prepare(app)
                wait.join(app)
        self.waits |= {wait.name: wait for wait in waits}
        assert self._process.stdin is not None
        self._process.stdin.writelines(msgspec.json.encode(process) + b"\n" for process in processes)
        self._process.stdin.flush()
        names = {name for process in processes for _, name in process.waits}  # a fork is made later
        eventually(lambda: self.errors or names <= self._started)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            values = json.loads(line)
            if "pid" in values:
                self.pids.append(values["pid"])
            elif "error" in values:
                self.errors.append(f"{values['who']}: {values['error']}")
            elif "started" in values:
                self._started.add(values["started"])
            else:
                report = Report(**values)
                self.reports.append(report)
                self._heard.setdefault((report.who, report.n), report.at)

    def trigger(self, app: Penstock, n: int, names: Collection[str] = ()) -> None:
        """Cause event number n, for these waits or for all. Waits that share a place share the event."""
        waits = [self.waits[name] for name in names or self.waits]
        for place in dict.fromkeys(wait.place for wait in waits):
            self._places[place].trigger(app, n)
            now = time.time()
            self.triggered |= {(wait.name, n): now for wait in waits if wait.place == place}

    def late(self, n: int, limit: float, since: float = 0.0, names: Collection[str] = ()) -> list[str]:
        """The waits that did not end within `limit` seconds of their event, or of `since` if that was later."""
        names = names or self.waits
        deadline = time.time() + PATIENCE
        while any((name, n) not in self._heard for name in names) and time.time() < deadline and not self.errors:
            time.sleep(0.01)
        assert not self.errors, "\n".join(self.errors)
        took = {name: self._heard.get((name, n), float("inf")) - max(since, self.triggered[name, n]) for name in names}
        print(f"event {n}:", *(f"{name}: {seconds:.2f}" for name, seconds in took.items()), sep="\n  ")
        allowed = scaled(limit)
        return [f"event {n}, {name}: {seconds:.1f} s" for name, seconds in took.items() if seconds > allowed]

    def message_events(self) -> list[Event]:
        """What happened to the logs, for `message_violations`. Event number n is message n + 1 of its log."""
        events: list[Event] = []
        for name, wait in self.waits.items():
            if wait.is_log:
                events.append(ReaderOpened(log=wait.place, reader=name, after=0))
                heard = [one for one in self.reports if one.who == name]
                sent = {n: at for (who, n), at in self.triggered.items() if who == name}
                events += [MessageSent(log=wait.place, number=n + 1, key=str(n), at=at) for n, at in sent.items()]
                events += [
                    MessageRead(log=wait.place, reader=name, number=one.n + 1, key=str(one.n), at=one.at)
                    for one in heard
                ]
        return events

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _all_waits(process: Waiting, rounds: int) -> list[Wait]:
    waits = [WAITS[component](name, rounds) for component, name in process.waits]
    return waits + (_all_waits(process.fork, rounds) if process.fork else [])


def everything(face: str, stem: str, name: Callable[[str, str], str] = lambda _, name: name) -> Waiting:
    """A process that waits for every component. `name`: makes the name of a wait from its component and a stem."""
    components = [component for component, kind in WAITS.items() if face in kind.faces]
    return Waiting(face, [(one, name(one, f"{one}-{face}-{stem}")) for one in components])


# --- in the interpreter that forks ---


def main(address: str, rounds: int) -> None:
    tempfile.gettempdir()  # takes a lock at its first call, which would stay locked in a fork
    for line in sys.stdin.buffer:
        _fork(WaitingProcess(address, rounds, msgspec.json.decode(line, type=Waiting)))
    os.killpg(0, signal.SIGKILL)


def _fork(process: WaitingProcess) -> None:
    pid = os.fork()
    if pid:
        _report(pid=pid)
        return
    try:
        process.run()
    except BaseException:
        _report(who="a process", error=_trace())
    os._exit(1)


def _report(**values: Any) -> None:
    """Write a line. It is short, so that lines of several processes do not mix."""
    os.write(1, json.dumps(values).encode() + b"\n")


def _trace() -> str:
    return traceback.format_exc()[-1500:]


class WaitingProcess:
    """A process that waits for ever."""

    def __init__(self, address: str, rounds: int, what: Waiting, app: Penstock | None = None) -> None:
        self._app = app or Penstock(address, prefix=PREFIX)
        self._address, self._rounds, self._what = address, rounds, what
        self._has_forked = what.fork is None

    def run(self) -> None:
        waits = [WAITS[component](name, self._rounds) for component, name in self._what.waits]
        steps = {wait.name: wait.follow(self._app, self._heard_by(wait.name)) for wait in waits}
        if self._what.face == "aio":
            asyncio.run(self._run_aio(steps))
        else:
            self._run_blocking(steps)

    def _heard_by(self, who: str) -> Heard:
        def heard(n: int) -> None:
            _report(who=who, n=n, at=time.time())
            if not self._has_forked:
                self._has_forked = True
                assert self._what.fork is not None
                _fork(WaitingProcess(self._address, self._rounds, self._what.fork, self._app))

        return heard

    def _run_blocking(self, steps: dict[str, Steps]) -> None:
        def one(who: str) -> None:
            _report(started=who)
            try:
                follow_blocking(steps[who])
            except Exception:
                _report(who=who, error=_trace())

        threads = [threading.Thread(target=partial(one, who)) for who in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        signal.pause()

    async def _run_aio(self, steps: dict[str, Steps]) -> None:
        async def one(who: str) -> None:
            _report(started=who)
            try:
                await follow_aio(steps[who])
            except Exception:
                _report(who=who, error=_trace())

        await asyncio.gather(*map(one, steps))
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
