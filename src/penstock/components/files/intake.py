"""How a receiver takes in a channel: what is pulled, checked, and where it is when it is done with something.

    Intake     pulls records, checks their order and bytes, hands on what its kind (`receiver.py`) makes of them
    Done       a point up to which all is done with, as it is noted in the server

What was handed on counts as done with when the next is asked for. Where it then is, is noted in the step that moves the
cursor: the files that were begun, how far each is, and its digest so far. Whoever comes next goes on exactly there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from penstock.components.files.blocks import (
    ABORT,
    BEGIN,
    DATA,
    END,
    START,
    Header,
    Manifest,
    Record,
    block,
    ending,
    manifest,
)
from penstock.components.files.source import chain
from penstock.components.files.transitions import RECORDS, ChannelLog, Received
from penstock.components.holding import lives, mint_token
from penstock.components.log import REMIND, check_wait, until_found
from penstock.components.renewal import Renewer, now, valid_until
from penstock.driver.steps import Aside, Drivers, Step, Steps, verb
from penstock.errors import BlocksMissed, FileDamaged, FilesError, LeaseLost

T = TypeVar("T")

AT_ONCE = 16
"""Blocks, or batches, that are made ready together."""

DONE = 2**62
"""`at` of a file that is done with."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a file is. `offset`, `digest`: of what was received and checked; `at`, `line`: up to where its lines are
    done with, and `inside` of one that is too long; `spooled`: it is gzip, and received whole before its lines are
    read."""

    name: str
    lines: bool
    unpacked: bool
    offset: int = 0
    digest: bytes = START
    at: int = 0
    line: int = 0
    inside: bool = False
    spooled: bool = False


class Mark(msgspec.Struct, frozen=True):
    """Where a receiver is. `files`: those begun before its cursor; `ahead`: those begun behind it of which lines are
    done with already, because a line of another file holds the cursor back."""

    files: dict[str, Place] = {}
    ahead: dict[str, Place] = {}


_mark = msgspec.json.Decoder(Mark).decode


class Done(NamedTuple):
    """A point up to which all is done with."""

    number: int
    mark: Mark


_here: WeakValueDictionary[str, Intake[Any]] = WeakValueDictionary()
"""Who receives in this process, by token."""


def missed(log: ChannelLog, who: str, records: int, first: int) -> BlocksMissed:
    return BlocksMissed(
        f"{who!r} was away for too long: {records} records of {log.what} were let go of before it had them. What comes "
        f"next is number {first}, files that had begun are not whole"
    )


class Busy:
    """What was received is worked on: the renewer says so while that takes long."""

    def __init__(self, log: ChannelLog, who: str, token: str, lease: float, asked: float) -> None:
        self.lease = lease
        self.valid_until = valid_until(asked, lease)
        self.kept = False
        self._log = log
        self._who = who
        self._token = token

    @property
    def renewal(self) -> Step[bool]:
        return self._log.hold(self._who, self._token, self.lease)

    @property
    def return_(self) -> Step[bool]:
        return self._log.hold(self._who, self._token, 0)

    def lose(self, why: str) -> None:
        """Found out by whoever settles next, too."""
        self.kept = False


class Stream(Generic[T]):
    """What comes, one by one: `for`, `async for`; and with `with` what was done with is settled at its end."""

    _drivers: Drivers

    def __init__(self) -> None:
        self._ready: deque[tuple[T, Any]] = deque()
        self._error: FilesError | None = None
        self._counted: Callable[[], bytes] = bytes
        self._given: Any = None
        self._done: Any = None
        self._reached: Any = None

    def fill(self) -> Steps[None]:
        """Until there is something ready, an error, or the end. What was given by then is done with."""
        raise NotImplementedError

    def leave(self) -> Steps[None]:
        """Settle what was done with; what is ready and was not given goes to whoever comes next."""
        raise NotImplementedError

    def commit(self) -> Steps[None]:
        """Settle what was given so far, in the middle of it."""
        raise NotImplementedError

    def along(self, counted: Callable[[], bytes]) -> None:
        """What is settled is settled together with these counts, as `files.lua` has them, or not at all."""
        self._counted = counted

    @verb
    def fetch(self) -> Steps[None]:
        """Settle what was done with, and wait for more, in one round trip; for a loop of your own."""
        return self.fill()

    @verb
    def settle(self) -> Steps[None]:
        """Settle what was done with, and let another process receive. Two round trips."""
        return self.leave()

    def taken(self) -> tuple[list[T], FilesError | None]:
        """All that is ready, and what went wrong behind it."""
        items = [item for item, _ in self._ready]
        if self._ready:
            self._given = self._ready[-1][1]
        self._ready.clear()
        error, self._error = self._error, None
        if error is not None:
            self._given = self._reached
        return items, error

    def _give(self, stop: type[Exception]) -> T:
        self._done = self._given
        if self._ready:
            item, self._given = self._ready.popleft()
            return item
        if self._error is not None:
            error, self._error = self._error, None
            self._given = self._reached
            raise error
        raise stop

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if not self._ready and self._error is None:
            self.fetch()
        return self._give(StopIteration)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        if not self._ready and self._error is None:
            await self.fetch.aio()
        return self._give(StopAsyncIteration)

    def _left(self, error: object) -> None:
        if error is None:
            self._done = self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        self.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        await self.settle.aio()


class Intake(Stream[T]):
    """Pulls, checks, hands on. One loop at a time.

    `wait`: seconds to wait for more, then it ends; None: until the channel is closed.
    """

    def __init__(self, log: ChannelLog, drivers: Drivers, renewer: Renewer, who: str, wait: float | None) -> None:
        check_wait("receive", wait)
        super().__init__()
        self._log = log
        self._drivers = drivers
        self._renewer = renewer
        self._who = who
        self._wait = wait
        self._token = self._new_token()
        self._ended = False
        self._turn = 0
        self._instead = ""
        self._busy: Busy | None = None
        self._records: deque[Record] = deque()
        self._making = self._make()
        self._begin(0, Mark())

    def _new_token(self) -> str:
        token = mint_token()
        _here[token] = self
        return token

    def _begin(self, cursor: int, mark: Mark) -> None:
        """Go on from here, as nobody."""
        self._position = cursor
        self._files = dict(mark.files)
        self._ahead = dict(mark.ahead)
        self._base, self._changes = dict(mark.files), deque[tuple[int, str, Place | None]]()
        self._held: dict[str, int] = {}
        self._reached = self._given = self._done = self._settled = Done(cursor, mark)
        self._resumed()

    # --- what a kind makes of it ---

    def _resumed(self) -> None:
        """Nothing is in hand."""

    def _took_over(self) -> None:
        """Another process received before this one."""

    def _settled_upto(self, number: int) -> None:
        """The server has noted it."""

    def _begun(self, file: str, what: Manifest) -> None:
        """A file begins."""

    def _block(self, record: Record, head: Header, data: bytes) -> Iterable[T]:
        """`self._files` has it in it already."""
        return ()

    def _end(self, record: Record, place: Place) -> Iterable[T]:
        return ()

    def _dropped(self, file: str, place: Place) -> None:
        """It will not be whole."""

    # --- records, one after the other ---

    def _make(self) -> Iterator[tuple[T, Done]]:
        while self._records:
            record = self._records.popleft()
            try:
                for item in self._take(record):
                    yield item, self._as_of(record.number - 1)
            except FilesError as error:
                self._error = error
                if (place := self._files.get(record.file)) is not None:
                    self._dropped(record.file, place)
                self._change(record, None)
            self._reached = self._as_of(record.number)
            if self._error is not None:
                return

    def _take(self, record: Record) -> Iterator[T]:
        place = self._files.get(record.file)
        if record.kind == BEGIN:
            what = manifest(record)
            ahead = self._ahead.pop(record.file, None)
            place = Place(
                what.name, what.lines, what.unpacked, what.offset, START, what.offset, what.line
            ) if ahead is None else replace(ahead, offset=what.offset, digest=START)  # fmt: skip
            self._change(record, place)
            self._begun(record.file, what)
        elif place is None:  # it began before this receiver, or is damaged
            return
        elif record.kind == DATA:
            head, data = block(record)
            if head.offset != place.offset:
                raise FileDamaged(f"{head.name} is damaged: its block at byte {place.offset:,} is missing")
            self._change(
                record, replace(place, offset=head.offset + len(data), digest=chain(place.digest, head.digest))
            )
            yield from self._block(record, head, data)
        elif record.kind == END:
            end = ending(record)
            if (end.size, end.digest) != (place.offset, place.digest):
                raise FileDamaged(f"{place.name} is damaged: {place.offset:,} of {end.size:,} bytes, or others")
            yield from self._end(record, place)
            self._held.pop(record.file, None)
            self._change(record, None)
        elif record.kind == ABORT:
            raise FileDamaged(record.body.decode())

    def _change(self, record: Record, place: Place | None) -> None:
        self._changes.append((record.number, record.file, place))
        if place is not None:
            self._files[record.file] = place
        elif record.file in self._files:
            self._ahead[record.file] = replace(self._files.pop(record.file), at=DONE, inside=False)
            self._held.pop(record.file, None)

    def _as_of(self, number: int) -> Done:
        """Where this receiver is when it is done with this record, and what was made of the next one so far."""
        number = min([number, *(held - 1 for held in self._held.values())])
        while self._changes and self._changes[0][0] <= number:
            _, file, place = self._changes.popleft()
            if place is not None:
                self._base[file] = place
            else:
                self._base.pop(file, None)
                self._ahead.pop(file, None)
        files, ahead = {}, {}
        for file, place in self._base.items():
            now_ = self._files.get(file) or self._ahead[file]
            files[file] = replace(place, at=now_.at, line=now_.line, inside=now_.inside, spooled=now_.spooled)
        for file, place in {**self._files, **self._ahead}.items():
            if file not in files:
                ahead[file] = place
        return Done(number, Mark(files, ahead))

    # --- steps ---

    def fill(self) -> Steps[None]:
        while not self._ready and self._error is None and not self._ended:
            yield Aside(self._work)
            if self._ready or self._error is not None:
                return
            if not (yield from self._pull()):
                return

    def _work(self) -> None:
        self._ready.extend(islice(self._making, AT_ONCE))
        if not self._ready and self._error is None:  # or it stopped at an error, and there is more behind that
            self._making = self._make()
            self._ready.extend(islice(self._making, AT_ONCE))

    def _pull(self) -> Steps[bool]:
        if self._busy is not None:
            self._busy.kept, self._busy = False, None
        self._given = self._done = self._reached
        unsettled = [(self._done, self._counted())]
        asked = 0.0

        def ask(address: str, stay: float) -> Step[Received]:
            nonlocal asked
            asked = now()
            return self._receive(unsettled.pop() if unsettled else None, RECORDS, address, stay)

        try:
            answer = yield from until_found(
                self._log.keys.inbox, REMIND, self._log.stay, self._wait, ask, self._found, self._due
            )
        except BaseException:
            # Whether it was settled is not known: the server knows.
            self._instead, self._token = self._token, self._new_token()
            self._begin(0, Mark())
            raise
        return (yield from self._took(answer, asked))

    def _receive(
        self, settled: tuple[Done, bytes] | None, limit: int, address: str = "", stay: float = 0.0
    ) -> Step[Received]:
        self._turn += 1
        options: dict[str, Any] = {}
        if settled is not None and (settled[1] or settled[0] != self._settled):
            done, counted = settled
            options = {"acked": done.number, "mark": msgspec.json.encode(done.mark).decode(), "counted": counted}
            self._settled = done
        return self._log.receive(
            self._who, self._token, self._turn, lease=self._log.settings.lease, limit=limit, instead=self._instead,
            after=self._position, address=address, stay=stay, **options,
        )  # fmt: skip

    def _found(self, answer: Received) -> bool:
        if answer.state == "HELD" and not lives(answer.holder, _here):
            self._instead = answer.holder
        return answer.state == "ENDED" or (
            answer.state == "OK" and (answer.fresh or bool(answer.records) or self._missed(answer) > 0)
        )

    def _missed(self, answer: Received) -> int:
        return max(0, answer.first - 1 - (answer.cursor if answer.fresh else self._position))

    def _due(self, answer: Received) -> float | None:
        return 0.0 if answer.holder and answer.holder == self._instead else answer.due

    def _took(self, answer: Received, asked: float) -> Steps[bool]:
        """Whether there is anything to do."""
        if answer.state == "ENDED":
            self._ended = True
        if answer.state in {"OK", "ENDED"} and not answer.fresh:
            yield Aside(partial(self._settled_upto, self._settled.number))
        if self._ended:
            return True
        if answer.state != "OK":
            return False
        yield from self._log.trim_rest(answer.more)
        if answer.fresh:
            self._instead = ""
            self._begin(answer.cursor, _mark(answer.mark) if answer.mark else Mark())
            yield Aside(self._took_over)
        if away := self._missed(answer):
            for file, place in self._files.items():
                self._dropped(file, place)
            self._begin(answer.first - 1, Mark())
            self._settled = Done(answer.cursor, Mark())
            self._error = missed(self._log, self._who, away, answer.first)
        if not answer.records:
            if answer.fresh or away:
                return True
            yield self._log.hold(self._who, self._token, 0)
            return False
        self._records.extend(answer.records)
        self._position = answer.records[-1].number
        self._busy = Busy(self._log, self._who, self._token, self._log.settings.lease, asked)
        self._renewer.keep(self._busy, asked)
        return True

    def commit(self) -> Steps[None]:
        """Raises LeaseLost if another process receives by now."""
        answer = yield self._receive((self._given, self._counted()), 0)
        if answer.state == "HELD" or answer.fresh:
            raise LeaseLost(
                f"another process receives {self._log.what} as {self._who!r} by now: drop what was not settled"
            )

    def leave(self) -> Steps[None]:
        if self._busy is not None:
            self._busy.kept, self._busy = False, None
        if not self._ended and self._turn:
            self._given = self._done
            if self._done != self._settled:
                yield from self.commit()
            yield self._log.hold(self._who, self._token, 0)
        self._records.clear()
        self._ready.clear()
        self._token = self._new_token()
        self._begin(0, Mark())
