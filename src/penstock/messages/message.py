"""The values that a reader gets: `Message`, `Mail` (the messages of one pull) and `Gap`; and `Keep`, a log's limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock import codec


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits on the messages that a log keeps for readers that have not acknowledged them.

    None means no limit: `Keep()` keeps each message until every reader has acknowledged it.

    messages  how many messages
    bytes     how many bytes: senders and bodies, plus 32 bytes for each message
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
            if value is not None and not 0.001 <= value <= 10**15:
                raise ValueError(f"Keep({name}={value}): more than 0, or None for no limit")
        if self.full not in {"drop", "refuse"}:
            raise ValueError(f"Keep(full={self.full!r}): 'drop' or 'refuse'")


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that were dropped before this reader had read them.

    first   number of the oldest message that is still there
    missed  how many were dropped
    """

    first: int
    missed: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    id      its number: the first message of a log is number 1, and each later one has the next number
    at      when the server stored it, in seconds since 1970
    data    the encoded body; left out of `repr`, because it may be large or confidential
    place   the mailbox's name, or the chat's id
    missed  how many messages are missing directly before this one, because the log's `Keep` dropped them unread
    """

    id: int
    sender: str
    at: float
    data: bytes = field(repr=False)
    place: str = ""
    missed: int = 0

    @property
    def body(self) -> Any:
        """The value that was sent. Raises BadCall for damaged bytes."""
        return codec.decode(self.data, what=f"message {self.id} of {self.place!r}")


class Mail(list[Message]):
    """The messages of one pull, in order.

    gap     the messages that are missing before the first of these; None if none are missing
    unread  how many messages the reader has not acknowledged, these included
    """

    def __init__(self, messages: Iterable[Message] = (), gap: Gap | None = None, unread: int = 0) -> None:
        super().__init__(messages)
        self.gap = gap
        self.unread = unread
