"""Reads every key in a server, and compares it with the key tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.jobs.keys import OWNED
from penstock.ops.key_tables import split_key, table_row

_READ: dict[str, Callable[[Any, bytes], Any]] = {
    "hash": lambda client, key: client.hgetall(key),
    "zset": lambda client, key: dict(client.zrange(key, 0, -1, withscores=True)),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: client.smembers(key),
    "string": lambda client, key: client.get(key),
    "stream": lambda client, key: client.xrange(key),
}


class Instance(NamedTuple):
    """One queue, lock, directory or the like of one app, identified by what the names of its keys have in common."""

    prefix: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key, as read from the server."""

    name: str
    instance: Instance | None
    """None: Penstock did not write this key."""

    rest: str
    """The rest of the name after the hash tag."""

    type: str
    """As TYPE returns it."""

    ttl: int
    """Milliseconds; -1: the key does not expire."""

    content: Any = None
    """Read with the command of its type; None for a key that expires, or whose type is not that of its table."""

    def problems(self) -> Iterator[str]:
        """A sentence for each difference between the key and its table."""
        row = table_row(self.instance.name, self.rest) if self.instance else None
        if row is None:
            yield f"{self.name}: in no key table"
            return
        expected, _, deleted_by = row
        if expected not in {self.type.upper(), "any"}:
            yield f"{self.name}: a {self.type}, not a {expected}"
        if deleted_by == "TTL" and self.ttl < 0:
            yield f"{self.name}: has no TTL"
        if deleted_by == OWNED and self.ttl >= 0:
            yield f"{self.name}: belongs to the queue, but it expires"


def read_keys(client: Any, match: str = "*") -> Iterator[StoredKey]:
    """Every key that matches. `client`: a blocking one of valkey-py or redis-py, for a cluster its cluster client."""
    names = list(dict.fromkeys(client.scan_iter(match=match, count=1000)))
    for name, type_, ttl in zip(names, _ask(client, "type", names), _ask(client, "pttl", names), strict=True):
        if type_ == b"none" or ttl == -2:  # deleted between the commands
            continue
        yield _read_key(client, name, type_.decode(), ttl)


def _read_key(client: Any, key: bytes, type_: str, ttl: int) -> StoredKey:
    text = key.decode(errors="backslashreplace")
    name = split_key(text)
    if name is None:
        return StoredKey(text, None, "", type_, ttl)
    row = table_row(name.instance, name.rest) if ttl < 0 else None
    content = _READ[type_](client, key) if row is not None and row[0] in {type_.upper(), "any"} else None
    return StoredKey(text, Instance(name.prefix, name.instance), name.rest, type_, ttl, content)


def _ask(client: Any, command: str, names: Iterable[bytes]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for name in names:
        getattr(pipe, command)(name)
    replies: list[Any] = pipe.execute()
    return replies
