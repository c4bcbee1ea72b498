"""The values that a reader gets: `Message`, `Mail` (the messages of one pull) and `Gap`; and `Keep`, a log's limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from penstock import codec
from penstock.core.arguments import check_number, check_whole
from penstock.errors import BadCall
from penstock.sealing import open_text, opened_or_kept
from penstock.settings import Seal

_POSITION = re.compile(r"([1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})\Z")
MAX_NUMBER: Final = 2**53 - 1
"""Lua's numbers are exact up to here."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits on the messages that a log keeps for readers that have not acknowledged them.

    None means no limit: `Keep()` keeps each message until every reader has acknowledged it.

    messages  how many messages, not counting edits and redactions, of which up to 10,000 more are kept
    bytes     how many bytes: senders and bodies, plus 32 bytes for each message, and for each edit
    age       how many seconds; checked on each send and each read
    full      what happens at the limit of messages or bytes: "drop" drops the oldest messages and reports a gap to each
              reader that had not read them; "refuse" refuses new ones
    """

    messages: int | None = None
    bytes: int | None = None
    age: float | None = None
    full: Literal["drop", "refuse"] = "drop"

    def __post_init__(self) -> None:
        for name in ("messages", "bytes", "age"):
            value = getattr(self, name)
            if value is not None:
                check_number("Keep", name, value, 0.001, 10**15, "more than 0, or None for no limit")
        if self.full not in {"drop", "refuse"}:
            raise ValueError(f"Keep(full={self.full!r}): 'drop' or 'refuse'")


@dataclass(frozen=True, slots=True)
class History:
    """How many messages are kept after every reader has acknowledged them, so that they can be read again.

    A message is kept while it is one of the last `messages`, not counting edits and redactions, or younger than `age`
    seconds. Messages that `Keep` drops do not become history. None: keep no messages for this reason.
    """

    messages: int | None = None
    age: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("messages", 1), ("age", 0.001)):
            value = getattr(self, name)
            if value is not None:
                check_number("History", name, value, least, 10**11, "more than 0, or None")
        if self.messages is not None:
            check_whole("History", "messages", self.messages, 1, 10**11, "how many messages, a whole number")


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that are not stored any more, though this reader had not acknowledged them, or has asked for them.

    first   number of the oldest message that is still stored
    missed  how many are missing
    """

    first: int
    missed: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    id             its position, an opaque text. Store it to `ack` later, or to continue reading after this message
    sender         the member that sent it, or in a mailbox the `sender` of the post; "" if it named none
    at             when the server stored it, in seconds since 1970
    data           the encoded body; left out of `repr`, because it may be large or confidential
    place          the mailbox's name, or the chat's id
    missed         how many messages are missing directly before this one, because the log's `Keep` dropped them unread
    new_beginning  the mailbox or chat began again since the position that this read continued from: it was deleted and
                   created again, or the server fell back to an older state. Messages may be delivered a second time
    """

    id: str
    sender: str
    at: float
    data: bytes = field(repr=False)
    place: str = ""
    missed: int = 0
    new_beginning: bool = False
    note: str = field(default="", repr=False)

    @property
    def number(self) -> int:
        """Its number. The messages of a mailbox or a chat are numbered consecutively."""
        return number_of(self.id)

    @property
    def redacted(self) -> bool:
        """Whether its body was removed. `body` returns None for such a message."""
        return self.note.startswith("redacted ")

    @property
    def edited(self) -> bool:
        """Whether its body was replaced. `body` returns the last one."""
        return self.note.startswith("edited ")

    @property
    def event(self) -> Literal["redact", "edit"] | None:
        """The kind of this event, or None for a message. An event is about the message with the id `about`; the body of
        an "edit" is the new one, or None if a later event replaced it."""
        match self.note.partition(" ")[0]:
            case "redact":
                return "redact"
            case "edit":
                return "edit"
            case _:
                return None

    @property
    def about(self) -> str | None:
        """The id of the message that an event is about."""
        return self.note.partition(" ")[2] if self.event else None

    @property
    def body(self) -> Any:
        """The value that was sent. Raises BadCall for damaged bytes, SealError for what this program cannot open."""
        if not self.data and self.note:
            return None
        return codec.decode(self.data, what=f"message {self.number} of {self.place!r}")


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message of a mailbox that no worker acknowledged: it is delivered again only if it is requeued.

    died        when it became a dead letter, in seconds since 1970 by the server's clock
    deliveries  how often it was handed to a worker
    reason      the reason that a worker gave with `fail`, or that it was delivered too often
    """

    id: str
    sender: str
    died: float
    deliveries: int
    reason: str
    data: bytes = field(repr=False)
    place: str = ""

    @classmethod
    def read(
        cls, place: str, seal: Seal | None, id: bytes, died: int, sender: bytes, body: bytes, deliveries: int,
        reason: bytes,
    ) -> DeadMessage:  # fmt: skip
        """A row of a page of dead letters; `died`: server ms."""
        why, data = open_text(reason.decode(), seal), opened_or_kept(body, seal)
        return cls(id.decode(), sender.decode(), died / 1000, int(deliveries), why, data, place)

    @property
    def number(self) -> int:
        """The number of the message in its mailbox."""
        return number_of(self.id)

    @property
    def body(self) -> Any:
        """The value that was posted. Raises BadCall for damaged bytes, SealError for what this program cannot open."""
        return codec.decode(self.data, what=f"dead letter {self.number} of {self.place!r}")


def number_of(id: str) -> int:
    """The number of the message with this id, such as `post` and `send` return it."""
    return int(id.partition("-")[0])


def check_position(verb: str, position: object, place: str) -> str:
    """The text of a position that was given as a message or as its id. Raises BadCall for anything else.

    `verb`: the call, for the message, such as `ack(upto=…)`; `place`: the mailbox's name, or the chat's id.
    """
    if isinstance(position, Message):
        if position.place != place:
            raise BadCall(f"{verb} in {place!r}: this message is from {position.place!r}")
        return position.id
    if isinstance(position, str) and (match := _POSITION.match(position)) and int(match[1]) <= MAX_NUMBER:
        return position
    if isinstance(position, int):
        raise BadCall(
            f"{verb} in {place!r}: {position!r} is a bare number, which another message may have after a new "
            "beginning: give the message, or its id"
        )
    raise BadCall(f"{verb} in {place!r}: {position!r:.100} is neither a message nor the id of one")


class Mail(list[Message]):
    """The messages of one pull, in order.

    gap            the messages that are missing before the first of these; None if none are missing
    unread         how many messages the reader has not acknowledged, these included
    new_beginning  as in the first message; also known if there is no message
    """

    def __init__(
        self, messages: Iterable[Message] = (), gap: Gap | None = None, unread: int = 0, *, new_beginning: bool = False
    ) -> None:
        super().__init__(messages)
        self.gap = gap
        self.unread = unread
        self.new_beginning = new_beginning

    def marked(self) -> Mail:
        """The same messages, after a new beginning."""
        first = [replace(message, new_beginning=True) for message in self[:1]]
        return Mail([*first, *self[1:]], self.gap, self.unread, new_beginning=True)
