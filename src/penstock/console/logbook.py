"""Reads back what a mailbox or a chat keeps, and compares it with itself; see `audit.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.store.keys import LogKeys

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
            if strangers := set(self.keys.get(name, {})) - set(self.readers):
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


def unlisted(books: Mapping[tuple[str, str], Any], indexes: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    """Members of a chat whose index does not know of it: the one thing that reading cannot repair."""
    for (prefix, name), book in books.items():
        kind, chat = LogKeys.read(name)
        if kind == "chat" and isinstance(book, LogBook):
            for member in book.members:
                home = (prefix, LogKeys(prefix, "chats", member).base.partition(":")[2].removesuffix("}:"))
                if chat.encode() not in indexes.get(home, {}):
                    yield f"chat {chat!r}: not in the index of {member!r}"
