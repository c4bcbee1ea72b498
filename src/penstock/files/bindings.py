"""The scripts of a channel as round trips, and what they answer with."""

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
from penstock.errors import ChannelClosed, ChannelError, NoReceiver, PenstockError, SentElsewhere
from penstock.files.blocks import Record, as_record
from penstock.messages.bindings import PULL_BYTES, LogBindings
from penstock.messages.keys import LogKeys
from penstock.settings import Settings

_entry: Any = msgspec.msgpack.Decoder(tuple[str, str, str, str]).decode
_row: Any = msgspec.json.Decoder(tuple[str, int, str]).decode

KNOWN_AT_ONCE = 500

RECORDS = 4
"""Of a pull for which it is not known how many make a megabyte: blocks, which do."""


@cache
def scripts() -> Library:
    return Library(
        "core/clock.lua", "core/notify.lua", "core/idempotency.lua",
        "messages/log.lua", "messages/readers.lua", "messages/shared_reader.lua",
        "files/channel.lua", "files/upload.lua", "files/download.lua", "files/counts.lua",
    )  # fmt: skip


class Entry(NamedTuple):
    """What is known of something that is sent. `file`: it is under way, as this; "": it was sent whole, and `end` tells
    what it then was. `raw`: as it is stored."""

    token: str
    file: str
    mark: str
    end: str
    raw: bytes

    @classmethod
    def read(cls, raw: bytes) -> Entry:
        token, file, mark, end = _entry(raw)
        return cls(token, file, mark, end, raw)


@dataclass(frozen=True, slots=True)
class Put:
    """An answer to records. `full`: nothing was taken, there is no space; `due`: seconds until a receiver that is gone
    will be passed over. `bytes`: there now; `slowest`: the receiver that is furthest behind."""

    full: bool
    bytes: int
    slowest: str
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """An answer to a receiver. `state`: OK, HELD (`due`: seconds until it may be asked for; `holder`: by whom), ENDED,
    GONE. `fresh`: another received since, and got as far as `mark` tells. `following`: how many to ask for next."""

    state: str
    records: Sequence[Record] = ()
    following: int = 0
    cursor: int = 0
    top: int = 0
    first: int = 1
    more: bool = False
    fresh: bool = False
    mark: bytes = b""
    due: float | None = None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Shared:
    """An answer to one of several workers. `state`: as in Received, LOST, HELD (one process receives alone) or MISSED
    (`missed` records before number `first`). `claims`: of the records, in order."""

    state: str
    records: Sequence[Record] = ()
    claims: Sequence[bytes] = ()
    due: float | None = None
    missed: int = 0
    first: int = 1


@dataclass(frozen=True, slots=True)
class ReceiverInfo:
    """A receiver of a channel.

    state   "reading"; "gone": it was passed over; "done": it has had all of a channel that was closed
    behind  blocks (and beginnings and ends) that it has not acknowledged
    seen    seconds since 1970 by the server's clock at which it last came
    holder  the process that receives, or last did: host and pid
    """

    name: str
    state: str
    behind: int
    seen: float
    holder: str


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """What a channel holds. `bytes`: of blocks that some receiver has not had, of at most `limit`; `peak`: the most
    there ever were; `sending`: files that were begun and are not sent whole; `patience`: seconds, or None."""

    name: str
    bytes: int
    limit: int
    peak: int
    last: int
    sending: int
    closed: bool
    patience: float | None
    receivers: tuple[ReceiverInfo, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """How far an aggregate is. Every line is counted or rejected: `lines` = `counted` + `rejected`."""

    lines: int
    counted: int
    rejected: int
    tables: tuple[str, ...]


class ChannelBindings(LogBindings):
    """Builds the steps of one channel."""

    def __init__(self, keys: LogKeys, settings: Settings, clock: Clock) -> None:
        super().__init__(keys, settings, clock)
        self.label = f"channel {keys.name!r}"
        self._scripts = scripts().scripts

    def error_for(self, reply: Sequence[Any], who: str) -> PenstockError:
        match reply[0]:
            case b"GONE":
                return ChannelError(f"no {self.label}: nothing was sent to it yet, or it was deleted")
            case b"STRANGER" if who:
                return NoReceiver(f"{who!r} is no receiver of {self.label}: name it where you send, or join() first")
            case b"STRANGER":
                return NoReceiver(f"{self.label} has no receivers: name some with receivers=[…]")
            case b"CLOSED":
                left = f"{reply[1]} of its receivers have not had all yet" if reply[1] else "open it by sending files"
                return ChannelClosed(f"{self.label} was closed: {left}")
            case b"SHARED":
                return ChannelError(
                    f"several processes share {who!r} of {self.label}: receive with share=True, too, until they are "
                    "through"
                )
            case b"TAKEN":
                return SentElsewhere(f"another process sends this file to {self.label} now; this one has stopped")
            case b"LARGE":
                return ChannelError(f"{self.label} has a limit that no block fits into: raise it to 2 MiB or more")
            case _:
                return super().error_for(reply, who)

    # --- what a sender says ---

    def open(self, receivers: Iterable[str], limit: int | None, patience: float | None) -> RoundTrip[None]:
        wait = 0 if patience is None else -1 if patience == 0 else max(1, int(patience * 1000))
        return self._call("open", (*UNNUMBERED, self.clock.now_ms, limit or 0, wait, *receivers), lambda _: None)

    def known(self, sources: Sequence[str]) -> RoundTrip[list[Entry | None]]:
        """At most KNOWN_AT_ONCE of them."""

        def read(reply: Sequence[Any]) -> list[Entry | None]:
            return [Entry.read(raw) if raw else None for raw in reply[1]]

        return self._call("known", sources, read)

    def take_source(self, source: str, file: str, token: str) -> RoundTrip[Entry]:
        return self._call("take_source", (source, file, token), lambda reply: Entry.read(reply[1]))

    def put(
        self, source: str, file: str, token: str, records: Sequence[tuple[str, bytes]],
        *, fresh: bytes | None, mark: str, place: str, ending: str,
    ) -> RoundTrip[Put]:  # fmt: skip
        """`fresh`: the file begins here, and this is known of one that was sent from its place; None: it goes on.
        `place`: what it is known by when it was sent."""
        rest = [part for record in records for part in record]
        args: tuple[Arg, ...] = (
            *UNNUMBERED, self.clock.now_ms, source, file, token, b"-" if fresh is None else fresh, mark, place,
            ending, *rest,
        )  # fmt: skip
        return RoundTrip(self._scripts["put"], self._declared, args, self._put)

    def await_space(self, records: Sequence[tuple[str, bytes]], address: str, stay: float) -> RoundTrip[Put]:
        """Whether there would be space for these, and for some more."""
        size = sum(len(body) + 100 for _, body in records)
        args: tuple[Arg, ...] = (self.clock.now_ms, size, address, int(stay * 1000))
        return RoundTrip(self._scripts["await_space"], self._declared, args, self._put)

    def _put(self, reply: Sequence[Any]) -> Put:
        if reply[0] == b"OK":
            return Put(False, reply[1], (reply[2] or b"").decode())
        if reply[0] == b"FULL":
            return Put(True, reply[2], (reply[3] or b"").decode(), None if reply[1] < 0 else reply[1] / 1000)
        raise self.error_for(reply, "")

    def close(self) -> RoundTrip[bool]:
        return self._call("close", (*UNNUMBERED, self.clock.now_ms), lambda reply: bool(reply[1]))

    # --- what a receiver says ---

    def receive(
        self, who: str, token: str, turn: int, *, lease: float, limit: int, instead: str = "", acked: int = 0,
        mark: str = "", counted: bytes = b"", after: int = 0, address: str = "", stay: float = 0.0,
    ) -> RoundTrip[Received]:  # fmt: skip
        """`limit`: records to read behind `after`; 0: none, as where it is not known where to go on."""
        args: tuple[Arg, ...] = (
            self.clock.now_ms, who, token, instead, turn, int(lease * 1000), acked, mark, counted,
            after, limit, PULL_BYTES, address, int(stay * 1000),
        )  # fmt: skip

        def read(found: Any) -> Received:
            reply, rows = found if limit else (found, [])
            match reply[0]:
                case b"OK":
                    _, top, first, cursor, more, fresh, noted, following = reply
                    records = [] if fresh else _records_of(rows)
                    if records and records[0].number != max(after + 1, first):  # something was let go of meanwhile
                        records, following = [], 0
                    return Received(
                        "OK", records, following or RECORDS, cursor, top, first, bool(more), bool(fresh), noted
                    )
                case b"HELD":
                    return Received("HELD", due=reply[1] / 1000, holder=reply[2].decode())
                case b"ENDED" | b"GONE":
                    return Received(reply[0].decode())
                case _:
                    raise self.error_for(reply, who)

        entries = ("XRANGE", self.keys.log, after + 1, "+", "COUNT", limit) if limit else ()
        return RoundTrip(self._scripts["receive"], self._declared, args, read, followed_by=entries)

    def hold(self, who: str, token: str, lease: float) -> RoundTrip[bool]:
        return RoundTrip(
            self._scripts["hold"], self._declared, (self.clock.now_ms, who, token, int(lease * 1000)), bool
        )

    def share(
        self, who: str, token: str, *, lease: float, limit: int, counted: bytes, claims: Sequence[bytes],
        address: str = "", stay: float = 0.0,
    ) -> RoundTrip[Shared]:  # fmt: skip
        args: tuple[Arg, ...] = (
            self.clock.now_ms, who, token, int(lease * 1000), limit, PULL_BYTES, counted, address,
            int(stay * 1000), *claims,
        )  # fmt: skip

        def read(reply: Sequence[Any]) -> Shared:
            match reply[0]:
                case b"OK":
                    _, due, *rows = reply
                    found = [rows[at] for at in range(0, len(rows), 5)]
                    del rows[0::5]
                    return Shared("OK", _records(rows), found, None if due < 0 else due / 1000)
                case b"MISSED":
                    return Shared("MISSED", missed=reply[1], first=reply[2])
                case b"HELD":
                    return Shared("HELD", due=reply[1] / 1000)
                case b"LOST" | b"ENDED" | b"GONE":
                    return Shared(reply[0].decode())
                case _:
                    raise self.error_for(reply, who)

        return RoundTrip(self._scripts["share"], self._declared, args, read)

    def join_channel(self, who: str) -> RoundTrip[bool]:
        return self._call("join_channel", (*UNNUMBERED, self.clock.now_ms, who), lambda reply: bool(reply[1]), who)

    def part(self, who: str) -> RoundTrip[tuple[bool, bool]]:
        """Whether it was one, and whether there is more to trim."""
        return self._call("part", (*UNNUMBERED, self.clock.now_ms, who), lambda reply: (bool(reply[1]), bool(reply[2])))

    # --- what people ask ---

    def info(self) -> RoundTrip[ChannelInfo]:
        def read(reply: Sequence[Any]) -> ChannelInfo:
            _, _, top, first, size, limit, peak, patience, end, sending, rows = reply
            receivers = []
            for name, cursor, seen, owned in zip(rows[0::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
                state = "done" if cursor == -1 else "gone" if cursor < 0 else "reading"
                behind = 0 if cursor == -1 else top - max(first - 1, cursor if cursor >= 0 else -2 - cursor)
                holder = owned.decode().rpartition(" ")[2].split("/")
                receivers.append(
                    ReceiverInfo(name.decode(), state, behind, seen / 1000, ":".join(holder[1:3]) if owned else "")
                )
            return ChannelInfo(
                self.keys.name, size, limit, peak, top, sending, end > 0, patience / 1000 or None, tuple(receivers)
            )

        return self._call("channel", (self.clock.now_ms,), read)

    def totals(self, who: str) -> RoundTrip[Totals]:
        def read(reply: Sequence[Any]) -> Totals:
            lines, rejected, tables = reply
            return Totals(lines, lines - rejected, rejected, tuple(sorted(name.decode() for name in tables)))

        return RoundTrip(self._scripts["totals"], self._declared, (who,), read)

    def top(self, who: str, table: str, offset: int, n: int) -> RoundTrip[dict[str, int]]:
        def read(reply: Sequence[Any]) -> dict[str, int]:
            return {key.decode(): int(n) for key, n in zip(reply[0::2], reply[1::2], strict=True)}

        return RoundTrip(self._scripts["top"], self._declared, (who, table, offset, n), read)

    def of_keys(self, who: str, table: str, keys: Sequence[str]) -> RoundTrip[dict[str, int]]:
        def read(reply: Sequence[Any]) -> dict[str, int]:
            return {key: int(n or 0) for key, n in zip(keys, reply, strict=True)}

        return RoundTrip(self._scripts["of_keys"], self._declared, (who, table, *keys), read)

    def rejected(self, who: str, offset: int, n: int) -> RoundTrip[list[tuple[str, int, str]]]:
        def read(reply: Sequence[bytes]) -> list[tuple[str, int, str]]:
            return [_row(row) for row in reply]

        return RoundTrip(self._scripts["rejected"], self._declared, (who, offset, n), read)

    def forget_counts(self, who: str) -> RoundTrip[bool]:
        return RoundTrip(self._scripts["forget_counts"], self._declared, (who,), bool)

    def delete(self) -> RoundTrip[bool]:
        return self._call("delete_channel", UNNUMBERED, lambda reply: bool(reply[1]))


def _records_of(rows: Sequence[Any]) -> list[Record]:
    """From entries of the stream as `log.lua` writes them."""
    return [
        as_record((int(entry.partition(b"-")[0]), fields[1].decode(), fields[5]))
        for entry, fields in rows
    ]  # fmt: skip


def _records(rows: Sequence[Any]) -> list[Record]:
    """From number, ms, by, body, …"""
    found = zip(rows[0::4], rows[2::4], rows[3::4], strict=True)
    return [as_record((number, by.decode(errors="replace"), body)) for number, by, body in found]
