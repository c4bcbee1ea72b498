"""Checks that the keys of a mailbox, a chat or a channel of files agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.constants import ENTRY_OVERHEAD

_ROW = (b"format", b"top", b"first", b"start", b"at", b"freed", b"begun", b"ended")
_ROW_VALUES = 13
_HISTORY = slice(4, 6)


def read_state(fields: dict[bytes, bytes]) -> dict[bytes, int]:
    """The numbers in the key `state` of a log (see `messages/log.lua`).

    `history`: 1 if the log keeps messages that all readers have acknowledged.
    """
    if not fields:
        return {}
    values: list[Any] = msgspec.msgpack.decode(bytes([0x90 + _ROW_VALUES]) + fields[b"row"])
    limits = values[len(_ROW)] or [0] * 6
    return {
        **{name: int(value) for name, value in fields.items() if name != b"row"},
        **{name: int(value or 0) for name, value in zip(_ROW, values, strict=False)},
        b"history": int(any(limits[_HISTORY])),
    }


class LogAudit:
    """The keys of one log that do not expire. Each goes by the rest of its name after the hash tag."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        self.state = read_state(keys.get("state", {}))
        self.readers = keys.get("readers", {})
        self.log = keys.get("log", [])

    @property
    def members(self) -> set[str]:
        """The members of a chat: its readers, without the devices of each."""
        return {reader.partition(b"\0")[0].decode() for reader in self.readers}

    @property
    def _known_readers(self) -> set[bytes]:
        """Readers that may have state here."""
        return set(self.readers)

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction."""
        if not self.state:
            yield f"no state, but {sorted(self.keys)}"
            return
        yield from self._messages()
        yield from self._cursors()
        for reader in self.keys.get("next", {}):
            yield from self._claims(reader)
        if set(self.keys.get("dead", {})) != set(self.keys.get("letters", {})):
            yield f"dead: {set(self.keys.get('dead', {}))}, letters: {set(self.keys.get('letters', {}))}"
        for name in ("seen", "watching", "next"):
            if unknown := set(self.keys.get(name, {})) - self._known_readers:
                yield f"{name}: {unknown} are not readers"

    def leftovers(self) -> Iterator[str]:
        """Yields nothing: waiting readers and senders are registered in keys that expire."""
        yield from ()

    def _messages(self) -> Iterator[str]:
        first, top, ended = self.state[b"first"], self.state[b"top"], self.state[b"begun"]
        ends = {int(id.split(b"-")[0]): int(message[b"end"]) for id, message in self.log}
        sizes = {int(id.split(b"-")[0]): len(message[b"by"]) + len(message[b"body"]) for id, message in self.log}
        for row, number in self.keys.get("removed", {}).items():
            if int(number) in ends:
                yield f"removed: number {number:.0f} is still in the log"
            ends[int(number)] = int(row.split(b" ")[2])
        if sorted(ends) != list(range(first, top + 1)):
            yield f"log: {sorted(ends)}, expected {first} to {top}"
        for number, end in sorted(ends.items()):
            # The size of a body that was removed is not known.
            ended = ended + sizes[number] + ENTRY_OVERHEAD if number in sizes else end
            if end != ended:
                yield f"log: {number} ends at {end}, counted {ended}"
        if ended != self.state[b"ended"]:
            yield f"state ended: {self.state[b'ended']}, counted {ended}"

    def _cursors(self) -> Iterator[str]:
        low, high = min(self.readers.values(), default=-1), max(self.readers.values(), default=-1)
        if low < 0 or high > self.state[b"top"]:
            yield f"readers: {self.readers}, of {self.state[b'top']} messages"
        if low >= self.state[b"first"] and not self.state[b"history"]:
            yield f"first: {self.state[b'first']}, though all have read up to {low:.0f}"
        named = {reader.partition(b"\0")[0] for reader in self.readers if b"\0" in reader}
        if named != {member for member, devices in self.keys.get("devices", {}).items() if devices}:
            yield f"devices: of {set(self.keys.get('devices', {}))}, readers {set(self.readers)}"

    def _claims(self, reader: bytes) -> Iterator[str]:
        name = reader.decode()
        claimed, leased = self.keys.get(f"claimed:{name}", {}), self.keys.get(f"leased:{name}", {})
        if set(claimed) != set(leased):
            yield f"claimed: {set(claimed)}, with a lease {set(leased)}"
        upcoming = int(self.keys["next"][reader])
        if any(not self.readers.get(reader, 0) < number < upcoming for number in claimed.values()):
            yield f"claimed: {claimed}, above cursor {self.readers.get(reader)} and below {upcoming}"


class ChannelAudit(LogAudit):
    """The keys of one channel that do not expire. Each goes by the rest of its name after the hash tag."""

    def __init__(self, keys: dict[str, Any]) -> None:
        super().__init__(keys)
        self.vanished = keys.get("vanished", {})
        self.finished = keys.get("finished", {})

    @property
    def _known_readers(self) -> set[bytes]:
        return {*self.readers, *self.vanished}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.state:
            return
        for name in ("owners", "marks"):
            if unknown := set(self.keys.get(name, {})) - self._known_readers:
                yield f"{name}: {unknown} are not receivers"
        if twice := (set(self.readers) & set(self.vanished)) | (self._known_readers & set(self.finished)):
            yield f"receivers: {twice} are receiving, and also in `vanished` or `finished`"
        yield from self._bytes()
        yield from self._sources()
        yield from self._totals()

    def _bytes(self) -> Iterator[str]:
        """Compare the bytes with their peak. The peak excludes the CLOSE record, which a full channel accepts too."""
        held, end = self.state[b"ended"] - self.state[b"begun"], self.state.get(b"end", 0)
        close = ENTRY_OVERHEAD + 1 if end and self.log else 0
        if held - close > self.state.get(b"peak", 0):
            yield f"state peak: {self.state.get(b'peak')}, but it holds {held}"
        if end > self.state[b"top"]:
            yield f"state end: {end}, of {self.state[b'top']} records"

    def _cursors(self) -> Iterator[str]:
        first, top, end = self.state[b"first"], self.state[b"top"], self.state.get(b"end", 0)
        for receiver, cursor in {**self.readers, **self.vanished}.items():
            if not 0 <= cursor <= top:
                yield f"cursor of {receiver!r}: {cursor:.0f}, of {top} records"
        if self.readers and min(self.readers.values()) >= first:
            yield f"first: {first}, though all have received {min(self.readers.values()):.0f}"
        if done := [receiver for receiver, cursor in self.readers.items() if 0 < end <= cursor]:
            yield f"readers: {done} have received everything, and are still receivers"
        if not self.readers and self.log:
            yield f"log: records {first} to {top}, but there is no receiver for them"

    def _sources(self) -> Iterator[str]:
        if lost := set(self.keys.get("sent_at", {})) - set(self.keys.get("entries", {})):
            yield f"sent_at: {lost} are not in entries"

    def _totals(self) -> Iterator[str]:
        tables = set()
        for name, content in self.keys.items():
            kind, _, receiver = name.partition(":")
            if kind == "totals":
                tables |= {
                    f"{what}:{receiver}:{field[6:].decode()}"
                    for field in content
                    for what in ("counts", "values")
                    if field.startswith(b"table:")
                }
                if not 0 <= int(content[b"rejected"]) <= int(content[b"lines"]):
                    yield f"{name}: {content[b'rejected']!r} of {content[b'lines']!r} lines are rejected"
                if b"counted" not in self.state:
                    yield f"state counted: missing, but {receiver!r} counts"
            elif kind == "rejected" and f"totals:{receiver}" not in self.keys:
                yield f"{name}: its receiver does not count"
        if unknown := {name for name in self.keys if name.startswith(("counts:", "values:"))} - tables:
            yield f"counts: {unknown} belong to no receiver"
