"""For tests of code that uses Penstock: on a real server, without a worker process, without waiting.

TemporaryServer   a Valkey server in a temporary folder, for as long as a `with` block
run_jobs          run what waits, here and now, on any face
clear             delete all of it: a fresh start for the next test
MovableClock      the server's clock as the app sees it: stands still until it is moved
enqueued          the calls that wait; assert_enqueued: this call waits
leaks             what an app left in the server that should not be there; assert_no_leaks
lock_faults, semaphore_faults, holds: the same for who held what; prove: the proof on your own server
History           what several processes saw of their jobs (its events: `penstock.testing.history`); check: can it be?
message_faults    the same for what was sent and read in mailboxes and chats

Tests may run on a `TemporaryServer`, or on any other server under a prefix of their own: docs/howto/test.md.
"""

from penstock.ops.proof import Hold, Proof, lock_faults, prove, semaphore_faults
from penstock.testing.checker import check
from penstock.testing.clearing import clear
from penstock.testing.clock import MovableClock
from penstock.testing.history import History
from penstock.testing.holds import holds
from penstock.testing.leaks import assert_no_leaks, leaks
from penstock.testing.messages import message_faults
from penstock.testing.running import run_jobs
from penstock.testing.server import TemporaryServer
from penstock.testing.waiting import WaitingCall, assert_enqueued, enqueued

__all__ = [
    "History",
    "Hold",
    "MovableClock",
    "Proof",
    "TemporaryServer",
    "WaitingCall",
    "assert_enqueued",
    "assert_no_leaks",
    "check",
    "clear",
    "enqueued",
    "holds",
    "leaks",
    "lock_faults",
    "prove",
    "message_faults",
    "run_jobs",
    "semaphore_faults",
]
