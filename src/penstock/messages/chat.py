"""A group chat: members who send, and who each read all of it at their own pace, on several devices if they like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.core.clock import Clock
from penstock.core.operations import Driver, Operation, Parallel, RoundTrip, verb
from penstock.errors import ChatGone, ServerError
from penstock.messages.chat_index import Index
from penstock.messages.keys import LogKeys, check_reader
from penstock.messages.log import Follow, Keep, Log, Pulling, check_wait
from penstock.settings import Settings

History: TypeAlias = int | Literal["now", "start"]
IndexOf: TypeAlias = Callable[[str], Index]

PAGE = 1000
"""Readers of a chat in one round trip."""

AT_ONCE = 100
"""Operation to other slots in one round trip."""


@dataclass(frozen=True, slots=True)
class Member:
    """A reader of a chat. `read`: number of the last message it acknowledged; `seen`: when it last pulled, or None."""

    name: str
    device: str
    read: int
    unread: int
    seen: float | None


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """`last`: number of the last message, `first` of the first still there; `bytes`: of what is kept; `readers`:
    members, or where a member has several, devices."""

    id: str
    last: int
    first: int
    bytes: int
    readers: int


def in_lots(steps: Iterable[RoundTrip[Any]]) -> Operation[list[Any]]:
    """A round trip for each hundred, and each server."""
    waiting, answers = list(steps), list[Any]()
    while waiting:
        answers += yield Parallel(tuple(waiting[:AT_ONCE]))
        waiting = waiting[AT_ONCE:]
    return answers


def tell(index_of: IndexOf, chat: str, readers: Iterable[str]) -> Operation[None]:
    """Hint to the members of these readers that there is news. What was sent is sent, whatever becomes of it."""
    members = dict.fromkeys(reader.partition("\0")[0] for reader in readers)
    if members:
        with contextlib.suppress(ServerError):
            yield from in_lots(index_of(member).hint([chat]) for member in members)


class Reader(Pulling):
    """One member of a chat, or one of its devices. A device begins where the member is when it first pulls."""

    def __init__(self, log: Log, driver: Driver, member: str, device: str, index_of: IndexOf) -> None:
        super().__init__(log, driver, check_reader("member", member), device and check_reader("device", device))
        self._index_of = index_of
        self.member = member
        self.device = device

    def __repr__(self) -> str:
        return f"<Reader {self.member} of {self._log.keys.name}>"

    def _tell(self, told: Sequence[str]) -> Operation[None]:
        others = [reader for reader in told if reader.partition("\0")[0] != self.member]
        return tell(self._index_of, self._log.keys.name, others)

    @verb
    def forget(self) -> Operation[bool]:
        """This device reads no more (it was lost, or sold); False: it never did. The member stays, and of its last
        device the cursor, too. One round trip."""
        there, more = yield self._log.drop_device(self.member, self.device)
        yield from self._log.trim_rest(more)
        return bool(there)


class Chat:
    """A chat of the app, by its id. Making one of these sends nothing; `app.chats.create` makes the chat itself."""

    def __init__(self, id: str, driver: Driver, settings: Settings, clock: Clock, index_of: IndexOf) -> None:
        self._log = Log(LogKeys(settings.prefix, "chat", id), settings, clock)
        self._driver = driver
        self._index_of = index_of
        self.id = id

    def __repr__(self) -> str:
        return f"<Chat {self.id}>"

    # --- messages ---

    @verb
    def send(self, sender: str, message: Any, *, id: str | None = None, wait: float | None = 0.0) -> Operation[int]:
        """Send a value (anything JSON can hold) to all members; answers with its number.

        id    your own id of the message: of those with one id that come within a day and a thousand messages, one is
              sent, and all get its number
        wait  seconds to wait for space in a chat that refuses more; 0 raises NoSpace at once, None waits for ever

        Raises ChatGone, NotAMember. One round trip, however many members; one more if some of them wait for news of all
        their chats.
        """
        check_wait("send", wait)
        return self._sent_one([(id or "", self._log.encode(message))], check_reader("member", sender), wait)

    def _sent_one(self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None) -> Operation[int]:
        (number,), told = yield from self._log.posted(sender, messages, make=False, wait=wait)
        if told:
            yield from tell(self._index_of, self.id, told)
        return int(number)

    def _sent(self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None) -> Operation[list[int]]:
        numbers, told = yield from self._log.posted(sender, messages, make=False, wait=wait)
        yield from tell(self._index_of, self.id, told)
        return numbers

    @verb
    def send_many(
        self, sender: str, messages: Iterable[Any], *, ids: Iterable[str] | None = None, wait: float | None = 0.0
    ) -> Operation[list[int]]:
        """Send many, 500 a round trip; each 500 whole or not at all. All are encoded before the first is sent.

        Answers with their numbers. `ids`: one for each, as in `send`.
        """
        check_wait("send_many", wait)
        bodies = [self._log.encode(message) for message in messages]
        named = list(zip([""] * len(bodies) if ids is None else ids, bodies, strict=True))
        return self._sent(named, check_reader("member", sender), wait)

    def reader(self, member: str, device: str = "") -> Reader:
        """A member, or one of its devices, as a reader. No round trip."""
        return Reader(self._log, self._driver, member, device, self._index_of)

    def follow(self, member: str, device: str = "", *, limit: int = 100, ack: bool = True) -> Follow:
        """Every message for this member, see `Reader.follow`."""
        return self.reader(member, device).follow(limit=limit, ack=ack)

    # --- members ---

    @verb
    def join(self, member: str, *, history: History = "now") -> Operation[None]:
        """Read from now on, from the `start` of what is still there, or the last n messages and on.

        A member stays as it is. Raises ChatGone. Three round trips.
        """
        last = {"now": 0, "start": -1}.get(history, history) if isinstance(history, str) else history
        if not isinstance(last, int) or (last < 0 and history != "start"):
            raise ValueError(f"join(history={history!r}): 'now', 'start', or how many of the last messages")
        return self._joined(self._index_of(check_reader("member", member)), member, last)

    def _joined(self, index: Index, member: str, last: int) -> Operation[None]:
        entry = yield index.enlist(self.id, pending=True)
        try:
            yield self._log.join(member, last)
        except ChatGone:
            yield index.strike(self.id, entry, sure=True)
            raise
        yield index.enlist(self.id, pending=False)

    @verb
    def leave(self, member: str) -> Operation[bool]:
        """A member and all its devices read no more; False: it was none. The last one out frees everything.

        Three round trips.
        """
        return self._left(self._index_of(check_reader("member", member)), member)

    @verb
    def kick(self, member: str) -> Operation[bool]:
        """The same as `leave`, said by another."""
        return self._left(self._index_of(check_reader("member", member)), member)

    def _left(self, index: Index, member: str) -> Operation[bool]:
        entry = yield index.find(self.id)
        was, more = yield self._log.leave(member)
        if entry is not None:
            yield index.strike(self.id, entry)
        yield from self._log.trim_rest(more)
        return bool(was)

    @verb
    def members(self, limit: int = PAGE, offset: int = 0) -> RoundTrip[list[Member]]:
        """A page of them, those furthest behind first. Raises ChatGone. One round trip."""
        if not 1 <= limit <= PAGE or offset < 0:
            raise ValueError(f"members(limit={limit}, offset={offset}): limit 1 to {PAGE}, offset 0 or more")
        return self.roster(limit, offset)

    def roster(self, limit: int, offset: int = 0) -> RoundTrip[list[Member]]:
        return self._log.roster(offset, limit).then(self._roster)

    def _roster(self, found: tuple[int, int, list[tuple[str, int, int]]]) -> list[Member]:
        last, first, rows = found
        members = []
        for reader, read, seen in rows:
            name, _, device = reader.partition("\0")
            members.append(Member(name, device, read, last - max(read, first - 1), seen / 1000 or None))
        return members

    # --- look after ---

    @verb
    def info(self) -> RoundTrip[ChatInfo]:
        """What it holds. Raises ChatGone. One round trip, O(1)."""
        return self.look()

    def look(self) -> RoundTrip[ChatInfo]:
        return self._log.look("").then(lambda look: ChatInfo(self.id, look.top, look.first, look.bytes, look.readers))

    @verb
    def keep(self, keep: Keep) -> Operation[None]:
        """What to keep from now on, and at the limit drop or refuse. Raises ChatGone. One round trip, and one for each
        slice to free."""
        more = yield self._log.limit(keep, make=False)
        yield from self._log.trim_rest(more)

    @verb
    def delete(self) -> Operation[bool]:
        """All of it, whoever is in it; False: there was none. Three round trips for each hundred members or so."""
        return self._deleted()

    def _deleted(self) -> Operation[bool]:
        found: list[Member] = []
        try:
            while len(page := (yield self.roster(PAGE, len(found)))) == PAGE:
                found += page
        except ChatGone:
            return False
        indexes = [self._index_of(name) for name in dict.fromkeys(member.name for member in [*found, *page])]
        entries = yield from in_lots(index.find(self.id) for index in indexes)
        there = yield self._log.delete()
        known = [(index, entry) for index, entry in zip(indexes, entries, strict=True) if entry is not None]
        yield from in_lots(index.strike(self.id, entry) for index, entry in known)
        return bool(there)
