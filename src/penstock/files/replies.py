"""What the scripts of a channel reply to senders and receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.files.records import ChannelRecord


@dataclass(frozen=True, slots=True)
class PutReply:
    """The reply to a sender.

    full       there was no space, and no record was stored
    bytes      how many the channel holds now
    slowest    the receiver that is furthest behind, or ""
    due_in     if full: seconds until a receiver that is away is passed over, or None if none will be
    forgotten  how many files the channel forgot, because it remembers a limited number
    """

    full: bool
    bytes: int
    slowest: str
    due_in: float | None = None
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class ReceiveReply:
    """The reply to a process that receives alone.

    status          OK; HELD: another process receives; ENDED: this receiver has received everything; GONE: no channel;
                    PENDING, BUSY, LOST: the counts cannot be added now, and nothing was settled, see `deposits.lua`
    records         the records; none for a new owner, which does not know yet from where to read
    next_limit      the `limit` of the next call
    cursor          number of the last record that this receiver has acknowledged
    last, first     numbers of the channel's last record, and of the oldest that is still stored
    more_to_trim    the server still has records to free
    is_new_owner    the process owns the receiver only since this call: it resumes from `cursor` and `receiver_state`
    restarted       `is_new_owner` is set because the channel began again since the process read from it
    cursor_id       position of the cursor, for a new owner; "" if that is unknown
    holder, due_in  with HELD: the process that receives, and the seconds until its lease runs out
    """

    status: str
    records: Sequence[ChannelRecord] = ()
    next_limit: int = 0
    cursor: int = 0
    last: int = 0
    first: int = 1
    more_to_trim: bool = False
    is_new_owner: bool = False
    restarted: bool = False
    cursor_id: str = ""
    receiver_state: bytes = b""
    due_in: float | None = None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class ShareReply:
    """The reply to one of several processes that share a receiver.

    status  as in ReceiveReply, where HELD means that one process receives alone. MISSED: the receiver was passed over,
            and `missed` records before number `first` are gone. RESTARTED: the channel began again, and the receiver
            continues with number `first`
    claims  one for each of the records
    due_in  seconds after which to ask again even without a record, because a lease runs out; or None
    """

    status: str
    records: Sequence[ChannelRecord] = ()
    claims: Sequence[bytes] = ()
    due_in: float | None = None
    missed: int = 0
    first: int = 1
