"""Binds the scripts of a channel of files: the order of their arguments, and what their replies mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec

from penstock.core.clock import Clock
from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Library
from penstock.errors import ChannelClosed, ChannelError, CountsRefused, NoReceiver, PenstockError, SentElsewhere
from penstock.files.count_bindings import CountBindings
from penstock.files.dead_files import DeadFileBindings
from penstock.files.download import FileProgress, begun_files
from penstock.files.records import ChannelRecord, as_record
from penstock.files.replies import PutReply, ReceiveReply, ShareReply
from penstock.messages.bindings import PULL_BYTES, ROW
from penstock.messages.keys import LogKeys
from penstock.messages.replies import WakeReply
from penstock.settings import Settings

_decode_entry: Any = msgspec.msgpack.Decoder(tuple[str, str, str, str, Any]).decode

MAX_NAMES = 200
"""The most names that one call of `find_entries` takes; each may lead to sixteen entries."""

DEFAULT_RECORDS = 4
"""How many records to pull while it is not known how many make up a megabyte. Four full blocks do."""


@cache
def channel_scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/waiting.lua",
        "core/deputy.lua",
        "core/sleepers.lua",
        "core/idempotency.lua",
        "core/log.lua",
        "messages/log.lua",
        "messages/state.lua",
        "messages/post.lua",
        "messages/waking.lua",
        "messages/readers.lua",
        "messages/shared_reader.lua",
        "messages/dead_letters.lua",
        "messages/history.lua",
        "messages/own.lua",
        "files/channel.lua",
        "files/upload.lua",
        "files/download.lua",
        "files/counts.lua",
        "files/uncounted.lua",
        "files/deposits.lua",
        "files/dead_files.lua",
    )


class SourceEntry(NamedTuple):
    """What the channel stores about a file, so that a later `send` can resume or skip it.

               upload in progress             file that was sent
    id         of the entry                   of the entry
    token      of the sender                  ""
    upload_id  of the upload                  ""
    state      its progress (UploadState)     its progress at the end (UploadState)
    outcome    ""                             the file's identity; if it was damaged, also a space and the error
    raw        the entry as it is stored      the entry as it is stored
    """

    id: str
    token: str
    upload_id: str
    state: str
    outcome: str
    raw: bytes

    @classmethod
    def decode(cls, id: str, raw: bytes) -> SourceEntry:
        token, upload_id, state, outcome, _ = _decode_entry(raw)
        return cls(id, token, upload_id, state, outcome, raw)


@dataclass(frozen=True, slots=True)
class UploadPiece:
    """Records of one upload, to be put into a channel.

    entry_id   of the file's entry
    upload_id  of the upload
    records    pairs of kind and body
    state      the progress of the upload with these records (UploadState)
    expected   None: the upload continues. Otherwise the upload begins with these records, and this is the raw entry
               that its sender found; b"" if the sender found no entry
    known      if the upload begins without an entry: what the first of `names` may lead to in the server, the id of an
               entry or "" for none. If it leads elsewhere, another process was faster, and nothing is stored
    outcome    "": more records of the upload will follow. Any other text ends the upload and is stored as its outcome,
               except "-", which removes the entry
    names      the names that lead to the entry from now on; an empty list leaves them unchanged
    """

    entry_id: str
    upload_id: str
    records: Sequence[tuple[str, bytes]]
    state: str
    expected: bytes | None = None
    known: str = ""
    outcome: str = ""
    names: Sequence[str] = ()

    @property
    def args(self) -> list[Arg]:
        kinds_and_bodies = [part for record in self.records for part in record]
        return [
            self.entry_id,
            self.upload_id,
            b"-" if self.expected is None else self.expected,
            self.known,
            self.state,
            self.outcome,
            len(self.names),
            len(self.records),
            *self.names,
            *kinds_and_bodies,
        ]


@dataclass(frozen=True, slots=True)
class ReceiverInfo:
    """A receiver of a channel.

    state   "reading"; "gone": the channel dropped records that it had not received; "done": the channel is closed and
            it has received everything
    behind  records (blocks, and beginnings and ends of files) that it has not acknowledged
    seen    when it last called the server, in seconds since 1970 by the server's clock
    holder  the process that receives, or the last one that did: host and pid
    dead    batches of lines that its aggregate could not count
    dead_files  files that it could not save
    files   up to ten files that it has begun, as of its last acknowledgement
    """

    name: str
    state: str
    behind: int
    seen: float
    holder: str
    dead: int = 0
    dead_files: int = 0
    files: tuple[FileProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """The size of a channel, its settings, and its receivers.

    bytes     of records that some receiver has not acknowledged
    limit     the most bytes it may hold
    peak      the most bytes it has ever held
    last      number of the last record
    sending   uploads that were begun and have not ended
    patience  seconds after which a receiver that is away and holds up the others loses records, or None for never
    """

    name: str
    bytes: int
    limit: int
    peak: int
    last: int
    sending: int
    closed: bool
    patience: float | None
    receivers: tuple[ReceiverInfo, ...]


class ChannelBindings(CountBindings, DeadFileBindings):
    """The scripts of one channel. Each method is one round trip. `address` and `ttl`: as in LogBindings."""

    def __init__(self, keys: LogKeys, settings: Settings, clock: Clock) -> None:
        super().__init__(keys, settings, clock)
        self.label = f"channel {keys.name!r}"
        self._scripts = channel_scripts()

    def error_for(self, reply: Sequence[Any], who: str) -> PenstockError:
        match reply[0]:
            case b"GONE":
                return ChannelError(f"no {self.label}: nothing was sent to it yet, or it was deleted")
            case b"NOT_A_MEMBER" if who:
                return NoReceiver(
                    f"{who!r} is not a receiver of {self.label}: name it in receivers=[…] where you send, "
                    "or call join() first"
                )
            case b"NOT_A_MEMBER":
                return NoReceiver(f"{self.label} has no receivers: name some with receivers=[…]")
            case b"CLOSED":
                left = f"{reply[1]} of its receivers are still behind" if reply[1] else "open it by sending files"
                return ChannelClosed(f"{self.label} was closed: {left}")
            case b"SHARED":
                return ChannelError(
                    f"several processes share {who!r} of {self.label}: pass share=True here as well, or wait until "
                    "they have settled everything that they claimed"
                )
            case b"TAKEN":
                return SentElsewhere(f"another process sends this file to {self.label} now; this one has stopped")
            case b"OVERFLOW":
                key = f" for {reply[2].decode()!r}" if reply[2] else ""
                return CountsRefused(
                    f"table {reply[1].decode()!r} of {who!r} would overflow{key}: numbers are exact up to 2**53, and "
                    "those of a table declared as Sum() up to 2**62 in all. Nothing was counted"
                )
            case b"KIND":
                return CountsRefused(
                    f"table {reply[1].decode()!r} of {who!r} has the kind {reply[2].decode()!r} already: declare it as "
                    "before, give it another name, or reset() the counts"
                )
            case b"UNIQUES":
                return CountsRefused(
                    f"table {reply[1].decode()!r} of {who!r} would have more than 1,000 keys of Uniques()"
                )
            case b"DEAD":
                return CountsRefused(
                    f"{who!r} has {reply[2]} dead batches already, and no room for more: retry or remove some "
                    f"(penstock dead ls counts:{self.keys.name}:{who})"
                )
            case b"LARGE":
                return ChannelError(f"{self.label} has a limit that no block fits into: raise it to 2 MiB or more")
            case _:
                return super().error_for(reply, who)

    # --- send ---

    def open(self, receivers: Iterable[str], limit: int | None, patience: float | None) -> RoundTrip[None]:
        patience_ms = 0 if patience is None else -1 if patience == 0 else max(1, int(patience * 1000))
        return self._call("open", (*UNNUMBERED, self.clock.now_ms, limit or 0, patience_ms, *receivers), lambda _: None)

    def find_entries(self, names: Sequence[str]) -> RoundTrip[list[list[SourceEntry]]]:
        """The entries that each of up to MAX_NAMES names leads to."""

        def read(reply: Sequence[Any]) -> list[list[SourceEntry]]:
            return [
                [SourceEntry.decode(id.decode(), raw) for id, raw in zip(found[0::2], found[1::2], strict=True)]
                for found in reply[1:]
            ]

        return self._call("find_entries", names, read)

    def take_over(self, entry: SourceEntry, token: str) -> RoundTrip[SourceEntry]:
        """Become the owner of an upload that another process began; that process is refused from then on."""
        return self._call(
            "take_over", (entry.id, entry.upload_id, token), lambda reply: SourceEntry.decode(entry.id, reply[1])
        )

    def rename_entry(self, entry: SourceEntry, state: str, outcome: str, names: Sequence[str]) -> RoundTrip[int]:
        """Store the new names of a file that was sent. Returns how many files the channel forgot."""
        args: tuple[Arg, ...] = (*UNNUMBERED, self.clock.now_ms, entry.id, entry.raw, state, outcome, *names)
        return self._call("rename_entry", args, lambda reply: int(reply[1]))

    def put(self, token: str, pieces: Sequence[UploadPiece]) -> RoundTrip[PutReply]:
        """Append records of uploads and store the progress of each upload: all of it or nothing. Raises SentElsewhere
        if another process has sent one of the files in the meantime."""
        args: tuple[Arg, ...] = (
            *UNNUMBERED,
            self.clock.now_ms,
            token,
            *(arg for piece in pieces for arg in piece.args),
        )
        return RoundTrip(self._scripts["put"], self._declared, args, self._put_reply)

    def await_space(self, records: Sequence[tuple[str, bytes]], address: str, ttl: float) -> RoundTrip[PutReply]:
        """Ask whether there is space for these records, and at least for a quarter of the limit: a sender that waited
        for less would soon have to wait again."""
        size = sum(len(body) + 100 for _, body in records)
        args: tuple[Arg, ...] = (self.clock.now_ms, size, address, int(ttl * 1000))
        return RoundTrip(self._scripts["await_space"], self._declared, args, self._put_reply)

    def _put_reply(self, reply: Sequence[Any]) -> PutReply:
        if reply[0] == b"OK":
            return PutReply(False, reply[1], (reply[2] or b"").decode(), forgotten=reply[3] if len(reply) > 3 else 0)
        if reply[0] == b"FULL":
            return PutReply(True, reply[2], (reply[3] or b"").decode(), None if reply[1] < 0 else reply[1] / 1000)
        raise self.error_for(reply, "")

    def close(self) -> RoundTrip[tuple[bool, WakeReply]]:
        """Returns whether the channel was open."""
        args = (*UNNUMBERED, self.clock.now_ms)
        return self._call("close", args, lambda reply: (bool(reply[1]), WakeReply(reply[2])))

    # --- receive ---

    def receive(
        self,
        receiver: str,
        token: str,
        number: int,
        *,
        lease: float,
        limit: int,
        dead_token: str = "",
        reached: int = 0,
        acked: int = 0,
        receiver_state: str = "",
        counts: bytes = b"",
        after: int = 0,
        position: str = "",
        address: str = "",
        ttl: float = 0.0,
    ) -> RoundTrip[ReceiveReply]:
        """For a process that receives alone: become or stay the owner of the receiver, settle, then read up to `limit`
        records that come after number `after`. A call that makes the process the owner settles nothing.

        token       identifies the process
        number      of this call of the process, so that a repeated call settles once
        limit       0 if the process does not know yet from where to read
        dead_token  token of a process that is known to be dead: this process takes over its lease at once
        position    position of record number `after`, which shows the server whether the channel began again; "" if
                    unknown
        reached     the receiver's cursor in the last reply. If the server's cursor is lower, the channel began again
        acked, receiver_state, counts  are settled atomically
        """
        args: tuple[Arg, ...] = (
            self.clock.now_ms,
            receiver,
            token,
            dead_token,
            number,
            int(lease * 1000),
            reached,
            acked,
            receiver_state,
            counts,
            after,
            position,
            limit,
            PULL_BYTES,
            address,
            int(ttl * 1000),
        )

        def read(replies: Any) -> ReceiveReply:
            reply, entries = replies if limit else (replies, [])
            match reply[0]:
                case b"OK":
                    _, last, first, cursor, more, new_owner, kept_state, next_limit, cursor_id = reply
                    records = [] if new_owner else _records_of_entries(entries)
                    if records and records[0].number != max(after + 1, first):
                        # Another process has trimmed between the script and the XRANGE: ask again.
                        records, next_limit = [], 0
                    return ReceiveReply(
                        "OK",
                        records,
                        next_limit or DEFAULT_RECORDS,
                        cursor,
                        last,
                        first,
                        bool(more),
                        bool(new_owner),
                        new_owner == 2,
                        cursor_id.decode(),
                        kept_state,
                    )
                case b"HELD":
                    return ReceiveReply("HELD", due_in=reply[1] / 1000, holder=reply[2].decode())
                case b"ENDED" | b"GONE" | b"PENDING" | b"BUSY" | b"LOST":
                    return ReceiveReply(reply[0].decode())
                case _:
                    raise self.error_for(reply, receiver)

        entries = ("XRANGE", self.keys.log, after + 1, "+", "COUNT", limit) if limit else ()
        return RoundTrip(self._scripts["receive"], self._declared, args, read, followed_by=entries)

    def renew(self, receiver: str, token: str, lease: float) -> RoundTrip[bool]:
        """Extend the lease of the process that receives. Returns False if it does not own the receiver any more."""
        args = (self.clock.now_ms, receiver, token, int(lease * 1000))
        return RoundTrip(self._scripts["renew"], self._declared, args, bool)

    def give_back(self, receiver: str, token: str) -> RoundTrip[bool]:
        """End the lease of the process that receives, so that another may begin at once."""
        return self.renew(receiver, token, 0)

    def share(
        self,
        receiver: str,
        token: str,
        *,
        lease: float,
        limit: int,
        settled: Sequence[tuple[bytes, bytes]],
        address: str = "",
        ttl: float = 0.0,
    ) -> RoundTrip[ShareReply]:
        """For one of several processes that share a receiver: settle claims, then claim up to `limit` records. A second
        call with the same `token` returns the same records.

        settled  claims, each with its packed counts. A claim that another process has taken over is skipped, and its
                 counts are dropped
        """
        args: tuple[Arg, ...] = (
            self.clock.now_ms,
            receiver,
            token,
            int(lease * 1000),
            limit,
            PULL_BYTES,
            address,
            int(ttl * 1000),
            *(part for pair in settled for part in pair),
        )

        def read(reply: Sequence[Any]) -> ShareReply:
            match reply[0]:
                case b"OK":
                    _, due_ms, *rows = reply
                    claims = [rows[at] for at in range(0, len(rows), 1 + ROW)]
                    del rows[:: 1 + ROW]
                    return ShareReply("OK", _records_of_rows(rows), claims, None if due_ms < 0 else due_ms / 1000)
                case b"MISSED":
                    return ShareReply("MISSED", missed=reply[1], first=reply[2])
                case b"RESTARTED":
                    return ShareReply("RESTARTED", first=reply[1] + 1)
                case b"HELD":
                    return ShareReply("HELD", due_in=reply[1] / 1000)
                case b"ENDED" | b"GONE" | b"PENDING" | b"BUSY" | b"LOST":
                    return ShareReply(reply[0].decode())
                case _:
                    raise self.error_for(reply, receiver)

        return RoundTrip(self._scripts["share"], self._declared, args, read)

    def add_receiver(self, receiver: str) -> RoundTrip[bool]:
        """Returns whether the receiver is new."""
        args = (*UNNUMBERED, self.clock.now_ms, receiver)
        return self._call("add_receiver", args, lambda reply: bool(reply[1]), receiver)

    def remove_receiver(self, receiver: str) -> RoundTrip[tuple[bool, bool, WakeReply]]:
        """Returns whether there was such a receiver, whether there is more to trim, and which faces to wake."""
        args = (*UNNUMBERED, self.clock.now_ms, receiver)
        return self._call("remove_receiver", args, lambda reply: (bool(reply[1]), bool(reply[2]), WakeReply(reply[3])))

    # --- the channel as a whole ---

    def info(self) -> RoundTrip[ChannelInfo]:
        def read(reply: Sequence[Any]) -> ChannelInfo:
            _, _, last, first, size, limit, peak, patience, close_number, sending, rows = reply
            receivers = []
            for name, cursor, seen, owner, dead, files, begun in zip(*(rows[n::7] for n in range(7)), strict=True):
                state = "done" if cursor == -1 else "gone" if cursor < 0 else "reading"
                behind = 0 if cursor == -1 else last - max(first - 1, cursor if cursor >= 0 else -2 - cursor)
                holder = owner.decode().rpartition(" ")[2].split("/")
                receivers.append(
                    ReceiverInfo(
                        name.decode(),
                        state,
                        behind,
                        seen / 1000,
                        ":".join(holder[1:3]) if owner else "",
                        dead,
                        files,
                        begun_files(begun),
                    )
                )
            return ChannelInfo(
                self.keys.name,
                size,
                limit,
                peak,
                last,
                sending,
                close_number > 0,
                patience / 1000 or None,
                tuple(receivers),
            )

        return self._call("info", (self.clock.now_ms,), read)

    def delete_channel(self) -> RoundTrip[tuple[bool, WakeReply]]:
        """Returns whether there was a channel."""
        return self._call("delete_channel", UNNUMBERED, lambda reply: (bool(reply[1]), WakeReply(reply[2])))


def _records_of_entries(entries: Sequence[Any]) -> list[ChannelRecord]:
    """From entries of the stream as `core/log.lua` writes them: id, and the fields `by`, `end` and `body`."""
    return [
        as_record(int(id.partition(b"-")[0]), fields[1].decode(errors="replace"), fields[5], id.decode())
        for id, fields in entries
    ]


def _records_of_rows(rows: Sequence[Any]) -> list[ChannelRecord]:
    """From rows of number, ms, kind and upload id, body, note."""
    found = zip(rows[::ROW], rows[2::ROW], rows[3::ROW], strict=True)
    return [as_record(number, by.decode(errors="replace"), body) for number, by, body in found]
