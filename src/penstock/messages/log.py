"""The scripts of `log.lua` as round trips, what they answer with, and how a reader waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

from penstock import codec
from penstock.core.clock import Clock
from penstock.core.operations import Arg, Driver, Listen, Listener, Operation, RoundTrip, Wait, verb
from penstock.core.scripts import Library
from penstock.errors import BadCall, ChatExists, ChatGone, MessageError, NoSpace, NotAMember, PenstockError
from penstock.messages.keys import LogKeys
from penstock.settings import SLEEPER_TTL_FACTOR, Settings

R = TypeVar("R")
T = TypeVar("T")

Ask: TypeAlias = Callable[[str, float], RoundTrip[R]]
Due: TypeAlias = Callable[[R], float | None]
Verdict: TypeAlias = Literal["ack", "release", "extend"]

ROOM = 1024 * 1024
"""Bytes of bodies that one pull answers with, but for the first message."""

MOST = 1000
"""Messages of one pull."""

GLANCE = 0.5
"""Seconds between two looks of who waits at something on this host, which costs no command."""

REMIND = 300.0
"""Seconds after which somebody who waits for a message says so again. Only a message that got lost makes it matter."""

LOT = 500
"""Messages in one round trip of a bulk send: two milliseconds or so of server time."""


@cache
def scripts() -> Library:
    return Library(
        "core/repeated.lua", "core/wake.lua", "messages/log.lua", "messages/readers.lua", "messages/claim.lua"
    )


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of messages that somebody has not read yet; None: no limit, and all None: every one, for ever.

    messages  so many at most
    bytes     so many at most, of senders and bodies and 32 for each message
    age       no older than so many seconds; looked at when something is sent or read
    full      at the limit of messages or bytes: "drop" the oldest, and tell who missed them, or "refuse" new ones
    """

    messages: int | None = None
    bytes: int | None = None
    age: float | None = None
    full: Literal["drop", "refuse"] = "drop"

    def __post_init__(self) -> None:
        for name in ("messages", "bytes", "age"):
            value = getattr(self, name)
            if value is not None and not 0.001 <= value <= 10**15:
                raise ValueError(f"Keep({name}={value}): more than 0, or None for no limit")
        if self.full not in {"drop", "refuse"}:
            raise ValueError(f"Keep(full={self.full!r}): 'drop' or 'refuse'")

    @property
    def args(self) -> tuple[int, int, int, int]:
        age = 0 if self.age is None else max(1, int(self.age * 1000))
        return (int(self.messages or 0), int(self.bytes or 0), age, int(self.full == "refuse"))


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that were let go of before this reader had them: `missed` of them, before `first`, which is there."""

    first: int
    missed: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `id`: its number, from 1 on and without holes; `at`: seconds since 1970 by the server's clock.

    `missed`: how many before it were let go of under the `Keep` that was chosen, before this reader had them.
    """

    id: int
    sender: str
    at: float
    data: bytes = field(repr=False)
    place: str = ""
    """The mailbox's name, or the chat's id."""
    missed: int = 0

    @property
    def body(self) -> Any:
        """The value that was sent. Raises BadCall for damaged bytes."""
        return codec.decode(self.data, what=f"message {self.id} of {self.place!r}")


class Mail(list[Message]):
    """Messages in order, as one pull found them. `gap`: what is missing before them; `unread`: in all, with these."""

    def __init__(self, messages: Iterable[Message] = (), gap: Gap | None = None, unread: int = 0) -> None:
        super().__init__(messages)
        self.gap = gap
        self.unread = unread


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull. `more`: there is more to trim; `told`: who is to be told of news."""

    top: int
    cursor: int
    more: bool
    told: list[str]
    mail: Mail


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims and their messages. `due_in`: seconds until another's lease runs out."""

    due_in: float | None
    told: list[str]
    messages: list[tuple[bytes, Message]]


@dataclass(frozen=True, slots=True)
class Look:
    """What the server knows of a log and a reader; `cursor` -1: there is no such reader. Times are seconds."""

    now: float
    top: int
    first: int
    bytes: int
    readers: int
    cursor: int
    seen: float | None
    unread: int
    claimed: int


def names(reply: Iterable[bytes]) -> list[str]:
    return [name.decode() for name in reply]


def as_number(message: Message | int) -> int:
    return message.id if isinstance(message, Message) else message


def check_wait(verb: str, wait: float | None, limit: int = 1, most: int = MOST) -> None:
    if wait is not None and wait < 0:
        raise ValueError(f"{verb}(wait={wait}): seconds from 0, or None for ever")
    if not 1 <= limit <= most:
        raise ValueError(f"{verb}(limit={limit}): 1 to {most:,}")


class Log:
    """Builds the steps of one log; `what` names it in errors."""

    def __init__(self, keys: LogKeys, settings: Settings, clock: Clock) -> None:
        self.keys = keys
        self.settings = settings
        self.clock = clock
        self.what = f"{keys.kind} {keys.name!r}"
        self._declared = keys.declared
        self._scripts = scripts().scripts

    # --- steps ---

    def _step(self, name: str, args: Iterable[Arg], read: Callable[[Sequence[Any]], R], who: str = "") -> RoundTrip[R]:
        def judged(reply: Sequence[Any]) -> R:
            if reply[0] != b"OK":
                raise self._refused(reply, who)
            return read(reply)

        return RoundTrip(self._scripts[name], self._declared, tuple(args), judged)

    def _refused(self, reply: Sequence[Any], who: str) -> PenstockError:
        match reply[0]:
            case b"GONE":
                return ChatGone(f"no {self.what}: never created, deleted, or its last member has left")
            case b"STRANGER":
                return self.stranger(who)
            case b"EXISTS":
                return ChatExists(f"{self.what} is there already: open it with get(), or give another id")
            case b"FULL":
                return NoSpace(f"{self.what} is at its limit and its reader is behind; nothing was sent: try later")
            case b"LARGE":
                return NoSpace(f"the messages are larger than all that {self.what} may hold: send less at once")
            case b"MANY":
                return MessageError(f"{who!r} has 100 devices in {self.what} already: forget() some")
            case _:
                return BadCall(f"ack in {self.what}: its last message is number {reply[1]}; nothing was acknowledged")

    def stranger(self, who: str) -> NotAMember:
        return NotAMember(f"{who!r} is no member of {self.what}: never joined, left, or was kicked")

    def encode(self, value: Any) -> bytes:
        return codec.encode(value, limit=self.settings.max_payload, what=f"the message to {self.what}")

    def create(self, members: Iterable[str], keep: Keep, by: str, body: bytes | None) -> RoundTrip[None]:
        first = int(body is not None)
        args: tuple[Arg, ...] = ("", "", self.clock.now_ms, *keep.args, by, first, body or b"", *members)
        return self._step("create", args, lambda _: None)

    def post(
        self, by: str, messages: Sequence[tuple[str, bytes]], *, make: bool, address: str = "", stay: float = 0.0
    ) -> RoundTrip[tuple[list[int], list[str]]]:
        """Pairs of id and body; answers with their numbers, and who is to be told."""
        rest = [part for message in messages for part in message]
        args = ("", "", self.clock.now_ms, int(make), by, address, int(stay * 1000), *rest)
        return self._step("post", args, lambda reply: (reply[1], names(reply[2])), by)

    def pull(
        self, who: str, device: str = "", *, limit: int, acked: int = 0, after: int = 0, room: int = ROOM,
        address: str = "", stay: float = 0.0, watch: bool = False,
    ) -> RoundTrip[Pulled]:  # fmt: skip
        ms = int(stay * 1000)
        args = (self.clock.now_ms, who, device, acked, after, limit, room, address, ms, int(watch))

        def read(reply: Sequence[Any]) -> Pulled:
            _, top, first, cursor, more, told, *rows = reply
            position = max(cursor, after)
            gap = Gap(first, first - 1 - position) if first - 1 > position else None
            mail = Mail(self.messages(rows, position), gap, max(0, top - max(cursor, first - 1)))
            return Pulled(top, cursor, bool(more), names(told), mail)

        return self._step("pull", args, read, who)

    def messages(self, rows: Sequence[Any], position: int) -> list[Message]:
        found = []
        for number, at, by, body in zip(rows[0::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
            missed, position = number - 1 - position, number
            found.append(Message(number, by.decode(), at / 1000, body, self.keys.name, missed))
        return found

    def stay(self, address: str) -> RoundTrip[int]:
        """Who was at this address waits no more."""
        return RoundTrip(self._scripts["stay"], self._declared, (address,), int)

    def trim(self) -> RoundTrip[bool]:
        return self._step("trim", (self.clock.now_ms,), lambda reply: bool(reply[1]))

    def join(self, who: str, last: int) -> RoundTrip[int]:
        return self._step("join", ("", "", who, last), lambda reply: int(reply[1]))

    def leave(self, who: str) -> RoundTrip[tuple[bool, bool]]:
        return self._step("leave", ("", "", self.clock.now_ms, who), lambda reply: (bool(reply[1]), bool(reply[2])))

    def drop_device(self, who: str, device: str) -> RoundTrip[tuple[bool, bool]]:
        args = (self.clock.now_ms, who, device)
        return self._step("drop_device", args, lambda reply: (bool(reply[1]), bool(reply[2])))

    def limit(self, keep: Keep, *, make: bool) -> RoundTrip[bool]:
        return self._step("limit", (self.clock.now_ms, int(make), *keep.args), lambda reply: bool(reply[1]))

    def delete(self) -> RoundTrip[bool]:
        return self._step("delete", ("", ""), lambda reply: bool(reply[1]))

    def look(self, who: str, device: str = "", *, watch: bool = False) -> RoundTrip[Look]:
        def read(reply: Sequence[Any]) -> Look:
            _, now, top, first, size, readers, cursor, seen, following, claimed = reply
            unread = 0
            if cursor >= 0:
                unread = top - max(cursor, first - 1, following - 1) + claimed
            return Look(now / 1000, top, first, size, readers, cursor, seen / 1000 or None, unread, claimed)

        return self._step("look", (self.clock.now_ms, who, device, int(watch)), read, who)

    def roster(self, offset: int, n: int) -> RoundTrip[tuple[int, int, list[tuple[str, int, int]]]]:
        """Last number, first number still there, and of each reader name, cursor and when it was seen, ms."""

        def read(reply: Sequence[Any]) -> tuple[int, int, list[tuple[str, int, int]]]:
            rows = zip(names(reply[3::3]), reply[4::3], reply[5::3], strict=True)
            return reply[1], reply[2], list(rows)

        return self._step("roster", (offset, n), read)

    def claim(
        self, who: str, token: str, *, lease: float, limit: int, address: str = "", stay: float = 0.0
    ) -> RoundTrip[Claims]:
        args = (
            self.clock.now_ms, who, token, int(lease * 1000), limit, ROOM, address, int(stay * 1000),
        )  # fmt: skip

        def read(reply: Sequence[Any]) -> Claims:
            _, due, told, *rows = reply
            found = []
            for at in range(0, len(rows), 5):
                (message,) = self.messages(rows[at + 1 : at + 5], rows[at + 1] - 1)
                found.append((rows[at], message))
            return Claims(None if due < 0 else due / 1000, names(told), found)

        return self._step("claim", args, read, who)

    def hand_in(self, who: str, verdict: Verdict, claims: Sequence[bytes], seconds: float = 0.0) -> RoundTrip[Any]:
        """Answers whether there is more to trim, and the places of claims that are ours no more."""
        args = (self.clock.now_ms, who, verdict, int(seconds * 1000), *claims)
        return self._step("hand_in", args, lambda reply: (bool(reply[1]), reply[2]), who)

    # --- several steps ---

    def trim_rest(self, more: bool) -> Operation[None]:
        """Slice by slice, so that others are served in between."""
        while more:
            more = yield self.trim()

    def until_found(
        self, wait: float | None, ask: Ask[R], found: Callable[[R], object], due: Due[R] = lambda _: None,
        *, every: float = REMIND,
    ) -> Operation[R]:  # fmt: skip
        return until_found(self.keys.inbox, every, self.stay, wait, ask, found, due)

    def posted(
        self, by: str, messages: Sequence[tuple[str, bytes]], *, make: bool, wait: float | None
    ) -> Operation[tuple[list[int], list[str]]]:
        """Send, up to 500 a round trip; wait for space if asked. Numbers, and who is to be told."""
        if wait == 0 and len(messages) <= LOT:
            now: tuple[list[int], list[str]] = yield self.post(by, messages, make=make)
            return now
        numbers: list[int] = []
        told: dict[str, None] = {}
        for at in range(0, len(messages), LOT):
            lot = messages[at : at + LOT]

            def ask(address: str, stay: float, lot: Sequence[tuple[str, bytes]] = lot) -> RoundTrip[Any]:
                return unless(b"FULL", self.post(by, lot, make=make, address=address, stay=stay), None)

            # What grows too old makes space, too, and tells nobody.
            answer = yield from self.until_found(
                wait, ask, lambda answer: answer is not None, every=self.settings.sleep
            )
            if answer is None:
                raise self._refused([b"FULL"], by)
            numbers += answer[0]
            told |= dict.fromkeys(answer[1])
        return numbers, list(told)


def unless(words: bytes, step: RoundTrip[R], otherwise: T) -> RoundTrip[R | T]:
    """The same step, with this answer where it would raise for one of these words."""
    read = step.read
    return RoundTrip(
        step.script, step.keys, step.args, lambda reply: otherwise if reply[0] in words.split() else read(reply)
    )


def until_found(
    inbox: str, every: float, stay: Callable[[str], RoundTrip[int]], wait: float | None,
    ask: Ask[R], found: Callable[[R], object], due: Due[R] = lambda _: None,
    stirs: Callable[[R], Callable[[], bool] | None] = lambda _: None,
) -> Operation[R]:  # fmt: skip
    """Ask until there is something or the time is over.

    `ask` is told an address, and for how long somebody listens there. Each `every` seconds it is asked anew, so that a
    message that got lost costs that time and no more. `stay`: nobody is at the address any more. `stirs`: what to look
    at meanwhile, on this host, that is a reason to ask, too.
    """
    if wait == 0:
        answer: R = yield ask("", 0.0)
        return answer
    deadline = None if wait is None else time.monotonic() + wait
    waiter = yield Listen(inbox)
    try:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            last = left is not None and left <= 0
            answer = yield ask(waiter.address, 0.0 if last else every * SLEEPER_TTL_FACTOR)
            if last or found(answer):
                return answer
            pauses = (every, left, due(answer))
            yield from _rest(waiter, min(pause for pause in pauses if pause is not None), stirs(answer))
    except BaseException:
        yield stay(waiter.address)
        raise
    finally:
        waiter.close()


def _rest(waiter: Listener, pause: float, stirs: Callable[[], bool] | None) -> Operation[None]:
    if stirs is None:
        yield Wait(waiter, pause)
        return
    until = time.monotonic() + pause
    while (left := until - time.monotonic()) > 0 and not (yield Wait(waiter, min(left, GLANCE))) and not stirs():
        pass


class Pulling:
    """A reader of a log. `_missing`: words of the server that only mean that there is nothing."""

    _missing = b""

    def __init__(self, log: Log, driver: Driver, who: str, device: str) -> None:
        self._log = log
        self._driver = driver
        self._who = who
        self._device = device

    @verb
    def pull(self, limit: int = 100, *, wait: float | None = 0.0) -> Operation[Mail]:
        """Up to `limit` messages from the first that was not acknowledged, again and again the same until they are.

        limit  1 to 1000; fewer come when they make a megabyte
        wait   seconds to wait for the first one; 0 answers at once, None waits for ever

        One round trip when there are messages. While it waits it sends about a command each 10 s.
        """
        check_wait("pull", wait, limit)
        answer = yield from self.pulled(limit, wait)
        return answer.mail

    def pulled(self, limit: int, wait: float | None, *, acked: int = 0, after: int = 0) -> Operation[Pulled]:
        def ask(address: str, stay: float) -> RoundTrip[Pulled]:
            return self._step(limit, acked=acked, after=after, address=address, stay=stay)

        answer = yield from self._log.until_found(wait, ask, lambda answer: answer.mail)
        yield from self._log.trim_rest(answer.more)
        yield from self._tell(answer.told)
        return answer

    def _step(self, limit: int, **options: Any) -> RoundTrip[Pulled]:
        step = self._log.pull(self._who, self._device, limit=limit, **options)
        return unless(self._missing, step, Pulled(0, 0, False, [], Mail()))

    def _tell(self, told: Sequence[str]) -> Operation[None]:
        yield from ()

    @verb
    def ack(self, upto: Message | int) -> Operation[None]:
        """This message and all before it are done with: they are not pulled again, and freed when all readers are past.

        A lower number than before changes nothing. Raises BadCall for one that was never given. One round trip.
        """
        number = as_number(upto)
        if number < 0:
            raise BadCall(f"ack(upto={number}) in {self._log.what}: numbers begin at 1; nothing was acknowledged")
        return self.acked(number)

    def acked(self, number: int) -> Operation[None]:
        answer = yield self._step(0, acked=number)
        yield from self._log.trim_rest(answer.more)

    @verb
    def unread(self) -> RoundTrip[int]:
        """How many messages wait for this reader. One round trip, O(1)."""
        step = self._log.look(self._who, self._device)
        return unless(self._missing, step.then(self._counted), 0)

    def _counted(self, look: Look) -> int:
        if look.cursor < 0:
            raise self._log.stranger(self._who)
        return look.unread

    def follow(self, *, limit: int = 100, ack: bool = True) -> Follow:
        """Every message, those that wait and those to come: `for m in follow()` or `async for`.

        A message counts as done with when the loop comes back for the next one, and is acknowledged with its batch; so
        after a crash up to a batch of `limit` comes again. `with follow() as messages:` acknowledges at its end
        what was done with, too. `ack=False`: only your own `ack` does.
        """
        check_wait("follow", None, limit)
        return Follow(self, self._driver, limit, ack)


class Follow:
    """The messages of one reader, without end. One loop at a time."""

    def __init__(self, reader: Pulling, driver: Driver, limit: int, ack: bool) -> None:
        self._reader = reader
        self._driver = driver
        self._limit = limit
        self._ack = ack
        self._batch: deque[Message] = deque()
        self._given = self._done = 0

    @verb
    def fetch(self) -> Operation[Mail]:
        """Acknowledge what was done with, and wait for more, in one round trip; for a loop of your own."""
        acked = self._given if self._ack else 0
        answer = yield from self._reader.pulled(self._limit, None, acked=acked, after=self._given)
        return answer.mail

    @verb
    def settle(self) -> Operation[None]:
        """Acknowledge what was done with. One round trip."""
        if self._ack and self._done:
            yield from self._reader.acked(self._done)

    def _give(self) -> Message:
        message = self._batch.popleft()
        self._done, self._given = self._given, message.id
        return message

    def __iter__(self) -> Follow:
        return self

    def __next__(self) -> Message:
        if not self._batch:
            self._batch.extend(self.fetch())
        return self._give()

    def __aiter__(self) -> Follow:
        return self

    async def __anext__(self) -> Message:
        if not self._batch:
            self._batch.extend(await self.fetch.aio())
        return self._give()

    def _left(self, error: object) -> None:
        if error is None:
            self._done = self._given

    def __enter__(self) -> Follow:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        self.settle()

    async def __aenter__(self) -> Follow:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._left(error)
        await self.settle.aio()
