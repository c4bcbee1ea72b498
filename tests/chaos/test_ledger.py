"""Staged effects and durable steps while workers are killed and frozen: none is missing, none is doubled."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

from penstock import Penstock
from tests.chaos import ledger_app
from tests.servers import Server
from tests.speed import Deadline

JOBS = int(os.environ.get("PENSTOCK_LEDGER", "400"))
DURABLE = JOBS // 5


@contextlib.contextmanager
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Worker processes, each with its supervisor in a process group of its own. All are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def start(address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "worker", "tests.chaos.ledger_app:app", "-c", "10"]
    return subprocess.Popen(
        command,
        env=os.environ | {"LEDGER_URL": address},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_ledger_of_staged_effects_and_steps_is_exact_whatever_is_killed_or_frozen():
    with (
        Server() as server,
        contextlib.closing(Penstock(server.address, prefix="ledger")) as app,
        workers() as running,
    ):
        book = app.task(queue="first", name=ledger_app.book.name)(lambda number: None)
        app.enqueue_many(book.call(number) for number in range(JOBS))
        durable = app.task(queue="durable", name=ledger_app.continue_.name)(lambda number: None)
        app.enqueue_many(durable.call(number) for number in range(DURABLE))
        running += [start(server.address) for _ in range(2)]
        deadline, shocks = Deadline(60 + JOBS / 20), 0
        while (done := server.client.hlen(ledger_app.SECOND)) < JOBS or server.client.hlen(
            ledger_app.DURABLE
        ) < DURABLE:
            assert not deadline.passed(), f"{done} of {JOBS} after {shocks} shocks"
            if done * 12 > (shocks + 1) * JOBS and shocks < 4:
                shocks += 1
                victim = running.pop(0)
                if shocks % 2:
                    os.killpg(victim.pid, signal.SIGKILL)
                    victim.wait()
                    running.append(start(server.address))
                else:
                    os.killpg(victim.pid, signal.SIGSTOP)
                    time.sleep(1.5)
                    os.killpg(victim.pid, signal.SIGCONT)
                    running.append(victim)
            time.sleep(0.01)
        assert shocks >= 2, "at least one worker was killed, and one was frozen"
        for queue, ledger in (("first", ledger_app.FIRST), ("second", ledger_app.SECOND)):
            booked = server.client.hgetall(ledger)
            assert booked == {b"%d" % number: b"1" for number in range(JOBS)}
            assert app.queue(queue).count().dead == 0
        assert server.client.hgetall(ledger_app.DURABLE) == {b"%d" % number: b"1" for number in range(DURABLE)}
        seen = Counter(text.rpartition(b" ")[0] for text in server.client.smembers(ledger_app.SEEN))
        steps = [b"%d %d" % (number, place) for number in range(DURABLE) for place in (1, 2, 3)]
        assert seen == dict.fromkeys(steps, 1), "each step returns one result, in all runs of its job"
        assert app.queue("durable").count().dead == 0
