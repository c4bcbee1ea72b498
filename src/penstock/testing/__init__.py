"""Helpers for tests of code that uses Penstock. Tests run on a real server, with no worker process and no waiting.

A server and a clock:

    TemporaryServer       a Valkey server in a temporary folder, for the length of a `with` block
    clear                 deletes everything that an app has in the server, so that the next test starts fresh
    MovableClock          the server's clock as one app sees it; does not advance until the test moves it
    AppUnderTest          all of these for one app in one test; the pytest fixture `penstock` is one

Jobs:

    enqueued              lists the waiting calls; `assert_enqueued` asserts that a given call waits
    run_jobs              runs the waiting jobs here and now

After the test:

    leaks                 lists what an app should not have left in the server; `assert_no_leaks` raises if it left any

Several processes, some of which are killed:

    number_of             the number of a message, from the id that `post` or `send` returned
    History               records what each process saw, as the events of `penstock.testing.history`
    job_violations        the promises about jobs that a history breaks
    outbox_violations     the promises about calls in a database that a history breaks
    message_violations    the promises about messages that a history breaks
    election_violations, latch_violations, barrier_violations, rate_violations
                          the promises about these that a history breaks
    hold_intervals        who held which lock when, as input for `lock_violations` and `semaphore_violations`
    break_violations      holders that were certain of their hold long after an operator had ended it
    prove                 contends for locks on a server of yours, and judges the history

docs/howto/test.md has examples.

The modules of this folder, in reading order:

    server.py             a temporary server
    running.py            a worker in the test's own process
    waiting.py            the calls that were enqueued
    clock.py              a clock that tests move
    clearing.py           deletes everything of an app
    leaks.py              what an app left behind
    app_under_test.py     all of these for one app in one test
    history.py            what several processes saw
    job_checker.py, coordination_checker.py, message_checker.py, outbox_checker.py
                          check whether a history is possible
"""

from penstock.messages.message import number_of
from penstock.ops.proof import HoldInterval, Proof, lock_violations, prove, semaphore_violations
from penstock.testing.app_under_test import AppUnderTest
from penstock.testing.clearing import clear
from penstock.testing.clock import MovableClock
from penstock.testing.coordination_checker import (
    barrier_violations,
    break_violations,
    election_violations,
    hold_intervals,
    latch_violations,
    rate_violations,
)
from penstock.testing.history import History
from penstock.testing.job_checker import job_violations
from penstock.testing.leaks import assert_no_leaks, leaks
from penstock.testing.message_checker import message_violations
from penstock.testing.outbox_checker import outbox_violations
from penstock.testing.running import RunSummary, run_jobs
from penstock.testing.server import TemporaryServer
from penstock.testing.waiting import WaitingCall, assert_enqueued, enqueued

__all__ = [
    "AppUnderTest",
    "History",
    "HoldInterval",
    "MovableClock",
    "Proof",
    "RunSummary",
    "TemporaryServer",
    "WaitingCall",
    "assert_enqueued",
    "assert_no_leaks",
    "barrier_violations",
    "break_violations",
    "clear",
    "election_violations",
    "enqueued",
    "hold_intervals",
    "job_violations",
    "latch_violations",
    "leaks",
    "lock_violations",
    "message_violations",
    "number_of",
    "outbox_violations",
    "prove",
    "rate_violations",
    "run_jobs",
    "semaphore_violations",
]
