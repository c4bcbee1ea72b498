"""Processes contend for a lock and a semaphore while they are killed and frozen, an operator breaks what they hold,
connections are cut, scripts are flushed, the server is restarted, and each process's clock is wrong by up to a minute.
Their histories are checked."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock import Penstock
from penstock.errors import ServerError
from penstock.ops.inspect import Inspector
from penstock.testing import (
    History,
    HoldInterval,
    break_violations,
    hold_intervals,
    lock_violations,
    prove,
    semaphore_violations,
)
from penstock.testing.history import Event, HoldingBroken, StillHeld, read
from tests.servers import Server, eventually
from tests.speed import scaled

LOCK_PROCESS = Path(__file__).with_name("lock_process.py")
LEASE = 0.8  # as in lock_process.py
LIMIT = 3
UNCONFIRMED = 2.0  # seconds for which the grant to a waiter lasts before its first renewal: longer than the lease


class LockProcesses:
    """Several lock processes, each with a clock of its own."""

    def __init__(self, address: str, folder: Path, seed: int, size: int) -> None:
        self.address, self.folder = address, folder
        self.chance = random.Random(seed)
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = seed * 1000
        self.frozen: list[tuple[float, subprocess.Popen[bytes]]] = []
        for _ in range(size):
            self.start()

    def start(self) -> None:
        self.started += 1
        clock_error = self.chance.choice([-60, 0, 60])
        words = [sys.executable, str(LOCK_PROCESS), self.address, str(self.folder), str(self.started), str(clock_error)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.running.append(subprocess.Popen(words, stdin=subprocess.PIPE, env=environment))

    def kill(self) -> None:
        one = self.running.pop(self.chance.randrange(len(self.running)))
        one.kill()
        self._reap(one)
        self.start()

    def _reap(self, one: subprocess.Popen[bytes]) -> None:
        assert one.stdin is not None
        one.stdin.close()
        one.wait()
        self.frozen = [pair for pair in self.frozen if pair[1] is not one]

    def freeze(self) -> None:
        """Freeze a process for longer than a lease."""
        one = self.chance.choice(self.running)
        one.send_signal(signal.SIGSTOP)
        self.frozen.append((time.monotonic() + LEASE * self.chance.uniform(1.1, 2), one))

    def thaw(self) -> None:
        for until, one in self.frozen:
            if until <= time.monotonic():
                one.send_signal(signal.SIGCONT)
        self.frozen = [pair for pair in self.frozen if pair[0] > time.monotonic()]

    def end(self) -> list[int]:
        """End all processes. Returns their exit codes."""
        for one in self.running:
            one.send_signal(signal.SIGCONT)
            assert one.stdin is not None
            one.stdin.close()
        return [one.wait(scaled(60)) for one in self.running]

    def close(self) -> None:
        for one in self.running:
            one.kill()
            self._reap(one)


@pytest.fixture
def processes(start: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, LockProcesses]]:
    server = start("--appendonly", "yes", "--appendfsync", "no")  # a kill of the process loses nothing
    made = LockProcesses(server.address, tmp_path, seed=random.randrange(1000), size=5)
    print(f"seed {made.started // 1000}")  # pytest shows it if the test fails
    yield server, made
    made.close()


def break_holdings(address: str, folder: Path, chance: random.Random, over: threading.Event) -> None:
    """An operator takes the lock and permits from holders that were seen a moment before."""
    history = History(folder)
    with Penstock(address) as app:
        inspector, lock, semaphore = Inspector(app), app.lock("chaos"), app.semaphore("chaos", limit=LIMIT)
        while not over.wait(chance.uniform(0.02, 0.2)):
            with contextlib.suppress(ServerError):
                noun = chance.choice([lock, semaphore])
                holder, permits = lock.info().holder, semaphore.info().holders
                holders = list(permits) if noun is semaphore else [holder] if holder is not None else []
                before = inspector.now()
                for one in holders:
                    broken = HoldingBroken(name="chaos", token=one.token, server_time=before)
                    try:
                        if noun.break_("storm", token=one.token):
                            history.note(msgspec.structs.replace(broken, until=inspector.now()))
                    except ServerError:  # it may have been broken
                        history.note(broken)
                    (part,) = noun.breakable_parts()
                    time.sleep(chance.uniform(0, 0.03))
                    late_copy = part.end_holding(one.token, "storm")
                    app._driver.blocking.run(late_copy)  # takes nothing from the next owner


def test_locks_exclude_and_semaphores_keep_their_limit_under_failures(processes: tuple[Server, LockProcesses]):
    server, contenders = processes

    cuts = [server.cut_calls, server.cut_subscribers, server.cut_subscribers]
    failures = [contenders.kill, contenders.freeze, contenders.freeze, *cuts, server.client.script_flush]
    eventually(lambda: len(hold_intervals(read(contenders.folder))) > 10, within=60)
    until = time.monotonic() + 6
    restart_at = time.monotonic() + 3
    over = threading.Event()
    words = (server.address, contenders.folder, contenders.chance, over)
    operator = threading.Thread(target=break_holdings, args=words)
    operator.start()
    while time.monotonic() < until:
        contenders.thaw()
        contenders.chance.choice(failures)()
        time.sleep(contenders.chance.uniform(0.1, 0.7))
        if restart_at < time.monotonic():
            restart_at = until
            server.restart()
            failures[-1] = server.client.script_flush
    over.set()
    operator.join(scaled(30))
    assert contenders.end() == [0] * 5
    events = read(contenders.folder)
    found = hold_intervals(events)
    locks, permits = [hold for hold in found if hold.fence], [hold for hold in found if hold.permits]
    assert len(locks) > 3
    assert len(permits) > 3
    assert any(isinstance(event, HoldingBroken) for event in events)
    assert lock_violations(locks) == []
    assert semaphore_violations(permits, LIMIT) == []
    assert break_violations(events, within=UNCONFIRMED) == []
    with Penstock(server.address) as app:
        eventually(lambda: app.semaphore("chaos", limit=LIMIT).info().held == 0, within=30)
        eventually(lambda: app.lock("chaos", lease=1).info().holder is None, within=30)


def test_the_proof_for_a_users_own_server(start: Callable[..., Server]):
    with Penstock(start().address) as app:
        for seconds in (1.5, 6, 24):  # on a busy machine, few of the requests are granted in the first
            proof = prove(app, seconds=seconds)
            assert proof.violations == []
            if proof.locks > 10 and proof.permits > 10:
                break
        else:
            pytest.fail(f"few of the requests were granted: {proof}")


# --- histories with faults ---


def hold(began: float, ended: float, fence: int = 0, permits: int = 0) -> HoldInterval:
    return HoldInterval("x", f"t{began}", began, ended, fence, permits)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([hold(1, 2, 1), hold(3, 4, 2)], None),
        ([hold(1, 3, 1), hold(2, 4, 2)], "lock 'x': t2 held it at 2.000000, t1 until 3.000000"),
        ([hold(1, 9, 1), hold(10, 11, 2), hold(10.5, 12, 3)], "t10.5 held it at 10.5"),
        ([hold(1, 9, 1), hold(2, 3, 2), hold(8, 10, 3)], "t8 held it at 8.000000, t1 until 9"),
        ([hold(3, 4, 1), hold(1, 2, 2)], "fence 1 of t3 came after 2 of t1"),
        ([hold(1, 2, 1), hold(3, 4, 1)], "fence 1 of t3 came after 1 of t1"),
    ],
)
def test_two_holders_at_once_and_a_falling_fence_are_found(history: list[HoldInterval], fault: str | None):
    found = lock_violations(history)
    assert (found == []) if fault is None else any(fault in one for one in found)


def claim(token: str, at: float, fence: int) -> StillHeld:
    return StillHeld(name="x", token=token, server_time=at, fence=fence)


def test_what_a_holder_claims_after_a_break_does_not_count_and_must_end_with_its_lease():
    broken = HoldingBroken(name="x", token="a", server_time=2, until=2)
    events: list[Event] = [claim("a", 1, 1), claim("a", 2.5, 1), claim("b", 2.2, 2), claim("b", 3, 2), broken]
    assert lock_violations(hold_intervals(events)) == []
    assert break_violations(events, within=0.8) == []
    (late,) = break_violations([*events, claim("a", 3, 1)], within=0.8)
    assert late == "'x': a was certain of its hold 1.000 s after it was broken"
    again: list[Event] = [broken, claim("a", 3.5, 3)]  # its first grant was broken before it knew of it
    assert break_violations(again, within=0.8) == []


def test_a_break_that_takes_the_lock_of_the_next_owner_is_found():
    broken = HoldingBroken(name="x", token="a", server_time=2)
    events: list[Event] = [claim("a", 1, 1), broken, claim("b", 2.1, 2), claim("b", 2.5, 2), claim("c", 2.3, 3)]
    (fault,) = lock_violations(hold_intervals(events))
    assert fault == "lock 'x': c held it at 2.300000, b until 2.500000"


def test_too_many_permits_are_found():
    good = [hold(1, 3, permits=2), hold(2, 4, permits=1), hold(3.5, 5, permits=2)]
    assert semaphore_violations(good, 3) == []
    (fault,) = semaphore_violations([*good, hold(3.7, 3.8, permits=1)], 3)
    assert fault == "semaphore 'x': 4 permits were held at 3.700000, the limit is 3"
