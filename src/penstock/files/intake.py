"""How a receiver takes in a channel: what is pulled, checked, and where it is when it is done with something.

    Intake     pulls records, checks their order and bytes, hands on what its kind (`receiver.py`) makes of them
    Done       a point up to which all is done with, as it is noted in the server

What was handed on counts as done with when the next is asked for. Where it then is, is noted in the step that moves the
cursor: the files that were begun, how far each is, its digest so far, and what is there of a line that goes on in its
next block. Whoever comes next goes on exactly there, and no file waits for a block of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from penstock.core.ids import may_be_alive, mint_token
from penstock.core.operations import Driver, Operation, RoundTrip, RunInThread
from penstock.core.renewal import Renewer, now, valid_until
from penstock.errors import BlocksMissed, FileDamaged, FilesError, LeaseLost
from penstock.files.bindings import ChannelBindings, Received
from penstock.files.blocks import (
    ABORT,
    BEGIN,
    CLOSE,
    DATA,
    END,
    START,
    Header,
    Manifest,
    Record,
    block,
    ending,
    is_id,
    manifest,
)
from penstock.files.source import chain
from penstock.files.stream import Stream
from penstock.messages.log import ask_until, check_wait, trim_rest

T = TypeVar("T")

AT_ONCE = 16
"""Blocks, or batches, that are made ready together."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a file is. `offset`, `digest`: of what was received and checked. `line`: how many lines of it were given;
    `carried`: what is there of the next, or `inside` one of which nothing more is given. `spooled`: it is packed, and
    received whole before its lines are read."""

    name: str
    lines: bool
    unpacked: bool
    offset: int = 0
    digest: bytes = START
    line: int = 0
    inside: bool = False
    carried: bytes = b""
    spooled: bool = False


class Mark(msgspec.Struct, frozen=True):
    """Where a receiver is: in the files that were begun and have not ended."""

    files: dict[str, Place] = {}


_mark = msgspec.json.Decoder(Mark).decode


class Done(NamedTuple):
    """A point up to which all is done with."""

    number: int
    mark: Mark


_here: WeakValueDictionary[str, Intake[Any]] = WeakValueDictionary()
"""Who receives in this process, by token."""


def missed(log: ChannelBindings, who: str, records: int, first: int) -> BlocksMissed:
    return BlocksMissed(
        f"{who!r} was away for too long: {records} records of {log.label} were let go of before it had them. What "
        f"comes next is number {first}, files that had begun are not whole"
    )


class Busy:
    """What was received is worked on: the renewer says so while that takes long."""

    def __init__(self, log: ChannelBindings, who: str, token: str, lease: float, asked: float) -> None:
        self.lease = lease
        self.valid_until = valid_until(asked, lease)
        self.renewing = False
        self._log = log
        self._who = who
        self._token = token

    @property
    def renewal(self) -> RoundTrip[bool]:
        return self._log.hold(self._who, self._token, self.lease)

    @property
    def give_back(self) -> RoundTrip[bool]:
        return self._log.hold(self._who, self._token, 0)

    def mark_lost(self, why: str) -> None:
        """Found out by whoever settles next, too."""
        self.renewing = False


class Intake(Stream[T]):
    """Pulls, checks, hands on. One loop at a time.

    `wait`: seconds to wait for more, then it ends; None: until the channel is closed.
    """

    def __init__(self, log: ChannelBindings, driver: Driver, renewer: Renewer, who: str, wait: float | None) -> None:
        check_wait("receive", wait)
        super().__init__()
        self._log = log
        self._driver = driver
        self._renewer = renewer
        self._who = who
        self._wait = wait
        self._token = ""
        self._token = self._new_token()
        self._ended = False
        self._turn = 0
        self._instead = ""
        self._busy: Busy | None = None
        self._records: deque[Record] = deque()
        self._making: Iterator[tuple[T, Done]] | None = None
        self._begin(0, Mark())

    def _new_token(self) -> str:
        _here.pop(self._token, None)
        token = mint_token()
        _here[token] = self
        return token

    def _begin(self, cursor: int, mark: Mark) -> None:
        """Go on from here, as nobody."""
        self._position = cursor
        self._following = 0
        self._files = dict(mark.files)
        self._reached = self._given = self._done = self._settled = Done(cursor, mark)
        self._resumed()

    # --- what a kind makes of it ---

    def _resumed(self) -> None:
        """Nothing is in hand."""

    def _tidy(self) -> None:
        """Another process received before this one: nothing it left is needed, but of files that have begun."""

    def _settled_upto(self, number: int) -> None:
        """The server has noted it."""

    def _begun(self, file: str, what: Manifest) -> None:
        """A file begins."""

    def _block(self, record: Record, head: Header, data: bytes) -> Iterable[T]:
        """`self._files` has it in it already."""
        return ()

    def _end(self, record: Record, place: Place) -> Iterable[T]:
        return ()

    def _dropped(self, number: int, file: str) -> None:
        """It will not be whole; when the server has noted this number, nobody asks for it any more."""

    # --- records, one after the other ---

    def _work(self) -> None:
        """Make some of what was pulled ready, up to an error."""
        while self._error is None and len(self._ready) < AT_ONCE:
            if self._making is None:
                if not self._records or self._doubtful:
                    return
                self._making = self._make(self._records.popleft())
            before = len(self._ready)
            self._ready.extend(islice(self._making, AT_ONCE))
            if len(self._ready) < before + AT_ONCE:
                self._making = None  # at once: it refers to us, and who was dropped in a loop must not live on

    def _make(self, record: Record) -> Iterator[tuple[T, Done]]:
        try:
            for item in self._take(record):
                # What goes on in an END is not through with it.
                yield item, self._as_of(record.number - (record.kind == END and record.file in self._files))
        except FilesError as error:
            self._error = error
            for file in self._files.keys() & (self._files if record.kind == CLOSE else {record.file}):
                del self._files[file]
                self._dropped(record.number, file)
        self._reached = self._as_of(record.number)

    def _as_of(self, number: int) -> Done:
        return Done(number, Mark(dict(self._files)))

    def _take(self, record: Record) -> Iterator[T]:
        place = self._files.get(record.file)
        if record.kind == BEGIN:
            what = manifest(record)
            if not is_id(record.file):
                raise FileDamaged(f"{what.name}: record {record.number} is of no file that was sent in order")
            self._files[record.file] = Place(what.name, what.lines, what.unpacked, what.offset, line=what.line)
            self._begun(record.file, what)
        elif record.kind == CLOSE and self._files:
            names = ", ".join(sorted(place.name for place in self._files.values()))
            raise FileDamaged(f"{self._log.label} was closed before all of these was sent: {names}")
        elif place is None:  # it began before this receiver, or is damaged
            return
        elif record.kind == DATA:
            head, data = block(record)
            if head.offset != place.offset:
                raise FileDamaged(f"{head.name} is damaged: its block at byte {place.offset:,} is missing")
            self._files[record.file] = replace(
                place, offset=head.offset + len(data), digest=chain(place.digest, head.digest)
            )
            yield from self._block(record, head, data)
        elif record.kind == END:
            end = ending(record)
            if (end.size, end.digest) != (place.offset, place.digest):
                raise FileDamaged(f"{place.name} is damaged: {place.offset:,} of {end.size:,} bytes, or others")
            if not place.spooled:
                del self._files[record.file]
            yield from self._end(record, place)
            self._files.pop(record.file, None)
        elif record.kind == ABORT:
            raise FileDamaged(record.body.decode(errors="replace"))

    # --- steps ---

    def fill(self) -> Operation[None]:
        try:
            yield from self._fill()
        except BaseException:
            self._start_anew()
            raise

    def _fill(self) -> Operation[None]:
        while True:
            if self._doubtful:
                yield from self._look_again()
            if self._ready or self._error is not None or self._ended:
                return
            yield RunInThread(self._work)
            if self._ready or self._error is not None or self._records:
                continue
            if not (yield from self._pull()):
                return

    @property
    def _doubtful(self) -> bool:  # type: ignore[override]
        """This process stood still for a lease: another may have received, and be ahead by now."""
        return self._busy is not None and self._busy.valid_until < now()

    def _look_again(self) -> Operation[None]:
        asked, busy = now(), self._busy
        if busy is None or not (yield busy.renewal):
            self._counted()
            self._start_anew()
            return
        busy.valid_until = valid_until(asked, busy.lease)
        if not busy.renewing:
            self._renewer.keep(busy, asked)

    def _start_anew(self) -> None:
        """Whether what was given is settled is not known here: the server knows."""
        self._rest()
        self._instead, self._token = self._token, self._new_token()
        self._drop()

    def _rest(self) -> None:
        if self._busy is not None:
            self._busy.renewing, self._busy = False, None

    def _drop(self) -> None:
        """What is in hand and was not given."""
        self._records.clear()
        self._ready.clear()
        self._error = None
        self._making = None
        self._begin(0, Mark())

    def _pull(self) -> Operation[bool]:
        self._rest()
        self._given = self._done = self._reached
        unsettled = [(self._done, self._counted())]
        asked = 0.0

        def ask(address: str, stay: float) -> RoundTrip[Received]:
            nonlocal asked
            asked = now()
            return self._receive(unsettled.pop() if unsettled else None, self._following, address, stay)

        while True:
            answer = yield from ask_until(
                self._found, ask, self._log, self._wait, due=self._due, local_check=self._stirs
            )
            if not self._is_orphaned(answer):
                break
            self._instead = answer.holder
        return (yield from self._took(answer, asked))

    def _is_orphaned(self, answer: Received) -> bool:
        """Whether the process that receives has died on this host."""
        return answer.state == "HELD" and not may_be_alive(answer.holder, _here)

    def _receive(
        self, settled: tuple[Done, bytes] | None, limit: int, address: str = "", stay: float = 0.0
    ) -> RoundTrip[Received]:
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
        return (
            answer.state == "ENDED"
            or self._is_orphaned(answer)
            or (answer.state == "OK" and (answer.fresh or answer.top > self._position or bool(answer.records)))
        )

    def _missed(self, answer: Received) -> int:
        return max(0, answer.first - 1 - (answer.cursor if answer.fresh else self._position))

    def _due(self, answer: Received) -> float | None:
        return answer.due

    def _stirs(self, answer: Received) -> Callable[[], bool] | None:
        return partial(self._is_orphaned, answer) if answer.state == "HELD" else None

    def _took(self, answer: Received, asked: float) -> Operation[bool]:
        """Whether there is anything to do."""
        if answer.state == "ENDED":
            self._ended = True
            self._begin(0, Mark())
            yield RunInThread(self._tidy)
            return True
        if answer.state != "OK":
            return False
        if not answer.fresh:
            yield RunInThread(partial(self._settled_upto, self._settled.number))
        yield from trim_rest(self._log, answer.more)
        if answer.fresh:
            self._instead = ""
            self._begin(answer.cursor, _mark(answer.mark) if answer.mark else Mark())
            yield RunInThread(self._tidy)
        if away := self._missed(answer):
            for file in self._files:
                self._dropped(answer.first - 1, file)
            self._begin(answer.first - 1, Mark())
            self._settled = Done(answer.cursor, Mark())
            self._error = missed(self._log, self._who, away, answer.first)
        self._following = answer.following
        if not answer.records:
            if answer.fresh or away or answer.top > self._position:
                return True
            yield self._log.hold(self._who, self._token, 0)
            return False
        self._records.extend(answer.records)
        self._position = answer.records[-1].number
        self._busy = Busy(self._log, self._who, self._token, self._log.settings.lease, asked)
        self._renewer.keep(self._busy, asked)
        return True

    def commit(self) -> Operation[None]:
        """Raises LeaseLost if another process receives by now; then nothing is to be done but leave."""
        self._done = self._given
        answer = yield self._receive((self._done, self._counted()), 0)
        if answer.state == "HELD" or answer.fresh:
            raise LeaseLost(
                f"another process receives {self._log.label} as {self._who!r} by now: drop what was not settled"
            )
        if answer.state == "ENDED":
            self._ended = True
            yield RunInThread(self._tidy)
        else:
            yield RunInThread(partial(self._settled_upto, self._settled.number))

    def leave(self) -> Operation[None]:
        self._rest()
        try:
            if not self._ended and self._turn:
                self._given = self._done
                if self._done != self._settled:
                    yield from self.commit()
                if not self._ended:
                    yield self._log.hold(self._who, self._token, 0)
        finally:
            self._token = self._new_token()
            self._drop()
