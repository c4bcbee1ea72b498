"""Every component at work at once, and what must hold of it afterwards, whatever happened to the servers meanwhile.

    with Load(app) as load:                 one program, with a thread or a task for each part of the work
        fail()
        load.until_all_continue()           every part has done something since
    assert load.violations() == []          what was accepted is there, once, in order; nothing was held by two

The work is written once for both faces, as generators: they yield seconds to sleep, or a `partial` that calls a verb. A
server that falls back to its replica forgets what that had not received yet; `violations(upto=…)` then ignores what was
answered later than this moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from penstock import Item, LeaseLost, NotDurable, Penstock, PenstockError, ServerError
from penstock.errors import BarrierBroken, ChannelError, NewBeginning
from penstock.jobs.job_list import JobSummary
from penstock.jobs.queue import Queue
from penstock.messages.message import number_of
from penstock.testing import (
    barrier_violations,
    election_violations,
    hold_intervals,
    latch_violations,
    lock_violations,
    rate_violations,
    semaphore_violations,
)
from penstock.testing.history import (
    BarrierArrived,
    BarrierEnded,
    Event,
    LatchAwaited,
    LatchCounted,
    LatchPassed,
    LeaderSeen,
    RateGranted,
    StillHeld,
    StillLeads,
)
from tests.chaos import switch_app
from tests.servers import eventually

Steps: TypeAlias = Generator[Any, Any, None]
Name: TypeAlias = Callable[[Callable[[str], str], str], str]
"""Makes a name from the function that gives the key for a name, and from the beginning of the name."""

PAUSE = 0.01
LEASE = 2.0
KEPT_ROWS = 10_000
"""Rows that each shard keeps at least."""

NAMES = 500
"""In the directory at most."""


class Work(ABC):
    """The work with one component. `parts` run at the same time; each counts in `done` what it has done.

    `upto`: what was answered after this moment may be lost.
    """

    kind: ClassVar[str]
    tag: ClassVar[str]
    """As it is in the names of its keys."""
    is_blocking: ClassVar[bool] = False
    """Whether its parts yield functions that are no verbs."""

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        self.app, self.name, self.over, self.pause = app, name, over, PAUSE
        self.done = Counter[str]()
        self.done_at: dict[str, list[float]] = {}
        """Part -> when it has done something, by `time.monotonic()`."""
        self.new_beginnings: list[str] = []
        """What was said of logs that began again: the server has lost what it had answered."""
        self.events: list[Event] = []
        self.answered: dict[Any, float] = {}
        """What the server accepted -> when."""
        self.numbers = itertools.count()

    @classmethod
    def key(cls, app: Penstock, name: str) -> str:
        """A key of the component of this name, from which its slot follows."""
        return f"{{{app.settings.prefix}:{cls.tag}:{name}}}:"

    @property
    @abstractmethod
    def parts(self) -> Sequence[Callable[[], Steps]]: ...

    @abstractmethod
    def violations(self, upto: float) -> Iterable[str]: ...

    def loop(self, part: Callable[[], Steps]) -> Steps:
        name = part.__name__
        while not self.over.is_set():
            try:
                yield from part()
                self.done[name] += 1
                self.done_at.setdefault(name, []).append(time.monotonic())
            except NewBeginning as error:
                self.new_beginnings.append(str(error))
            except (TimeoutError, LeaseLost, BarrierBroken, ServerError, ChannelError):
                pass
            yield self.pause

    def seen(self, upto: float) -> list[Event]:
        return [event for event in self.events if event.at < upto]

    def lost(self, found: Iterable[Any], upto: float) -> list[str]:
        """A sentence for what was accepted before `upto`, and is not among those that were found."""
        there = set(found)
        missing = [one for one, at in self.answered.items() if at < upto and one not in there]
        return [f"{self.kind}: {len(missing)} of {len(self.answered)} were lost, such as {missing[:3]}"] * bool(missing)

    def doubled(self, found: Counter[Any], upto: float) -> list[str]:
        """A sentence for what was found more than once, if nothing may have been lost."""
        twice = [one for one, times in found.items() if times > 1] if upto == math.inf else []
        return [f"{self.kind}: {len(twice)} came twice, such as {twice[:3]}"] * bool(twice)


def ended_jobs(queue: Queue, state: str = "ended") -> Iterator[JobSummary]:
    """The rows of jobs that have ended, the latest first."""
    jobs, cursor = queue.jobs(state=state), None
    while True:
        page = jobs.page(1000, cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


class JobWork(Work):
    kind = "queue"
    wait = 0.5

    @classmethod
    def key(cls, app: Penstock, name: str) -> str:
        return f"{{{app.settings.prefix}:{name}}}:"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.queue = app.queue(name)
        self.completed = Counter[int]()

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.put, self.claim)

    def put(self) -> Steps:
        some = [next(self.numbers) for _ in range(4)]
        yield partial(self.queue.put_many, some, tenant=f"t{some[0] % 3}")
        self.answered |= dict.fromkeys(some, time.time())

    def claim(self) -> Steps:
        for item in (yield partial(self.queue.claim, 10, wait=self.wait)):  # more than one `put`, so no backlog grows
            with contextlib.suppress(LeaseLost):
                yield partial(item.complete)
                self.completed[self.number(item)] += 1

    def number(self, item: Item) -> int:
        return int(item.body)

    def violations(self, upto: float) -> Iterable[str]:
        def drained() -> bool:
            for item in self.queue.claim(20):
                item.complete()
                self.completed[self.number(item)] += 1
            count = self.queue.count()
            return not count.waiting and not count.running

        eventually(drained)
        return self.lost(self.completed, upto) + self.doubled(self.completed, upto) + self.wrong_rows()

    def wrong_rows(self) -> list[str]:
        """Each completion has one row, because the script that completes a job writes it."""
        rows = Counter(row.id for row in ended_jobs(self.queue, "completed"))
        completed, twice = self.queue.count().completed, [job for job, n in rows.items() if n > 1]
        missing = min(completed, KEPT_ROWS) - rows.total()
        return [f"{self.kind}: {missing} of {completed} jobs have no row"] * (missing > 0) + [
            f"{self.kind}: job {job} has {rows[job]} rows" for job in twice
        ]


class ShardedJobWork(JobWork):
    """Each bulk enqueue is for several shards, and each claim waits for all of them."""

    kind = "queue with shards"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        Work.__init__(self, app, name, over)
        self.queue = app.queue(name, shards=2)
        self.completed = Counter[int]()

        @app.task(queue=name, name=f"{name}.note")
        def note(n: int) -> None: ...

        self.note = note

    def put(self) -> Steps:
        some = [next(self.numbers) for _ in range(6)]
        yield partial(self.app.enqueue_many, [self.note.using(tenant=f"t{n % 5}").call(n) for n in some])
        self.answered |= dict.fromkeys(some, time.time())

    def number(self, item: Item) -> int:
        return int(item.body[1]["n"])


class WorkerWork(JobWork):
    """Jobs that a worker runs, in a process of its own (`switch_app.py`), which the test starts."""

    kind = "worker"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.note = switch_app.register(app, name)
        self.durable: set[int] = set()
        self.doubts = 0

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.enqueue, self.enqueue_durably, self.await_result)

    def enqueue(self) -> Steps:
        n = next(self.numbers)
        yield partial(self.note.enqueue, n)
        self.answered[n] = time.time()

    def enqueue_durably(self) -> Steps:
        n = next(self.numbers)
        try:
            yield partial(self.note.using(durable=True).enqueue, n)
            self.durable.add(n)
        except NotDurable:
            self.doubts += 1

    def await_result(self) -> Steps:
        job = yield partial(self.note.enqueue, next(self.numbers))
        yield partial(job.result, timeout=10)

    def violations(self, upto: float) -> Iterable[str]:
        """The queue has to be empty. `done` has what each job staged."""
        missing = [n for n in self.durable if n not in self.completed]
        return (
            self.lost(self.completed, upto)
            + [f"{self.kind}: {len(missing)} durable jobs were lost, such as {missing[:3]}"] * bool(missing)
            + self.doubled(self.completed, math.inf)
            + self.wrong_rows()
        )


class LockWork(Work):
    kind = "lock"

    @classmethod
    def key(cls, app: Penstock, name: str) -> str:
        return f"{{{name}}}"

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.hold, self.hold_too)

    def hold(self) -> Steps:
        held = yield partial(self.app.lock(self.name, lease=LEASE, wait=1).acquire)
        for _ in range(2):
            moment = yield partial(held.moment)
            self.events.append(StillHeld(name=self.name, token=held.token, server_time=moment, fence=held.fence))
        yield partial(held.release)

    def hold_too(self) -> Steps:
        yield from self.hold()

    def violations(self, upto: float) -> Iterable[str]:
        return lock_violations(hold_intervals(self.seen(upto)))


class SemaphoreWork(Work):
    kind, tag = "semaphore", "semaphore"

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.hold, self.hold_too, self.hold_as_well)

    def hold(self) -> Steps:
        permit = yield partial(self.app.semaphore(self.name, limit=2, lease=LEASE, wait=1).acquire)
        for _ in range(2):
            moment = yield partial(permit.moment)
            self.events.append(StillHeld(name=self.name, token=permit.token, server_time=moment, permits=1))
        yield partial(permit.release)

    def hold_too(self) -> Steps:
        yield from self.hold()

    def hold_as_well(self) -> Steps:
        yield from self.hold()

    def violations(self, upto: float) -> Iterable[str]:
        return semaphore_violations(hold_intervals(self.seen(upto)), 2)


class ElectionWork(Work):
    kind, tag = "election", "election"

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.lead, self.lead_too, self.observe)

    def lead(self) -> Steps:
        leader = yield partial(self.app.election(self.name, lease=LEASE, wait=1).campaign)
        for _ in range(2):
            moment = yield partial(leader.moment)
            event = StillLeads(election=self.name, token=leader.token, server_time=moment, term=leader.term)
            self.events.append(event)
        yield partial(leader.resign)

    def lead_too(self) -> Steps:
        yield from self.lead()

    def observe(self) -> Steps:
        leader = yield partial(self.app.election(self.name).observe().fetch, 0.5)
        term = 0 if leader is None else leader.term
        self.events.append(LeaderSeen(election=self.name, observer="one", term=term))

    def violations(self, upto: float) -> Iterable[str]:
        return election_violations(self.seen(upto))


class RateWork(Work):
    kind, tag = "rate limit", "rate"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.limit = app.rate_limit(name, limit=20, per=1, burst=5, wait=1)
        self.began = time.time()

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.take, self.take_too)

    def take(self) -> Steps:
        yield partial(self.limit.acquire)
        self.events.append(RateGranted(rate=self.name))

    def take_too(self) -> Steps:
        yield from self.take()

    def violations(self, upto: float) -> Iterable[str]:
        # A reply that was late is recorded late, so only the whole is compared.
        took = time.time() - self.began
        return rate_violations(self.seen(upto), limit=20, per=1, burst=5, slack=took)


class LatchWork(Work):
    kind, tag = "latch", "latch"

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.meet, self.meet_too)

    def meet(self, me: str = "one") -> Steps:
        """There is a latch for each second."""
        name = f"{self.name}-{int(time.time())}"
        latch = self.app.latch(name, count=2)
        self.events.append(LatchCounted(latch=name, key=me))
        yield partial(latch.count_down, id=me)
        self.events.append(LatchAwaited(latch=name, waiter=me))
        yield partial(latch.wait, 1.5)
        self.events.append(LatchPassed(latch=name, waiter=me))
        yield 0.2

    def meet_too(self) -> Steps:
        yield from self.meet("two")

    def violations(self, upto: float) -> Iterable[str]:
        events = self.seen(upto)
        counts = {event.latch: 2 for event in events if isinstance(event, LatchPassed)}
        return latch_violations(events, counts, all_waited=False)


class BarrierWork(Work):
    kind, tag = "barrier", "barrier"

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.meet, self.meet_too)

    def meet(self) -> Steps:
        party = f"party {next(self.numbers)}"
        self.events.append(BarrierArrived(barrier=self.name, party=party))
        met = yield partial(self.app.barrier(self.name, parties=2, lease=LEASE).wait, 3)
        self.events.append(
            BarrierEnded(barrier=self.name, party=party, outcome="passed", generation=met.generation, index=met.index)
        )

    def meet_too(self) -> Steps:
        yield from self.meet()

    def violations(self, upto: float) -> Iterable[str]:
        return barrier_violations(self.seen(upto), {self.name: 2})


class MailboxWork(Work):
    kind, tag = "mailbox", "mailbox"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.read: list[tuple[int, int]] = []
        self.box: Any = self.make()

    def make(self) -> Any:
        return self.app.mailbox(self.name)

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.send, self.receive)

    def send(self) -> Steps:
        n = next(self.numbers)
        yield partial(self.box.post, n, id=str(n))
        self.answered[n] = time.time()

    def receive(self) -> Steps:
        mail = yield partial(self.box.pull, wait=0.5)
        if mail:
            yield partial(self.box.ack, mail[-1])
            self.read += [(number_of(message.id), message.body) for message in mail]

    def drain(self) -> None:
        while mail := self.box.pull():
            self.read += [(number_of(message.id), message.body) for message in mail]
            self.box.ack(mail[-1])

    def violations(self, upto: float) -> Iterable[str]:
        self.drain()
        numbers = Counter(number for number, _ in self.read)
        bodies = Counter(body for _, body in self.read)
        # A pull whose acknowledgement failed is repeated.
        return self.lost(bodies, upto) + [
            f"{self.kind}: {len(bodies)} messages under {len(numbers)} numbers"
            for _ in range(upto == math.inf and len(bodies) != len(numbers))
        ]


class ChatWork(MailboxWork):
    kind, tag = "chat", "chat"

    def make(self) -> Any:
        self.chat = self.app.chats.create(["ada", "bo"], id=self.name)
        return self.chat.reader("ada")

    def send(self) -> Steps:
        n = next(self.numbers)
        sent = yield partial(self.chat.send, "bo", n, id=str(n))
        self.answered[n] = time.time()
        yield partial(self.chat.reader("bo").ack, sent)  # or the chat would keep all messages for its sender


class SharedMailboxWork(MailboxWork):
    kind = "shared mailbox"

    def receive(self) -> Steps:
        for claimed in (yield partial(self.box.claim, 5, wait=0.5, lease=LEASE)):
            self.read.append((number_of(claimed.id), claimed.body))
            yield partial(claimed.ack)

    def drain(self) -> None:
        def is_empty() -> bool:
            for claimed in self.box.claim(20):
                self.read.append((number_of(claimed.id), claimed.body))
                claimed.ack()
            return not self.box.unread()

        eventually(is_empty)


class DirectoryWork(Work):
    kind, tag = "directory", "directory"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.directory = app.directory(name)

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.add, self.complete)

    def add(self) -> Steps:
        """Add a name, and remove an old one, so that the directory does not grow for ever."""
        n = next(self.numbers)
        yield partial(self.directory.add, f"name {n}", str(n))
        self.answered[str(n)] = time.time()
        if self.answered.pop(old := str(n - NAMES), None):
            yield partial(self.directory.remove, old)

    def complete(self) -> Steps:
        yield partial(self.directory.complete, "name", limit=5)

    def violations(self, upto: float) -> Iterable[str]:
        return self.lost([id for id in self.answered if self.directory.get(id)], upto)


class ContactsWork(Work):
    kind, tag = "contacts", "contacts"

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.contacts = app.contacts(name)

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.touch,)

    def touch(self) -> Steps:
        n = next(self.numbers) % 50
        yield partial(self.contacts.touch, f"name {n}")
        self.answered.setdefault(f"name {n}", time.time())

    def violations(self, upto: float) -> Iterable[str]:
        return self.lost(self.contacts.list(), upto)


class FilesWork(Work):
    kind, tag = "files", "files"
    is_blocking = True

    def __init__(self, app: Penstock, name: str, over: threading.Event) -> None:
        super().__init__(app, name, over)
        self.channel = app.files(name)
        self.channel.open(["r"])
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-load-")
        self.received = Counter[bytes]()

    @property
    def parts(self) -> Sequence[Callable[[], Steps]]:
        return (self.send, self.receive)

    def send(self) -> Steps:
        n = next(self.numbers)
        file = Path(self.folder.name) / f"{n}.txt"
        lines = [f"{n}-{line}" for line in range(10)]
        file.write_text("\n".join(lines) + "\n")
        yield partial(self.channel.send_lines, file)
        self.answered |= dict.fromkeys((line.encode() for line in lines), time.time())
        yield 0.1

    def receive(self) -> Steps:
        yield self.take

    def take(self) -> None:
        """Some lines: the sender is often faster."""
        with self.channel.receiver("r").lines(wait=0.3, lease=LEASE) as lines:
            self.received.update(map(bytes, itertools.islice(lines, 200)))

    def violations(self, upto: float) -> Iterable[str]:
        for line in self.channel.receiver("r").lines(wait=0.3):
            self.received[bytes(line)] += 1
        self.folder.cleanup()
        return self.lost(self.received, upto)


WORK: tuple[type[Work], ...] = (
    JobWork,
    ShardedJobWork,
    LockWork,
    SemaphoreWork,
    ElectionWork,
    RateWork,
    LatchWork,
    BarrierWork,
    MailboxWork,
    ChatWork,
    SharedMailboxWork,
    DirectoryWork,
    ContactsWork,
    FilesWork,
)


class Load:
    """All components at work. Leaving the block ends the work.

    face  "blocking": a thread for each part; "aio": a task for each part, except for those that only block
    name  makes the names; by default the kind of component
    pause seconds between two steps of a part
    """

    def __init__(
        self,
        app: Penstock,
        face: str = "blocking",
        name: Name | None = None,
        kinds: Sequence[type[Work]] = WORK,
        pause: float = PAUSE,
    ) -> None:
        self._over = threading.Event()
        self._errors: list[str] = []
        self.work: list[Work] = []
        for number, kind in enumerate(kinds):
            stem = f"n{number}"
            key = partial(kind.key, app)
            self.work.append(kind(app, name(key, stem) if name else stem, self._over))
            self.work[-1].pause = pause
        blocking = [one for one in self.work if face == "blocking" or one.is_blocking]
        others = [one for one in self.work if one not in blocking]
        self._threads = [
            threading.Thread(target=self._run_blocking, args=(one, part)) for one in blocking for part in one.parts
        ]
        if others:
            self._threads.append(threading.Thread(target=lambda: asyncio.run(self._run_loop(app, others))))

    def until_all_continue(self, within: float = 30.0) -> None:
        """Wait until every part of the work has done something since this call."""
        before = [dict(one.done) for one in self.work]

        def lagging() -> list[str]:
            return [
                f"{one.kind}.{part.__name__}"
                for one, done in zip(self.work, before, strict=True)
                for part in one.parts
                if one.done[part.__name__] <= done.get(part.__name__, 0)
            ]

        try:
            eventually(lambda: self._errors or not lagging(), within)
        except AssertionError:
            raise AssertionError(f"these have not continued: {', '.join(lagging())}") from None
        assert not self._errors, "\n".join(self._errors)

    def violations(self, upto: float = math.inf) -> list[str]:
        """What the work shows that must not happen. `upto`: later answers may be lost."""
        found = [f"{one.kind}: {text}" for one in self.work for text in one.violations(upto)]
        if upto == math.inf:  # else a log may have fallen back behind what its reader has
            found += [f"{one.kind}: {text}" for one in self.work for text in one.new_beginnings]
        return self._errors + found

    def gaps(self, at: float) -> dict[str, float]:
        """For each part, the seconds from `at`, a `time.monotonic()`, until it has done something again."""
        return {
            f"{one.kind}.{name}": next((done - at for done in times if done >= at), math.inf)
            for one in self.work
            for name, times in one.done_at.items()
        }

    def __str__(self) -> str:
        return ", ".join(f"{one.kind} {sum(one.done.values())}" for one in self.work)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run_blocking(self, work: Work, part: Callable[[], Steps]) -> None:
        steps = work.loop(part)
        try:
            step = next(steps)
            while True:
                try:
                    reply = None
                    if isinstance(step, float):
                        time.sleep(step)
                    else:
                        reply = step()
                except PenstockError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            pass
        except Exception as error:
            self._errors.append(f"{work.kind}.{part.__name__}: {type(error).__name__}: {error}")

    async def _run_loop(self, app: Penstock, others: Sequence[Work]) -> None:
        try:
            await asyncio.gather(*(self._run_aio(one, part) for one in others for part in one.parts))
        finally:
            await app.aclose()

    async def _run_aio(self, work: Work, part: Callable[[], Steps]) -> None:
        steps = work.loop(part)
        try:
            step = next(steps)
            while True:
                try:
                    reply = None
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    else:
                        reply = await step.func.aio(*step.args, **step.keywords)
                except PenstockError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            pass
        except Exception as error:
            self._errors.append(f"{work.kind}.{part.__name__}: {type(error).__name__}: {error}")
