"""Records what several processes saw of their jobs, locks, elections, meetings and messages, for a check afterwards.

    history = History(folder)                      one for each process; its threads and forks may share it
    history.note(Enqueued(job=id, answer="asked"))
    job_violations(read(folder), takeover=5.0)     afterwards, on the histories of all processes

Each process appends to a file of its own: one line of JSON per event, in one `write`. A process that
is killed loses at most its own last line. Times are by the host's clock: record on one host, or on hosts with
synchronised clocks.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from penstock.jobs.claims import Ending

__all__ = [
    "Acknowledged",
    "BarrierArrived",
    "BarrierEnded",
    "CallStored",
    "CallWritten",
    "EffectFound",
    "Ended",
    "Enqueued",
    "Event",
    "FaultInjected",
    "FinalState",
    "History",
    "HoldingBroken",
    "LatchAwaited",
    "LatchCounted",
    "LatchPassed",
    "LeaderSeen",
    "LeaseExpired",
    "MessageRead",
    "MessageSent",
    "Outage",
    "RateGranted",
    "ReaderOpened",
    "Settled",
    "Started",
    "StillHeld",
    "StillLeads",
    "read",
]


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """`at`: when it was recorded, in seconds since 1970."""

    at: float = msgspec.field(default_factory=time.time)


# --- jobs ---


class Enqueued(_Event, frozen=True, kw_only=True):
    """An enqueue, recorded twice: as `asked` before the call, then with its answer.

    If the producer dies during the call, the `asked` event explains a job that appears anyway. Each enqueue needs an id
    of its own.

    asked     the call is about to be made
    accepted  it returned
    unknown   it raised, but the job may have been enqueued
    refused   it raised, and the job was certainly not enqueued
    """

    job: str
    answer: Literal["asked", "accepted", "unknown", "refused"]


class Started(_Event, frozen=True, kw_only=True):
    """A worker began a run. `claim` identifies the run; later claims of the same job have greater numbers."""

    job: str
    claim: int
    worker: str
    attempt: int = 0


class Ended(_Event, frozen=True, kw_only=True):
    """The function of a run returned or raised. The run is not settled yet."""

    job: str
    claim: int
    returned: bool = True


class Settled(_Event, frozen=True, kw_only=True):
    """The server's answer to the settlement of a run. `unknown`: no answer came, or none about this claim."""

    job: str
    claim: int
    how: Ending | Literal["complete"]
    answer: Literal["accepted", "refused", "unknown"]


class LeaseExpired(_Event, frozen=True, kw_only=True):
    """A worker learned that its lease had expired, and dropped its jobs."""

    worker: str


class FaultInjected(_Event, frozen=True, kw_only=True):
    """The test killed, froze or thawed a worker."""

    worker: str
    how: Literal["killed", "frozen", "thawed"]


class Outage(_Event, frozen=True, kw_only=True):
    """The beginning or the end (`over`) of a time in which no job can run: the server is down, or every worker is."""

    what: str
    over: bool


class FinalState(_Event, frozen=True, kw_only=True):
    """A job's state in the server at the end of the test.

    `claim` is that of the run whose result is kept; `reason` is that of a dead letter.
    """

    job: str
    state: Literal[
        "delayed", "sleeping", "ready", "running", "completed", "dead", "cancelled", "expired", "dropped", "unknown"
    ]
    claim: int = 0
    reason: str = ""


# --- calls in a database ---


class CallWritten(_Event, frozen=True, kw_only=True):
    """A call that a transaction has put into an outbox, recorded as `asked` before the commit, then with its end.

    asked        the transaction is about to end
    committed    the commit returned
    rolled back  it was rolled back
    unknown      the commit raised, and the transaction may have been committed
    """

    job: str
    answer: Literal["asked", "committed", "rolled back", "unknown"]


class CallStored(_Event, frozen=True, kw_only=True):
    """A call whose transaction is in the database at the end of the test."""

    job: str


class EffectFound(_Event, frozen=True, kw_only=True):
    """How many effects of a job are in the database at the end of the test."""

    job: str
    times: int


# --- locks and semaphores ---


class StillHeld(_Event, frozen=True, kw_only=True):
    """A holder was certain that it held a lock, or permits of a semaphore, at a moment of the server's clock.

    `server_time` is what `held.moment()` returned. The events of one `token` belong to one holder.
    """

    name: str
    token: str
    server_time: float
    fence: int = 0
    permits: int = 0


class HoldingBroken(_Event, frozen=True, kw_only=True):
    """An operator has taken a lock, or permits of a semaphore, from the holder with this token; see `break_`.

    `server_time` was read from the server's clock before the break, and `until` after it. If the call raised, record
    it without `until`, because the holding may have ended. From `server_time` on the lock may have another owner: the
    holder does not know until its lease is refused, so its later moments do not count.
    """

    name: str
    token: str
    server_time: float
    until: float | None = None


# --- elections, latches, barriers and rate limits ---


class StillLeads(_Event, frozen=True, kw_only=True):
    """A leader was certain that it led at a moment of the server's clock, which `leader.moment()` returned."""

    election: str
    token: str
    server_time: float
    term: int


class LeaderSeen(_Event, frozen=True, kw_only=True):
    """An observer received the next leader. `term` is 0 for a time without a leader."""

    election: str
    observer: str
    term: int


class LatchCounted(_Event, frozen=True, kw_only=True):
    """A process is about to count a latch down by `n`. Calls with the same `key` count once, as with the same id."""

    latch: str
    key: str
    n: int = 1


class LatchAwaited(_Event, frozen=True, kw_only=True):
    """A process is about to wait for a latch."""

    latch: str
    waiter: str


class LatchPassed(_Event, frozen=True, kw_only=True):
    """A wait for a latch has returned: the latch is open."""

    latch: str
    waiter: str


class BarrierArrived(_Event, frozen=True, kw_only=True):
    """A party is about to wait at a barrier."""

    barrier: str
    party: str


class BarrierEnded(_Event, frozen=True, kw_only=True):
    """The wait of a party has ended: it passed, it got BarrierBroken, or it left, because it timed out.

    `generation` and `index` are those of `BarrierPass`; `BarrierBroken` has only the generation. Record nothing
    if the call failed in another way, because then the end is unknown.
    """

    barrier: str
    party: str
    outcome: Literal["passed", "broken", "left"]
    generation: int = 0
    index: int = -1


class RateGranted(_Event, frozen=True, kw_only=True):
    """A rate limit has allowed units. Record it as soon as the call has returned."""

    rate: str
    units: int = 1


# --- messages ---


class MessageSent(_Event, frozen=True, kw_only=True):
    """A mailbox or a chat accepted a message under this number; `key` identifies the message."""

    log: str
    number: int
    key: str


class ReaderOpened(_Event, frozen=True, kw_only=True):
    """A reader began to read, or began again in a new process.

    `after` is the last number before it joined; -1 if it had joined earlier.
    """

    log: str
    reader: str
    after: int = -1


class MessageRead(_Event, frozen=True, kw_only=True):
    """A reader received a message. `missed` is the number of lost messages that was reported with it."""

    log: str
    reader: str
    number: int
    key: str
    missed: int = 0


class Acknowledged(_Event, frozen=True, kw_only=True):
    """The server answered a reader's acknowledgement of every message up to `number`."""

    log: str
    reader: str
    number: int


Event: TypeAlias = (
    Enqueued
    | Started
    | Ended
    | Settled
    | LeaseExpired
    | FaultInjected
    | Outage
    | FinalState
    | CallWritten
    | CallStored
    | EffectFound
    | StillHeld
    | HoldingBroken
    | StillLeads
    | LeaderSeen
    | LatchCounted
    | LatchAwaited
    | LatchPassed
    | BarrierArrived
    | BarrierEnded
    | RateGranted
    | MessageSent
    | ReaderOpened
    | MessageRead
    | Acknowledged
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


# Held while a process opens its file, so that only one of its threads does. Held during a fork too, so that the child
# does not copy a `History` that is being opened.
_opening = threading.Lock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


class EventHistory:
    """Records the events of this process in a history. A missing folder is created."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._pid = 0
        self._file = -1

    def note(self, event: Event) -> None:
        """Record an event. It survives any end of this process, but not a crash of the host."""
        if self._pid != os.getpid():
            with _opening:
                self._open()
        os.write(self._file, _encoder.encode(event) + b"\n")

    def _open(self) -> None:
        if self._pid != os.getpid():
            name = f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            self._file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._pid = os.getpid()

    def close(self) -> None:
        """Close this process's file. A later `note` opens another one."""
        if self._pid == os.getpid():
            os.close(self._file)
        self._pid = 0


History = EventHistory
"""The public name in `penstock.testing`. `penstock.History` is another class, which says how much a chat keeps."""


def read(folder: Path | str) -> list[Event]:
    """The events of all processes, by time.

    An incomplete last line is ignored: the process was killed while it wrote. Raises ValueError, with file
    and line, for any other line that is not an event.
    """
    events = [event for file in sorted(Path(folder).glob("*.jsonl")) for event in _events(file)]
    return sorted(events, key=lambda event: event.at)


def _events(file: Path) -> Iterator[Event]:
    *lines, _cut_line = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
