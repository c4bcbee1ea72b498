"""A group chat: its members send messages, and each member reads all of them at its own pace, on one device or
several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.core.arguments import check_many, check_whole, is_whole, shown
from penstock.core.clock import Clock
from penstock.core.operations import Driver, InBackground, Operation, Parallel, RoundTrip, verb
from penstock.errors import ChatGone, StateLost
from penstock.messages.bindings import ChatIndexBindings, LogBindings
from penstock.messages.keys import LogKeys, check_device, check_reader
from penstock.messages.log import check_post, post_all, trim_rest, wake_rest
from penstock.messages.message import MAX_NUMBER, History, Keep, Message, check_position
from penstock.messages.reader import Follow, LogReader
from penstock.messages.replies import WakeReply
from penstock.settings import Settings

JoinFrom: TypeAlias = int | Literal["now", "start"]
IndexOf: TypeAlias = Callable[[str], ChatIndexBindings]
"""The index of a user's chats."""

MAX_MEMBERS = 1000
"""Most readers in one page of `members`."""

BATCH = 100
"""How many calls, each for another chat or user, are sent together."""

HINT_PATIENCE = 0.3
"""Seconds for which a sender waits until all members are notified."""


@dataclass(frozen=True, slots=True)
class Member:
    """A reader of a chat: a member, or one of a member's devices.

    device  "" for a member without devices
    read    number of the last message that it has acknowledged
    unread  messages that it has not acknowledged, without those that its member sent
    seen    when it last pulled, in seconds since 1970 by the server's clock, or None
    """

    name: str
    device: str
    read: int
    unread: int
    seen: float | None


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """The size of a chat.

    last       number of the last message
    first      number of the oldest message that is still stored
    bytes      of the messages that are kept: senders and bodies, plus 32 bytes for each
    readers    how many members there are; a member with devices counts once for each device
    ids        message ids that are kept, so that a message that is sent again is recognised
    ids_since  when the oldest of them was given, in seconds since 1970, or None
    """

    id: str
    last: int
    first: int
    bytes: int
    readers: int
    ids: int = 0
    ids_since: float | None = None


def member_of(reader: str) -> str:
    """The member that this reader belongs to, which is the reader itself or one of its devices."""
    return reader.partition("\0")[0]


def run_in_batches(calls: Iterable[RoundTrip[Any]]) -> Operation[list[Any]]:
    """Run calls that do not depend on one another. One round trip for each hundred calls and each server."""
    waiting, answers = list(calls), list[Any]()
    while waiting:
        answers += yield Parallel(tuple(waiting[:BATCH]))
        waiting = waiting[BATCH:]
    return answers


def notify_members(index_of: IndexOf, chat: str, readers: Iterable[str]) -> Operation[None]:
    """Notify the members of these readers: the chat has new messages. This adds a hint to each member's index of chats.

    The indexes may be on a node that does not answer. So this returns after 0.3 s at the latest, continues in the
    background, and fails silently: the messages are in the chat, and the hint is repeated later.
    """
    indexes = [index_of(member) for member in dict.fromkeys(member_of(reader) for reader in readers)]
    if indexes:
        yield InBackground(_hint(indexes, chat), HINT_PATIENCE)


def _hint(indexes: Sequence[ChatIndexBindings], chat: str) -> Operation[None]:
    wakes: list[WakeReply] = yield from run_in_batches(index.hint([chat]) for index in indexes)
    for index, wake in zip(indexes, wakes, strict=True):
        yield from wake_rest(index, wake)


class Reader(LogReader):
    """One member of a chat, or one of its devices. At its first pull a new device starts from its member's cursor."""

    def __init__(self, log: LogBindings, driver: Driver, member: str, device: str, index_of: IndexOf) -> None:
        super().__init__(log, driver, check_reader("member", member), check_device(device))
        self._index_of = index_of
        self.member = member
        self.device = device

    def __repr__(self) -> str:
        return f"<Reader {self.member} of {self._log.keys.name}>"

    def _notify(self, readers: Sequence[str]) -> Operation[None]:
        others = [reader for reader in readers if member_of(reader) != self.member]
        return notify_members(self._index_of, self._log.keys.name, others)

    @verb
    def forget(self) -> Operation[bool]:
        """Remove this device, because it was lost or sold. Returns False if it never pulled.

        The member stays in the chat. If this was its last device, the member takes over its cursor. One round trip.
        """
        was_reader, more_to_trim = yield self._log.drop_device(self.member, self.device)
        yield from trim_rest(self._log, more_to_trim)
        return bool(was_reader)


class Chat:
    """A chat of the app, by its id. Making this object sends nothing; `app.chats.create` makes the chat itself."""

    def __init__(self, id: str, driver: Driver, settings: Settings, clock: Clock, index_of: IndexOf) -> None:
        self._log = LogBindings(LogKeys(settings.prefix, "chat", id), settings, clock)
        self._driver = driver
        self._index_of = index_of
        self.id = id

    def __repr__(self) -> str:
        return f"<Chat {self.id}>"

    # --- messages ---

    @verb
    def send(self, sender: str, message: Any, *, id: str | None = None, wait: float | None = 0.0) -> Operation[str]:
        """Send a value (anything that JSON can hold) to all members. Returns the id of the message, as readers get it.

        id    your own id for the message. If this sender used it within the last ten minutes, the message is not sent
              again, and the call returns the id of the first one. A chat keeps 10,000 ids of a sender and 100,000 in
              all; above that, TooManyIds is raised
        wait  seconds to wait for space in a chat that refuses messages at its limit; 0 raises NoSpace at once, None
              waits for ever

        Raises ChatGone, NotAMember. One round trip, however many members there are; one more if some of them wait for
        news of all their chats.
        """
        messages = check_post("send", [self._log.encode(message)], [id], wait)
        return self._send(messages, check_reader("member", sender), wait)

    def _send(self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None) -> Operation[str]:
        (position,) = yield from self._send_many(messages, sender, wait)
        return position

    @verb
    def send_many(
        self, sender: str, messages: Iterable[Any], *, ids: Iterable[str] | None = None, wait: float | None = 0.0
    ) -> Operation[list[str]]:
        """Send many values. Returns the ids of the messages.

        All values are encoded before the first is sent. A round trip sends 500 of them, either all or none. `ids`: one
        for each value, as in `send`.
        """
        check_many("send_many", "messages", messages, letters=True)
        bodies = [self._log.encode(message) for message in messages]
        pairs = check_post("send_many", bodies, ids, wait)
        return self._send_many(pairs, check_reader("member", sender), wait)

    def _send_many(
        self, messages: Sequence[tuple[str, bytes]], sender: str, wait: float | None
    ) -> Operation[list[str]]:
        positions, to_notify = yield from post_all(self._log, sender, messages, create=False, wait=wait)
        if to_notify:
            yield from notify_members(self._index_of, self.id, to_notify)
        return positions

    @verb
    def redact(self, by: str, message: Message | str) -> Operation[str]:
        """Remove the body of a message, or of the message with this id, for all members that have not read it yet, and
        send an event on which the other members can act. Returns the id of the event.

        The message keeps its number, time and sender; its readers get it with `redacted` set. The event has `event` and
        `about`. Any member may do this to any message: check its rights before. A second redaction changes nothing.
        Raises ChatGone, NotAMember, NewBeginning. One round trip.
        """
        return self._change(by, message, "redact", b"null")

    @verb
    def edit(self, by: str, message: Message | str, body: Any) -> Operation[str]:
        """Replace the body of a message, or of the message with this id, and send an event with the new body. Returns
        the id of the event.

        The message keeps its number, time and sender; its readers get it with the new body and with `edited` set.
        Otherwise as `redact`. Raises MessageError for a message that was redacted.
        """
        return self._change(by, message, "edit", self._log.encode(body))

    def _change(
        self, by: str, message: Message | str, action: Literal["redact", "edit"], body: bytes
    ) -> Operation[str]:
        position = check_position(f"{action}(…)", message, self.id)
        event, wake = yield self._log.change(check_reader("member", by), position, action, body)
        to_notify = yield from wake_rest(self._log, wake)
        yield from notify_members(self._index_of, self.id, to_notify)
        return str(event)

    def reader(self, member: str, device: str = "") -> Reader:
        """A member, or one of its devices, as a reader. No round trip."""
        return Reader(self._log, self._driver, member, device, self._index_of)

    def follow(
        self, member: str, device: str = "", *, after: Message | str | None = None, limit: int = 100, ack: bool = True
    ) -> Follow:
        """Iterate over every message for this member; see `Reader.follow`."""
        return self.reader(member, device).follow(after=after, limit=limit, ack=ack)

    # --- members ---

    @verb
    def join(self, member: str, *, history: JoinFrom = "now") -> Operation[None]:
        """Add a member, which reads every message from now on.

        history  "now": only new messages; "start": also every message that is still stored; a number: also that many of
                 the last messages

        Changes nothing if it is a member already. Raises ChatGone. Three round trips.
        """
        last: Any = {"now": 0, "start": -1}.get(history, history) if isinstance(history, str) else history
        if history != "start" and not is_whole(last, 0, MAX_NUMBER):
            raise ValueError(f"join(history={shown(history)}): 'now', 'start', or how many of the last messages")
        return self._join(self._index_of(check_reader("member", member)), member, last)

    def _join(self, index: ChatIndexBindings, member: str, last: int) -> Operation[None]:
        entry = yield index.add(self.id, pending=True)
        try:
            yield self._log.join(member, last)
        except ChatGone:
            yield index.remove(self.id, entry, join_failed=True)
            raise
        yield index.add(self.id, pending=False)

    @verb
    def leave(self, member: str) -> Operation[bool]:
        """Remove a member and all its devices. Returns False if it was not a member.

        When the last member leaves, the chat and its messages are freed. Three round trips.
        """
        return self._leave(self._index_of(check_reader("member", member)), member)

    @verb
    def kick(self, member: str) -> Operation[bool]:
        """Do the same as `leave`. Use this name where another user removes the member."""
        return self._leave(self._index_of(check_reader("member", member)), member)

    def _leave(self, index: ChatIndexBindings, member: str) -> Operation[bool]:
        entry = yield index.find(self.id)
        was_member, more_to_trim, wake, again = yield self._log.leave(member)
        if entry is not None:
            yield index.remove(self.id, entry)
        yield from wake_rest(self._log, wake)
        yield from trim_rest(self._log, more_to_trim)
        while again:
            _, _, _, again = yield self._log.leave(member)
        return bool(was_member)

    @verb
    def members(self, limit: int = MAX_MEMBERS, offset: int = 0) -> RoundTrip[list[Member]]:
        """A page of the members; those that are furthest behind come first. Raises ChatGone. One round trip."""
        check_whole("members", "limit", limit, 1, MAX_MEMBERS, f"1 to {MAX_MEMBERS:,}")
        check_whole("members", "offset", offset, 0, 10**9, "0 or more")
        return self.read_members(limit, offset)

    def read_members(self, limit: int, offset: int = 0) -> RoundTrip[list[Member]]:
        return self._log.readers(offset, limit).then(_as_members)

    # --- the chat as a whole ---

    @verb
    def info(self) -> RoundTrip[ChatInfo]:
        """The size of the chat. Raises ChatGone. One round trip, O(1)."""
        return self.read_info()

    def read_info(self) -> RoundTrip[ChatInfo]:
        return self._log.status("").then(
            lambda status: ChatInfo(
                self.id, status.last, status.first, status.bytes, status.readers, status.ids, status.ids_since
            )
        )

    @verb
    def keep(self, keep: Keep | None = None, *, history: History | None = None) -> Operation[None]:
        """Change how many unread messages the chat keeps, and how much history; None leaves a setting unchanged.
        Messages above the new limits are freed at once, in slices. Raises ChatGone. One round trip, and one more for
        each further slice."""
        more_to_trim = yield self._log.limit(keep, create=False, history=history)
        yield from trim_rest(self._log, more_to_trim)

    @verb
    def delete(self) -> Operation[bool]:
        """Delete the chat for all its members. Returns False if there was no chat. About three round trips for each
        hundred members."""
        return self._delete()

    def _delete(self) -> Operation[bool]:
        members: list[Member] = []
        try:
            while len(page := (yield self.read_members(MAX_MEMBERS, len(members)))) == MAX_MEMBERS:
                members += page
        except ChatGone:
            return False
        except StateLost:
            page = []  # delete the rest; a pull of the members repairs their indexes
        indexes = [self._index_of(name) for name in dict.fromkeys(member.name for member in [*members, *page])]
        entries = yield from run_in_batches(index.find(self.id) for index in indexes)
        existed, wake = yield self._log.delete()
        yield from wake_rest(self._log, wake)
        known = [(index, entry) for index, entry in zip(indexes, entries, strict=True) if entry is not None]
        yield from run_in_batches(index.remove(self.id, entry) for index, entry in known)
        return bool(existed)


def _as_members(reply: tuple[int, int, list[tuple[str, int, int, int]]]) -> list[Member]:
    last, first, rows = reply
    members = []
    for reader, read, seen, own in rows:
        name, _, device = reader.partition("\0")
        members.append(Member(name, device, read, last - max(read, first - 1) - own, seen / 1000 or None))
    return members
