"""Reads back what a mailbox, a chat or a channel of files keeps, and compares it with itself; see `audit.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.messages.keys import LogKeys

BESIDE = 32
"""Bytes that each message counts for beside sender and body, as in `log.lua`."""


class LogBook:
    """The keys of one log that stay, by suffix."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        self.state = {name: int(value) for name, value in keys.get("state", {}).items()}
        self.readers = keys.get("readers", {})
        self.log = keys.get("log", [])

    @property
    def members(self) -> set[str]:
        return {reader.partition(b"\0")[0].decode() for reader in self.readers}

    @property
    def _known(self) -> set[bytes]:
        """Of whom it may keep something."""
        return set(self.readers)

    def faults(self) -> Iterator[str]:
        """One sentence for each thing that does not fit the rest."""
        if not self.state:
            yield f"no state, but {sorted(self.keys)}"
            return
        yield from self._messages()
        yield from self._cursors()
        for reader in self.keys.get("next", {}):
            yield from self._claims(reader)
        for name in ("seen", "watching", "next"):
            if strangers := set(self.keys.get(name, {})) - self._known:
                yield f"{name}: {strangers} are no readers"

    def waits(self) -> Iterator[str]:
        """Nothing that stays; who waits is in keys with a TTL."""
        yield from ()

    def _messages(self) -> Iterator[str]:
        first, top, ended = self.state[b"first"], self.state[b"top"], self.state[b"begun"]
        numbers = [int(id.split(b"-")[0]) for id, _ in self.log]
        if numbers != list(range(first, top + 1)):
            yield f"log: {numbers}, wanted {first} to {top}"
        for id, message in self.log:
            ended += len(message[b"by"]) + len(message[b"body"]) + BESIDE
            if int(message[b"end"]) != ended:
                yield f"log: {id!r} ends at {message[b'end']!r}, counted {ended}"
        if ended != self.state[b"ended"]:
            yield f"state ended: {self.state[b'ended']}, counted {ended}"

    def _cursors(self) -> Iterator[str]:
        low, high = min(self.readers.values(), default=-1), max(self.readers.values(), default=-1)
        if low < 0 or high > self.state[b"top"]:
            yield f"readers: {self.readers}, of {self.state[b'top']} messages"
        if low >= self.state[b"first"]:
            yield f"first: {self.state[b'first']}, though all have read up to {low:.0f}"
        named = {reader.partition(b"\0")[0] for reader in self.readers if b"\0" in reader}
        if named != {who for who, devices in self.keys.get("devices", {}).items() if devices}:
            yield f"devices: of {set(self.keys.get('devices', {}))}, readers {set(self.readers)}"

    def _claims(self, reader: bytes) -> Iterator[str]:
        name = reader.decode()
        claimed, leased = self.keys.get(f"claimed:{name}", {}), self.keys.get(f"leased:{name}", {})
        if set(claimed) != set(leased):
            yield f"claimed: {set(claimed)}, with a lease {set(leased)}"
        following = int(self.keys["next"][reader])
        if any(not self.readers.get(reader, 0) < number < following for number in claimed.values()):
            yield f"claimed: {claimed}, above cursor {self.readers.get(reader)} and below {following}"


class ChannelBook(LogBook):
    """The keys of one channel of files that stay, by suffix."""

    def __init__(self, keys: dict[str, Any]) -> None:
        super().__init__(keys)
        self.vanished = keys.get("vanished", {})
        self.finished = keys.get("finished", {})

    @property
    def _known(self) -> set[bytes]:
        return {*self.readers, *self.vanished}

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if not self.state:
            return
        for name in ("owners", "marks"):
            if strangers := set(self.keys.get(name, {})) - self._known:
                yield f"{name}: {strangers} are no receivers"
        if twice := (set(self.readers) & set(self.vanished)) | (self._known & set(self.finished)):
            yield f"receivers: {twice} are there, and passed over or done as well"
        yield from self._bytes()
        yield from self._sources()
        yield from self._totals()

    def _bytes(self) -> Iterator[str]:
        """The CLOSE is not counted: it must find room in a full channel, too."""
        held, end = self.state[b"ended"] - self.state[b"begun"], self.state.get(b"end", 0)
        close = BESIDE + 1 if end and self.log else 0
        if held - close > self.state.get(b"peak", 0):
            yield f"state peak: {self.state.get(b'peak')}, but there are {held}"
        if end > self.state[b"top"]:
            yield f"state end: {end}, of {self.state[b'top']} records"

    def _cursors(self) -> Iterator[str]:
        first, top, end = self.state[b"first"], self.state[b"top"], self.state.get(b"end", 0)
        for who, cursor in {**self.readers, **self.vanished}.items():
            if not 0 <= cursor <= top:
                yield f"cursor of {who!r}: {cursor:.0f}, of {top} records"
        if self.readers and min(self.readers.values()) >= first:
            yield f"first: {first}, though all have had {min(self.readers.values()):.0f}"
        if done := [who for who, cursor in self.readers.items() if 0 < end <= cursor]:
            yield f"readers: {done} have had all, and are receivers still"
        if not self.readers and self.log:
            yield f"log: records {first} to {top}, but nobody is to have them"

    def _sources(self) -> Iterator[str]:
        if lost := set(self.keys.get("sent_at", {})) - set(self.keys.get("sources", {})):
            yield f"sent_at: {lost} are not in sources"

    def _totals(self) -> Iterator[str]:
        tables = set()
        for name, held in self.keys.items():
            kind, _, who = name.partition(":")
            if kind == "totals":
                tables |= {f"counts:{who}:{field[6:].decode()}" for field in held if field.startswith(b"table:")}
                if not 0 <= int(held[b"rejected"]) <= int(held[b"lines"]):
                    yield f"{name}: {held[b'rejected']!r} of {held[b'lines']!r} lines are rejected"
                if b"counted" not in self.state:
                    yield f"state counted: not there, but {who!r} counts"
            elif kind == "rejected" and f"totals:{who}" not in self.keys:
                yield f"{name}: of nobody who counts"
        if strangers := {name for name in self.keys if name.startswith("counts:")} - tables:
            yield f"counts: {strangers} are tables of nobody"


def unlisted(books: Mapping[tuple[str, str], Any], indexes: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    """Members of a chat whose index does not know of it: the one thing that reading cannot repair."""
    for (prefix, name), book in books.items():
        kind, chat = LogKeys.read(name)
        if kind == "chat" and isinstance(book, LogBook):
            for member in book.members:
                home = (prefix, LogKeys(prefix, "chats", member).base.partition(":")[2].removesuffix("}:"))
                if chat.encode() not in indexes.get(home, {}):
                    yield f"chat {chat!r}: not in the index of {member!r}"
