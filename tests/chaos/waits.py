"""What a process can wait for: one class for each component, with all that a test needs to know about it.

    prepare(app), join(app)     before the waits begin: hold the lock, create the chat, enqueue the jobs
    follow(app, heard)          in the process that waits: wait for one event after the other, and report its number
    trigger(app, n)             in another process: cause event number n

`follow` is written once for both faces, as a generator. It yields the calls that block: `Call(verb, …)`, or `Next(…)`
for the next item of a loop. `follow_blocking` and `follow_aio` drive it.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from penstock import (
    Barrier,
    Election,
    Keep,
    Latch,
    Leadership,
    LeaseLost,
    Penstock,
    PenstockError,
    Worker,
    WorkerSettings,
)
from penstock.core.slots import slot
from penstock.locks.keys import ElectionKeys, LatchKeys, SemaphoreKeys
from penstock.locks.lock import Lock
from penstock.locks.rwlock import ReadWriteLock, ReadWriteSide
from penstock.locks.semaphore import Semaphore

Heard: TypeAlias = Callable[[int], None]
Steps: TypeAlias = Generator[Any, Any, None]

PREFIX = "waits"

LEASE = 600.0
"""Seconds. What the test holds, it holds for longer than any test takes: only its release ends the wait."""


@dataclass(frozen=True)
class Call:
    """A call of a verb, which may block."""

    verb: Any
    args: tuple[Any, ...] = ()
    wait: bool = False
    """Whether to pass `wait=None`: wait for ever."""

    @property
    def options(self) -> dict[str, Any]:
        return {"wait": None} if self.wait else {}


@dataclass(frozen=True)
class Next:
    """The next item of an iterator that is both blocking and asyncio, as `next()` or `anext()` gives it."""

    iterator: Any


def follow_blocking(steps: Steps) -> None:
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                if isinstance(step, Next):
                    reply = next(step.iterator)
                else:
                    reply = step.verb(*step.args, **step.options)
            except PenstockError as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)


async def follow_aio(steps: Steps) -> None:
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                if isinstance(step, Next):
                    reply = await anext(step.iterator)
                elif isinstance(step, Call):
                    reply = await step.verb.aio(*step.args, **step.options)
                else:
                    reply = await step
            except PenstockError as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)


class Wait(ABC):
    """One wait of one process, for `rounds` events, numbered from 0.

    name  distinguishes this wait in reports. It is the name of the mailbox, the queue, the lock …; if several waits
          share that, it is followed by `#` and a number. In a chat this number is also the name of the member
    """

    faces: ClassVar[tuple[str, ...]] = ("blocking", "aio")
    is_log: ClassVar[bool] = False
    """Whether event number n is message n + 1 of a log, and each wait hears of every message."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        self.rounds = rounds
        self.place, _, self.number = name.partition("#")

    @staticmethod
    @abstractmethod
    def key(app: Penstock, name: str) -> str:
        """A key of the component of this name, from which its slot follows."""

    def prepare(self, app: Penstock) -> None:  # noqa: B027
        """Make the events possible. Called once for all waits that share a place."""

    def join(self, app: Penstock) -> None:  # noqa: B027
        """Make it possible for this wait to hear of the events."""

    @abstractmethod
    def follow(self, app: Penstock, heard: Heard) -> Steps: ...

    @abstractmethod
    def trigger(self, app: Penstock, n: int) -> None: ...


class LockWait(Wait):
    """The test holds a lock for each number; event number n is the release of lock n."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return f"{{{name}}}"

    def _lock(self, app: Penstock, n: int) -> Lock:
        """They share a hash tag, so that they are on the same server."""
        return app.lock(f"{{{self.place}}}:{n}", lease=LEASE)

    def prepare(self, app: Penstock) -> None:
        self._held = [self._lock(app, n).acquire() for n in range(self.rounds)]

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            held = yield Call(self._lock(app, n).acquire)
            heard(n)
            yield Call(held.release)

    def trigger(self, app: Penstock, n: int) -> None:
        """Release it over the connections of this app. Those of the app that acquired it may be dead."""
        app._driver.blocking.run(self._lock(app, n).bindings.release(self._held[n]._packed))


class SemaphoreWait(Wait):
    """The test holds the only permit; event number n is a limit that is higher by one."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return _semaphore(app, name).bindings.declared[0]

    def prepare(self, app: Penstock) -> None:
        _semaphore(app, self.place).acquire()

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            yield Call(_semaphore(app, self.place).acquire)
            heard(n)

    def trigger(self, app: Penstock, n: int) -> None:
        _semaphore(app, self.place).set_limit(n + 2)


def _semaphore(app: Penstock, name: str) -> Semaphore:
    return app.semaphore(name, limit=1, lease=LEASE)


class CandidateWait(Wait):
    """The test leads in an election for each number, in one slot; event number n is that it resigns in election n."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return _election(app, name).bindings.declared[0]

    def _election(self, app: Penstock, n: int) -> Election:
        return _election(app, _name_beside(ElectionKeys, self.place, n))

    def prepare(self, app: Penstock) -> None:
        self._leaderships = [self._election(app, n).campaign() for n in range(self.rounds)]

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            leadership = yield Call(self._election(app, n).campaign)
            heard(n)
            yield Call(leadership.resign)

    def trigger(self, app: Penstock, n: int) -> None:
        _resign(app, self._election(app, n), self._leaderships[n])


class ReaderWait(Wait):
    """The test writes under a read-write lock for each number, in one slot; event number n is the end of write n."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return ReadWriteKeys(PREFIX, name).declared[0]

    def _lock(self, app: Penstock, n: int) -> ReadWriteLock:
        return app.read_write_lock(_name_beside(ReadWriteKeys, self.place, n), lease=LEASE)

    def prepare(self, app: Penstock) -> None:
        self._written = [self._lock(app, n).write().acquire() for n in range(self.rounds)]

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            held = yield Call(self._side(app, n).acquire)
            heard(n)
            yield Call(held.release)

    def _side(self, app: Penstock, n: int) -> ReadWriteSide[Any]:
        return self._lock(app, n).read()

    def trigger(self, app: Penstock, n: int) -> None:
        """Release it over the connections of this app. Those of the app that acquired it may be dead."""
        self._written[n].renewing = False
        app._driver.blocking.run(self._lock(app, n).write().bindings.release(self._written[n]._packed))


class WriterWait(ReaderWait):
    """It waits to write, too."""

    def _side(self, app: Penstock, n: int) -> ReadWriteSide[Any]:
        return self._lock(app, n).write()


class ReadWriteKeys(SemaphoreKeys):
    """The keys of a read-write lock."""

    def __init__(self, prefix: str, name: str) -> None:
        super().__init__(prefix, name, "rwlock")


class ObserverWait(Wait):
    """Event number n is leader number n."""

    key = CandidateWait.key

    def prepare(self, app: Penstock) -> None:
        self._leadership: Leadership | None = None

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        leaders = _election(app, self.place).observe()
        while True:
            leader = yield Next(leaders)
            if leader is not None:
                heard(int(leader.value))

    def trigger(self, app: Penstock, n: int) -> None:
        election = _election(app, self.place, str(n))
        if self._leadership is not None:
            _resign(app, election, self._leadership)
        self._leadership = election.campaign()


def _election(app: Penstock, name: str, value: str = "") -> Election:
    return app.election(name, lease=LEASE, value=value)


def _resign(app: Penstock, election: Election, leadership: Leadership) -> None:
    """Resign over the connections of this app. Those of the app that campaigned may be dead."""
    leadership.renewing = False
    app._driver.blocking.run(election.bindings.release(leadership._packed))


class LatchWait(Wait):
    """There is a latch for each number, in one slot; event number n opens latch n."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.latch(name, count=1).bindings.declared[0]

    def _latch(self, app: Penstock, n: int) -> Latch:
        return app.latch(_name_beside(LatchKeys, self.place, n), count=1)

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            yield Call(self._latch(app, n).wait)
            heard(n)

    def trigger(self, app: Penstock, n: int) -> None:
        self._latch(app, n).count_down()


@cache
def _name_beside(keys: type[ElectionKeys | LatchKeys | ReadWriteKeys], place: str, n: int) -> str:
    """Another name whose keys are in the slot of those of `place`, so that they are on the same server."""
    wanted = slot(keys(PREFIX, place).declared[0])
    names = (f"{place}:{n}:{number}" for number in itertools.count())
    return next(name for name in names if slot(keys(PREFIX, name).declared[0]) == wanted)


class BarrierWait(Wait):
    """A party of a barrier; event number n is the arrival of the other party.

    Its lease is longer than a fail-over takes on a crowded machine.
    """

    @staticmethod
    def _barrier(app: Penstock, name: str) -> Barrier:
        return app.barrier(name, parties=2, lease=20)

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return BarrierWait._barrier(app, name).bindings.declared[0]

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            yield Call(self._barrier(app, self.place).wait)
            heard(n)

    def trigger(self, app: Penstock, n: int) -> None:
        self._barrier(app, self.place).wait()


class ResultWait(Wait):
    """Event number n is the completion of job n."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.queue(name).first.bindings.keys.base

    def prepare(self, app: Penstock) -> None:
        for n in range(self.rounds):
            app.queue(self.place).put(n, id=f"job{n}")

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            heard((yield Call(app.job(f"{self.place}:job{n}").result)))

    def trigger(self, app: Penstock, n: int) -> None:
        (item,) = app.queue(self.place).claim()
        item.complete(item.body)


class ClaimWait(Wait):
    """Event number n is a job."""

    key = ResultWait.key

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        while True:
            for item in (yield Call(app.queue(self.place).claim, wait=True)):
                heard(item.body)
                yield Call(item.complete)

    def trigger(self, app: Penstock, n: int) -> None:
        app.queue(self.place).put(n)


class WorkerWait(Wait):
    """A worker in the process waits; event number n is a job for it."""

    faces = ("aio",)
    key = ResultWait.key

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        app.task(queue=self.place, name=f"note {self.place}")(heard)
        yield Worker(app, WorkerSettings(queues=(self.place,))).run()

    def trigger(self, app: Penstock, n: int) -> None:
        app.task(queue=self.place, name=f"note {self.place}")(_note).enqueue(n)


def _note(n: int) -> None:
    """Runs in the process that waits, as another function of this name."""


class MailboxWait(Wait):
    """Event number n is a message."""

    is_log = True

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.mailbox(name)._log.keys.base

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        box = app.mailbox(self.place)
        while True:
            mail = yield Call(box.pull, wait=True)
            for message in mail:
                heard(message.body)
            yield Call(box.ack, (mail[-1],))

    def trigger(self, app: Penstock, n: int) -> None:
        app.mailbox(self.place).post(n)


class SharedMailboxWait(MailboxWait):
    """One worker of a shared mailbox; event number n is a message."""

    is_log = False

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        box = app.mailbox(self.place)
        while True:
            for claimed in (yield Call(box.claim, wait=True)):
                heard(claimed.body)
                # If the reply is lost, the repeated call reports that the claim has ended.
                with contextlib.suppress(LeaseLost):
                    yield Call(claimed.ack)


class SpaceWait(MailboxWait):
    """A sender waits for space in a full mailbox; event number n is an acknowledgement."""

    is_log = False

    def prepare(self, app: Penstock) -> None:
        box = app.mailbox(self.place)
        box.keep(Keep(messages=1, full="refuse"))
        box.post(-1)

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        for n in range(self.rounds):
            yield Call(app.mailbox(self.place).post, (n,), wait=True)
            heard(n)

    def trigger(self, app: Penstock, n: int) -> None:
        box = app.mailbox(self.place)
        box.ack(box.pull(wait=30)[-1])


class ChatWait(Wait):
    """A loop over the messages of a chat; event number n is a message."""

    is_log = True

    @property
    def member(self) -> str:
        return self.number or "ada"

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.chats.get(name)._log.keys.base

    def prepare(self, app: Penstock) -> None:
        app.chats.create(["bo"], id=self.place)

    def join(self, app: Penstock) -> None:
        app.chats.get(self.place).join(self.member)

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        messages = app.chats.get(self.place).follow(self.member)
        while True:
            heard((yield Next(messages)).body)

    def trigger(self, app: Penstock, n: int) -> None:
        app.chats.get(self.place).send("bo", n)


class UserWait(Wait):
    """A user waits for all chats together; event number n is a message in one of them."""

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.chats.index_of(name).keys.base

    def prepare(self, app: Penstock) -> None:
        for n in range(2):
            app.chats.create([self.place, "bo"], id=f"{self.place}:{n}")

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        mine = app.chats.of(self.place)
        while True:
            mail = yield Call(mine.pull, wait=True)
            for message in mail:
                heard(message.body)
            yield Call(mine.ack, (mail,))

    def trigger(self, app: Penstock, n: int) -> None:
        app.chats.get(f"{self.place}:{n % 2}").send("bo", n)


class FilesWait(Wait):
    """A loop over the lines of a channel; event number n is a file."""

    share = False

    @staticmethod
    def key(app: Penstock, name: str) -> str:
        return app.files(name).bindings.keys.base

    def prepare(self, app: Penstock) -> None:
        app.files(self.place).open(["r"])

    def follow(self, app: Penstock, heard: Heard) -> Steps:
        batches = app.files(self.place).receiver("r").batches(share=self.share)
        while True:
            for line in (yield Next(batches)):
                heard(int(line))

    def trigger(self, app: Penstock, n: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{n}.txt"
            file.write_text(f"{n}\n")
            app.files(self.place).send_lines(file)


class SharedFilesWait(FilesWait):
    """One of several processes that share a receiver; event number n is a file."""

    share = True


WAITS: dict[str, type[Wait]] = {
    "lock": LockWait,
    "permit": SemaphoreWait,
    "reader": ReaderWait,
    "writer": WriterWait,
    "candidate": CandidateWait,
    "observer": ObserverWait,
    "latch": LatchWait,
    "barrier": BarrierWait,
    "result": ResultWait,
    "claimed-job": ClaimWait,
    "worker": WorkerWait,
    "mailbox": MailboxWait,
    "shared-mailbox": SharedMailboxWait,
    "space": SpaceWait,
    "chat": ChatWait,
    "user": UserWait,
    "files": FilesWait,
    "shared-files": SharedFilesWait,
}
