"""What several processes saw of their jobs, each written down when it happened, to be judged afterwards (`checker.py`).

    writing = History(folder)                 one for each process; forks and threads may share it
    writing.note(Enqueued(job, "asked"))      before the call; "accepted" when it came back
    check(read(folder), takeover=5.0)

A file for each process, a line of JSON for each event, appended by one `write`: a process that is killed loses at most
its last line, and with it the right to an answer, never another's. Times are the host's: one host, or clocks in step.
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


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """`at`: seconds since 1970, when it was written down."""

    at: float = msgspec.field(default_factory=time.time)


class Enqueued(_Event, frozen=True, kw_only=True):
    """`asked` stands before the call, so that the job of a producer that dies in it does not come from nowhere; then
    how it came back.

    `unknown`: it raised after it may have been sent. `refused`: certainly nothing was enqueued.
    An id is used once in a history.
    """

    job: str
    answer: Literal["asked", "accepted", "unknown", "refused"]


class Started(_Event, frozen=True, kw_only=True):
    """A worker begins a run. `claim`: of two claims of one job the later has the greater number; it names the run."""

    job: str
    claim: int
    worker: str
    attempt: int = 0


class Ended(_Event, frozen=True, kw_only=True):
    """The function returned, or raised. Its settlement is yet to come."""

    job: str
    claim: int
    returned: bool = True


class Settled(_Event, frozen=True, kw_only=True):
    """What the worker was told of the settlement. `unknown`: no answer came, or one that says nothing of this claim."""

    job: str
    claim: int
    how: Ending | Literal["complete"]
    answer: Literal["accepted", "refused", "unknown"]


class Lost(_Event, frozen=True, kw_only=True):
    """The worker was told that its lease had run out: it dropped what it held."""

    worker: str


class Hit(_Event, frozen=True, kw_only=True):
    """Somebody killed, froze or thawed a worker."""

    worker: str
    how: Literal["killed", "frozen", "thawed"]


class Sure(_Event, frozen=True, kw_only=True):
    """A holder knew at `server` (`held.moment()`, seconds by the server's clock) that it held a lock, or permits of a
    semaphore. The events of one `token` are one holding."""

    name: str
    token: str
    server: float
    fence: int = 0
    permits: int = 0


class Sent(_Event, frozen=True, kw_only=True):
    """A mailbox or a chat took a message, as this number; `key` tells it from others."""

    log: str
    number: int
    key: str


class Opened(_Event, frozen=True, kw_only=True):
    """A reader begins, or begins anew after its process died; `after`: the number it joined at, -1 if it had joined."""

    log: str
    reader: str
    after: int = -1


class Read(_Event, frozen=True, kw_only=True):
    """A reader was given a message, and told that so many before it are `missed`."""

    log: str
    reader: str
    number: int
    key: str
    missed: int = 0


class Acked(_Event, frozen=True, kw_only=True):
    """An acknowledgement was answered."""

    log: str
    reader: str
    number: int


class Outage(_Event, frozen=True, kw_only=True):
    """From here on nobody can be expected to work: the server is down, or all workers are; or it is over."""

    what: str
    over: bool


class Found(_Event, frozen=True, kw_only=True):
    """Where the job was when all was over, by the server; `claim`: of the run whose result is kept, `reason`: of a dead
    letter."""

    job: str
    state: Literal[
        "delayed", "ready", "running", "completed", "dead", "cancelled", "expired", "dropped", "unknown"
    ]  # fmt: skip
    claim: int = 0
    reason: str = ""


Event: TypeAlias = (
    Enqueued | Started | Ended | Settled | Lost | Hit | Outage | Found | Sure | Sent | Opened | Read | Acked
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


# One file a process, however many threads begin at once; and no child is born while it is held.
_opening = threading.Lock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


class History:
    """The part of a history that this process writes. The folder is made where it is missing."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._pid = 0
        self._file = -1

    def note(self, event: Event) -> None:
        """Write an event down. It outlives this process, however that ends (but not the host's memory)."""
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
        if self._pid == os.getpid():
            os.close(self._file)
        self._pid = 0


def read(folder: Path | str) -> list[Event]:
    """All events of all processes, by time. A last line without its end was torn by a kill and is left out.

    Raises ValueError with file and line for any other line that is none.
    """
    events = [event for file in sorted(Path(folder).glob("*.jsonl")) for event in _events(file)]
    return sorted(events, key=lambda event: event.at)


def _events(file: Path) -> Iterator[Event]:
    *lines, _torn = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
