"""Binds the scripts of messages: the order of their arguments, and what their replies mean.

LogBindings        `log.lua`, `shared_reader.lua`: a log with readers (a mailbox, a chat, a channel of files)
ChatIndexBindings  `chats.lua`: the index of one user's chats
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

from penstock import codec
from penstock.core.arguments import shown
from penstock.core.clock import Clock
from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Library
from penstock.errors import (
    BadCall,
    ChatExists,
    ChatGone,
    ConfigurationError,
    MessageError,
    NewBeginning,
    NoSpace,
    NotAMember,
    PenstockError,
    StateLost,
    TooManyIds,
)
from penstock.messages.constants import KEPT_MS, MAX_DEVICES, MOST_EVENTS, OVERDUE, PER_LOG, PER_SENDER
from penstock.messages.keys import LogKeys
from penstock.messages.message import DeadMessage, Gap, History, Keep, Mail, Message, number_of
from penstock.messages.replies import ClaimReply, LogStatus, PostReply, PullReply, WakeReply
from penstock.sealing import opened_or_kept
from penstock.settings import Settings

R = TypeVar("R")
T = TypeVar("T")

ClaimAction: TypeAlias = Literal["ack", "release", "extend", "bury"]

ROW: Final = 5
"""Values that a reply has for each message: number, ms, sender, body, note."""

PULL_BYTES = 1024 * 1024
"""A pull returns at most this many bytes of message bodies, but always at least one message."""


@cache
def log_scripts() -> Library:
    return Library(
        "core/clock.lua", "core/notify.lua", "core/waiting.lua", "core/deputy.lua", "core/sleepers.lua",
        "core/idempotency.lua", "core/log.lua", "messages/log.lua", "messages/state.lua", "messages/post.lua",
        "messages/waking.lua", "messages/readers.lua", "messages/shared_reader.lua", "messages/dead_letters.lua",
        "messages/history.lua", "messages/own.lua",
    )  # fmt: skip


@cache
def chat_index_scripts() -> Library:
    return Library("core/clock.lua", "core/notify.lua", "core/waiting.lua", "messages/chats.lua")


def decode_names(reply: Iterable[bytes]) -> list[str]:
    return [name.decode() for name in reply]


def default_on(refusals: bytes, call: RoundTrip[R], default: T) -> RoundTrip[R | T]:
    """Make the call return `default` where it would raise for one of these refusals, such as b"GONE NOT_A_MEMBER"."""
    read = call.read
    return RoundTrip(
        call.script, call.keys, call.args, lambda reply: default if reply[0] in refusals.split() else read(reply)
    )


def new_beginning(log: LogBindings, position: str, what: str) -> NewBeginning:
    """The error for a position of a log that began again since. `what`: the action that was not performed."""
    return NewBeginning(
        f"{log.label} began again since message {number_of(position)} was read: it was deleted and created again, or "
        f"its server fell back to an older state. Nothing was {what}: pull again"
    )


class LogBindings:
    """The scripts of one log. Each method is one round trip.

    `member` and `device` name a reader of a chat; a mailbox has one reader, without a name.

    With `ttl` above 0, a script that finds nothing registers `address` for that many seconds, and the next event
    notifies that address. `watch`: if the reader has read everything, the server asks the next sender to notify the
    reader's member.
    """

    def __init__(self, keys: LogKeys, settings: Settings, clock: Clock) -> None:
        self.keys = keys
        self.settings = settings
        self.clock = clock
        self.label = f"{keys.kind} {keys.name!r}"
        """The name of this log in errors."""
        self._declared = keys.declared
        self._scripts = log_scripts()

    def _call(
        self, name: str, args: Iterable[Arg], read: Callable[[Sequence[Any]], R], who: str = "", *, also: bytes = b""
    ) -> RoundTrip[R]:
        """Make a call. `also`: replies besides OK that `read` understands."""

        def read_or_raise(reply: Sequence[Any]) -> R:
            if reply[0] != b"OK" and reply[0] not in also.split():
                raise self.error_for(reply, who)
            return read(reply)

        return RoundTrip(self._scripts[name], self._declared, tuple(args), read_or_raise)

    def error_for(self, reply: Sequence[Any], who: str) -> PenstockError:
        """The error for a script's refusal. `who` is the member or receiver that the call was for."""
        match reply[0]:
            case b"GONE":
                return ChatGone(f"no {self.label}: never created, deleted, or its last member has left")
            case b"NOT_A_MEMBER":
                return self.not_a_member(who)
            case b"EXISTS":
                return ChatExists(f"{self.label} exists already: open it with get(), or give another id")
            case b"FULL":
                return NoSpace(
                    f"{self.label} is at its limit and its reader is behind; nothing was sent: try later, or with wait="
                )
            case b"LARGE":
                return NoSpace(f"the messages are larger than all that {self.label} may hold: send less at once")
            case b"VANISHED":
                return self.state_lost(reply[1].decode())
            case b"IDS":
                return self._too_many_ids(who, *reply[1:])
            case _:
                return MessageError(f"{who!r} has {MAX_DEVICES} devices in {self.label} already: forget() some")

    def state_lost(self, name: str) -> StateLost:
        """The error for a key that has vanished. `name`: the part of its name after the hash tag."""
        key = self.keys.base + name
        return StateLost(
            f"the key {key!r} of {self.label} has vanished: evicted, deleted by hand, or left out of a restore. "
            f"Restore it, or delete {self.label} and begin again",
            key=key,
        )

    def _too_many_ids(self, sender: str, own: int, total: int) -> TooManyIds:
        return TooManyIds(
            f"{self.label} keeps {own:,} message ids of {sender!r} and {total:,} in all, each for {KEPT_MS // 60000} "
            f"minutes: at most {PER_SENDER:,} of one sender and {PER_LOG:,} in all. Nothing was sent: send later, or "
            "without ids"
        )

    def not_a_member(self, who: str) -> NotAMember:
        return NotAMember(f"{who!r} is not a member of {self.label}: never joined, left, or was kicked")

    def encode(self, value: Any) -> bytes:
        limit, what = self.settings.max_payload, f"the message to {self.label}"
        return codec.encode(value, limit=limit, what=what, untyped=True, seal=self.settings.seal)

    # --- send ---

    def create(
        self, members: Iterable[str], keep: Keep, sender: str, body: bytes | None, history: History | None = None
    ) -> RoundTrip[None]:
        """Create a log with these members and its first message, if `body` is not None. Raises ChatExists."""
        args: tuple[Arg, ...] = (
            *UNNUMBERED,
            self.clock.now_ms,
            *_limits(keep),
            *_history_limits(History() if history is None else history),
            sender,
            int(body is not None),
            body or b"",
            *members,
        )
        return self._call("create", args, lambda _: None)

    def post(
        self, sender: str, messages: Sequence[tuple[str, bytes]], *, create: bool, lifetime: float = 0.0,
        address: str = "", ttl: float = 0.0,
    ) -> RoundTrip[PostReply]:  # fmt: skip
        """Append messages, given as pairs of id and body.

        create    any sender may post, and a log that does not exist is made; otherwise the sender must be a member
        lifetime  seconds after which they are not delivered any more; 0: no limit
        """
        id_and_body = [part for message in messages for part in message]
        args = (
            *UNNUMBERED, self.clock.now_ms, int(create), sender, math.ceil(lifetime * 1000), address, int(ttl * 1000),
            *id_and_body,
        )  # fmt: skip

        def read(reply: Sequence[Any]) -> PostReply:
            if reply[0] == b"AGAIN":
                return PostReply(None)
            return PostReply(decode_names(reply[1]), _wake_reply(*reply[2:]))

        return self._call("post", args, read, sender, also=b"AGAIN")

    # --- read ---

    def pull(
        self, member: str, device: str = "", *, limit: int, acked: str = "", after: str = "",
        max_bytes: int = PULL_BYTES, address: str = "", ttl: float = 0.0, watch: bool = False,
    ) -> RoundTrip[PullReply]:  # fmt: skip
        """Acknowledge up to the position `acked`, then return up to `limit` messages: those after the position `after`,
        or with "" after the cursor."""
        args = (self.clock.now_ms, member, device, acked, after, limit, max_bytes, address, int(ttl * 1000), int(watch))

        def read(reply: Sequence[Any]) -> PullReply:
            _, last, first, cursor, number, restarted, more, _, to_notify, unread, *rows = reply
            gap = Gap(first, first - 1 - number) if first - 1 > number else None
            mail = Mail(
                self._messages(rows, number, new_beginning=bool(restarted)), gap, unread, new_beginning=bool(restarted)
            )
            skipped_to = f"{rows[-5]}-{rows[-4]}" if rows and not mail else ""
            return PullReply(last, cursor, bool(more), decode_names(to_notify), mail, bool(restarted), skipped_to)

        return self._call("pull", args, read, member)

    def mark_unread(self, member: str, device: str, position: str) -> RoundTrip[None]:
        def read(reply: Sequence[Any]) -> None:
            number = number_of(position)
            match reply[0]:
                case b"RESTARTED":
                    raise new_beginning(self, position, "marked as unread")
                case b"FREED":
                    raise MessageError(
                        f"message {number} of {self.label} is not stored any more, the oldest one is {reply[1]}: "
                        "history=History(…) keeps what all have read"
                    )
                case b"SHARED":
                    raise MessageError(f"workers claim the messages of {self.label}: requeue a dead letter instead")

        args = (self.clock.now_ms, member, device, position)
        return self._call("mark_unread", args, read, member, also=b"RESTARTED FREED SHARED")

    def _messages(self, rows: Sequence[Any], before: int, *, new_beginning: bool = False) -> list[Message]:
        """Make messages of rows of number, ms, sender, body, note. `before`: the number before the first requested one.
        `new_beginning` marks the first message."""
        messages, seal = [], self.settings.seal
        for number, at, sender, body, note in zip(*(iter(rows),) * ROW, strict=True):
            missed, before = number - 1 - before, number
            if note == OVERDUE:
                continue
            messages.append(
                Message(
                    f"{number}-{at}", sender.decode(), at / 1000, opened_or_kept(body, seal), self.keys.name, missed,
                    new_beginning, note.decode(),
                )
            )  # fmt: skip
            new_beginning = False
        return messages

    def page(self, member: str, *, before: str, after: str, limit: int) -> RoundTrip[Mail]:
        """A page of messages before or after a position, or the last ones, without moving a cursor."""

        def read(reply: Sequence[Any]) -> Mail:
            _, restarted, number, *rows = reply
            messages = self._messages(rows, number, new_beginning=bool(restarted))
            return Mail(messages, new_beginning=bool(restarted))

        args = (self.clock.now_ms, member, before, after, limit, PULL_BYTES)
        return self._call("page", args, read, member)

    def change(
        self, by: str, position: str, action: Literal["redact", "edit"], body: bytes
    ) -> RoundTrip[tuple[str, WakeReply]]:
        """Remove the body of a message, or replace it, and post an event. Returns the position of the event."""
        args = (*UNNUMBERED, self.clock.now_ms, by, position, action, body)

        def read(reply: Sequence[Any]) -> tuple[str, WakeReply]:
            number = number_of(position)
            match reply[0]:
                case b"RESTARTED":
                    raise new_beginning(self, position, "changed")
                case b"EVENT":
                    raise BadCall(
                        f"{action} in {self.label}: message {number} is an event about another message: {action} that "
                        "one, whose id is its `about`"
                    )
                case b"EVENTS":
                    raise NoSpace(
                        f"{self.label} keeps {MOST_EVENTS:,} edits and redactions for its slow readers: edit later"
                    )
                case b"REDACTED":
                    raise MessageError(f"message {number} of {self.label} was redacted: it cannot be edited")
            return reply[1].decode(), _wake_reply(*reply[2:])

        return self._call("change", args, read, by, also=b"RESTARTED EVENT EVENTS REDACTED")

    def stop_waiting(self, address: str, shared_reader: str | None = None) -> RoundTrip[int]:
        """Deregister an address. `shared_reader`: the reader whose worker has this address, if it is a worker's."""
        args = (self.clock.now_ms, address, int(shared_reader is not None), shared_reader or "")
        return RoundTrip(self._scripts["stop_waiting"], self._declared, args, int)

    def wake(self) -> RoundTrip[WakeReply]:
        """Wake the next slice of those that wait for this log."""
        return self._call("wake", (self.clock.now_ms,), lambda reply: _wake_reply(*reply[1:]))

    def trim(self) -> RoundTrip[bool]:
        """Free the next slice of messages that no reader needs. Returns whether there are more."""
        return self._call("trim", (self.clock.now_ms,), lambda reply: bool(reply[1]))

    # --- workers that share one reader ---

    def claim(
        self, member: str, token: str, *, lease: float, limit: int, max_deliveries: int = 0, address: str = "",
        ttl: float = 0.0,
    ) -> RoundTrip[ClaimReply]:  # fmt: skip
        """Claim up to `limit` messages. A second call with the same `token` returns the same messages. A message that
        was delivered `max_deliveries` times (0: any number) becomes a dead letter."""
        args = (
            self.clock.now_ms, member, token, int(lease * 1000), limit, PULL_BYTES, max_deliveries, address,
            int(ttl * 1000),
        )  # fmt: skip

        def read(reply: Sequence[Any]) -> ClaimReply:
            status, due_ms, *rows = reply
            claimed = []
            for at in range(0, len(rows), 1 + ROW):
                (message,) = self._messages(rows[at + 1 : at + 1 + ROW], rows[at + 1] - 1)
                claimed.append((rows[at], message))
            return ClaimReply(None if due_ms < 0 else due_ms / 1000, claimed, status == b"AGAIN")

        return self._call("claim", args, read, member, also=b"AGAIN")

    def settle_claims(
        self, member: str, action: ClaimAction, claims: Sequence[bytes], seconds: float = 0.0, reason: str = ""
    ) -> RoundTrip[tuple[bool, list[int]]]:
        """Acknowledge, release, extend or bury these claims. Returns whether there is more to trim, and the indexes of
        lost claims, whose messages another worker has taken over.

        seconds  the new lease for "extend"; for "release", until another worker may have the message
        reason   for "bury", which makes dead letters
        """
        args = (*UNNUMBERED, self.clock.now_ms, member, action, int(seconds * 1000), reason, *claims)
        return self._call("settle_claims", args, lambda reply: (bool(reply[1]), reply[2]), member)

    # --- dead letters ---

    def list_dead_letters(self, offset: int, limit: int) -> RoundTrip[tuple[int, list[DeadMessage]]]:
        """How many dead letters there are, and a page of them, the latest first; at most a mebibyte."""

        def read(reply: Sequence[Any]) -> tuple[int, list[DeadMessage]]:
            _, total, *rows = reply
            one_each, seal = zip(*(iter(rows),) * 6, strict=True), self.settings.seal
            return total, [DeadMessage.read(self.keys.name, seal, *row) for row in one_each]

        return self._call("list_dead_letters", (offset, limit), read)

    def requeue_dead_letters(self, ids: Sequence[str]) -> RoundTrip[tuple[int, int, WakeReply]]:
        """Post the first of these dead letters again. Returns how many ids were examined, and how many were dead
        letters."""
        args: tuple[Arg, ...] = (*UNNUMBERED, self.clock.now_ms, *ids)
        return self._call("requeue_dead_letters", args, lambda reply: (reply[1], reply[2], WakeReply(reply[3])))

    def remove_dead_letters(self, ids: Sequence[str]) -> RoundTrip[int]:
        """Returns how many of the ids were dead letters."""
        return self._call("remove_dead_letters", (*UNNUMBERED, *ids), lambda reply: int(reply[1]))

    # --- readers ---

    def join(self, member: str, last: int) -> RoundTrip[int]:
        """Add a reader that starts with the `last` latest messages; 0: with new ones, -1: with every message that is
        still stored. Returns its cursor."""
        return self._call("join", (*UNNUMBERED, member, last), lambda reply: int(reply[1]))

    def leave(self, member: str) -> RoundTrip[tuple[bool, bool, WakeReply, bool]]:
        """Returns whether it was a member, whether there is more to trim, and whether to call again, because one call
        could not delete everything that is stored about the member."""
        args = (*UNNUMBERED, self.clock.now_ms, member)
        return self._call(
            "leave", args, lambda reply: (bool(reply[1]), bool(reply[2]), WakeReply(reply[3]), bool(reply[4]))
        )

    def drop_device(self, member: str, device: str) -> RoundTrip[tuple[bool, bool]]:
        """Returns whether the device was a reader, and whether there is more to trim."""
        args = (self.clock.now_ms, member, device)
        return self._call("drop_device", args, lambda reply: (bool(reply[1]), bool(reply[2])))

    def readers(self, offset: int, limit: int) -> RoundTrip[tuple[int, int, list[tuple[str, int, int, int]]]]:
        """Returns the numbers of the last message and of the oldest stored one, and a row for each reader:
        its name, its cursor, when it last pulled (ms), and how many of its unread messages its member sent itself. The
        readers that are furthest behind come first."""

        def read(reply: Sequence[Any]) -> tuple[int, int, list[tuple[str, int, int, int]]]:
            rows = zip(decode_names(reply[3::4]), reply[4::4], reply[5::4], reply[6::4], strict=True)
            return reply[1], reply[2], list(rows)

        return self._call("readers", (offset, limit), read)

    # --- the log as a whole ---

    def limit(self, keep: Keep | None, *, create: bool, history: History | None = None) -> RoundTrip[bool]:
        """Set the limits, and those of the history; None leaves them unchanged. Returns whether there is more to trim.
        `create`: make a log that does not exist."""
        limits = (-1, 0, 0, 0) if keep is None else _limits(keep)
        history_limits = (-1, 0) if history is None else _history_limits(history)
        args = (self.clock.now_ms, int(create), *limits, *history_limits)
        return self._call("limit", args, lambda reply: bool(reply[1]))

    def delete(self) -> RoundTrip[tuple[bool, WakeReply]]:
        """Returns whether there was a log."""
        return self._call("delete", UNNUMBERED, lambda reply: (bool(reply[1]), WakeReply(reply[2])))

    def status(self, member: str, device: str = "", *, watch: bool = False) -> RoundTrip[LogStatus]:
        def read(reply: Sequence[Any]) -> LogStatus:
            _, now, last, first, size, readers, ids, ids_since, cursor, seen, first_unclaimed, claimed, dead, own = (
                reply
            )
            behind = 0
            if cursor >= 0:
                behind = last - max(cursor, first - 1, first_unclaimed - 1) + claimed
            return LogStatus(
                now / 1000, last, first, size, readers, ids, ids_since / 1000 or None, cursor, seen / 1000 or None,
                behind - own, behind, claimed, dead,
            )  # fmt: skip

        return self._call("status", (self.clock.now_ms, member, device, int(watch)), read, member)


def _wake_reply(left: int, to_notify: Iterable[bytes]) -> WakeReply:
    return WakeReply(left, decode_names(to_notify))


def _history_limits(history: History) -> tuple[int, int]:
    if not isinstance(history, History):
        raise ConfigurationError(f"history={shown(history)}: give History(…)")
    return (history.messages or 0, 0 if history.age is None else max(1, int(history.age * 1000)))


def _limits(keep: Keep) -> tuple[int, int, int, int]:
    if not isinstance(keep, Keep):
        raise ConfigurationError(f"keep={shown(keep)}: give Keep(…)")
    age_ms = 0 if keep.age is None else max(1, int(keep.age * 1000))
    return (int(keep.messages or 0), int(keep.bytes or 0), age_ms, int(keep.full == "refuse"))


class ChatIndexBindings:
    """The scripts of one user's index of chats: which chats the user is in, and which of them have new messages.

    Only a chat itself knows its members. It is added to the index before the user joins it, and removed after the user
    has left. So a process that dies in between may leave a chat in the index that the user is not in, but never the
    reverse. A caller that acts on the index asks the chat, and removes an entry that is wrong.

    These methods take and return an entry as the chat's score (see `chats.lua`): an entry that was changed in the
    meantime has another score.
    """

    def __init__(self, prefix: str, user: str, clock: Clock) -> None:
        self.keys = LogKeys(prefix, "chats", user)
        self.clock = clock
        self._scripts = chat_index_scripts()

    def _call(self, name: str, args: Iterable[Arg], read: Any) -> RoundTrip[Any]:
        return RoundTrip(self._scripts[name], self.keys.declared, tuple(args), read)

    def add(self, chat: str, *, pending: bool) -> RoundTrip[bytes]:
        """Returns the entry, so that the caller can remove it if the join fails. `pending`: the user has not joined
        yet."""
        return self._call("add", (self.clock.now_ms, chat, int(pending)), bytes)

    def remove(self, chat: str, entry: bytes, *, join_failed: bool = False) -> RoundTrip[bool]:
        """Remove an entry, unless it has changed since it was read. A pending entry is kept for an hour, because its
        join may be under way; with `join_failed` it is removed at once."""
        return self._call("remove", (self.clock.now_ms, chat, entry, int(join_failed)), bool)

    def find(self, chat: str) -> RoundTrip[bytes | None]:
        """Returns the entry of this chat, or None."""
        return self._call("find", (chat,), lambda reply: reply)

    def page(self, after: bytes, limit: int) -> RoundTrip[list[tuple[str, bytes]]]:
        """Returns chats and their entries that follow the entry `after`; b"-inf" asks for the first page."""

        def read(reply: Sequence[bytes]) -> list[tuple[str, bytes]]:
            return list(zip(decode_names(reply[0::2]), reply[1::2], strict=True))

        return self._call("page", (b"-inf" if after == b"-inf" else b"(" + after, limit), read)

    def hint(self, chats: Iterable[str]) -> RoundTrip[WakeReply]:
        """Note that these chats have new messages, and notify the user's processes that wait for a hint."""
        return self._call("hint", (self.clock.now_ms, *chats), WakeReply)

    def wake(self) -> RoundTrip[WakeReply]:
        """Wake the next slice of the user's faces that wait."""
        return self._call("wake", (), WakeReply)

    def news(self, since: bytes, address: str = "", ttl: float = 0.0) -> RoundTrip[tuple[bytes, list[str]]]:
        """Returns the `since` of the next call, and the chats with a hint after this `since`; b"-inf" asks for all
        hints. `address`, `ttl`: as in LogBindings."""
        return self._call("news", (since, address, int(ttl * 1000)), lambda reply: (reply[0], decode_names(reply[1:])))

    def stop_waiting(self, address: str, shared_reader: str | None = None) -> RoundTrip[int]:
        """Deregister an address. An index has no shared readers."""
        return self._call("stop_waiting", (address,), lambda _: 0)
