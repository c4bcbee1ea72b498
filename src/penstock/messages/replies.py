"""The replies of the scripts of a log, as `bindings.py` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.messages.message import Mail, Message


@dataclass(frozen=True, slots=True)
class WakeReply:
    """The work that a script leaves to its caller: it has woken one slice of those that wait.

    left       how many the next calls of `wake` will wake
    to_notify  readers whose members wait for news of all their chats; the caller notifies these members
    """

    left: int = 0
    to_notify: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PostReply:
    """The positions of the messages. None: nothing was sent, because one call could not free enough old messages or
    message ids; send it again."""

    positions: list[str] | None
    wake: WakeReply = WakeReply()


@dataclass(frozen=True, slots=True)
class PullReply:
    """The reply to a pull.

    last           number of the log's last message
    cursor         number of the last message that the reader has acknowledged
    more_to_trim   the server still has messages to free
    to_notify      as in WakeReply
    new_beginning  a position in the call belongs to a log that began again since, and was ignored; or the log began
                   again below the reader's cursor
    skipped_to     if all messages that were read are overdue: the position of the last one; else ""
    """

    last: int
    cursor: int
    more_to_trim: bool
    to_notify: Sequence[str]
    mail: Mail
    new_beginning: bool = False
    skipped_to: str = ""


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """Claimed messages, each with the name of its claim.

    due_in         seconds after which to ask again even without a message, because a lease runs out; or None
    new_beginning  the mailbox began again below the cursor of its reader
    """

    due_in: float | None
    messages: list[tuple[bytes, Message]]
    new_beginning: bool = False


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The state of a log, and of one of its readers.

    first, last      numbers of the oldest message that is still stored, and of the last one
    bytes            senders and bodies, plus 32 bytes for each message
    readers          how many readers the log has
    ids, ids_since   how many message ids are kept, and when the oldest of them was given, or None
    cursor           number of the last message that this reader has acknowledged; -1 if the log has no such reader
    seen             when this reader last pulled, in seconds since 1970, or None
    unread, behind   how many messages this reader has not acknowledged, without and with those of its own member
    claimed          how many messages its workers have claimed
    dead             how many dead letters the log has
    """

    now: float
    last: int
    first: int
    bytes: int
    readers: int
    ids: int
    ids_since: float | None
    cursor: int
    seen: float | None
    unread: int
    behind: int
    claimed: int
    dead: int
