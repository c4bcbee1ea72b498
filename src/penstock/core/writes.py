"""Writes to ordinary keys that are sent together. The server checks all of them before it executes the first.

See `writes.lua`. A transaction collects them with its conditions, and a running job stages them for its completion.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec

from penstock.core.arguments import check_number, shown

Value: TypeAlias = str | bytes | int | float
Number: TypeAlias = int | float
Packable: TypeAlias = str | msgspec.Raw
"""A value as MessagePack can carry it to a script."""

EXACT_BELOW = 2**53
"""The server's scripts count in floats, which are exact below this number."""

_TYPES = {
    "INCRBY": "string",
    "HSET": "hash",
    "HDEL": "hash",
    "HINCRBY": "hash",
    "ZADD": "zset",
    "ZINCRBY": "zset",
    "ZREM": "zset",
    "SADD": "set",
    "SREM": "set",
    "LPUSH": "list",
    "RPUSH": "list",
}
"""The type of key that each command needs. Commands not listed here accept any type."""

_VERBS = {"DEL": "delete", "PEXPIRE": "expire"}
"""The verbs whose name differs from the command."""

_pack = msgspec.msgpack.Encoder().encode


class Clause(NamedTuple):
    """A condition or a write as the caller wrote it, for the text of an error."""

    verb: str
    key: str
    member: Value | None = None
    value: Value | None = None
    at_least: Number | None = None
    at_most: Number | None = None

    def __str__(self) -> str:
        args = [repr(_shortened(one)) for one in (self.key, self.member, self.value) if one is not None]
        bounds = [("at_least", self.at_least), ("at_most", self.at_most)]
        return f"{self.verb}({', '.join([*args, *(f'{name}={bound}' for name, bound in bounds if bound is not None)])})"


class Writes:
    """The verbs of writes. A class that derives from it collects them. Nothing is sent."""

    def set(self, key: str, value: Value, *, ttl: float | None = None) -> Self:
        """`ttl`: seconds until the key expires. None: it never expires, even if it had a TTL before."""
        return self._write("SET", key, value, *(() if ttl is None else ("PX", _milliseconds("set", "ttl", ttl))))

    def delete(self, *keys: str) -> Self:
        """Delete keys of any type. One that does not exist changes nothing."""
        for key in keys:
            self._write("DEL", key)
        return self

    def expire(self, key: str, seconds: float) -> Self:
        """Have the server delete the key after `seconds`. Does nothing if the key does not exist."""
        return self._write("PEXPIRE", key, _milliseconds("expire", "seconds", seconds))

    def incrby(self, key: str, by: int = 1) -> Self:
        """Add to a whole number below ±2**53. A key that does not exist counts as 0."""
        return self._write("INCRBY", key, _whole("incrby", by))

    def hset(self, key: str, field: Value, value: Value) -> Self:
        """Set a field of a hash."""
        return self._write("HSET", key, field, value)

    def hdel(self, key: str, *fields: Value) -> Self:
        """Delete fields of a hash; the hash goes with its last field."""
        return self._write("HDEL", key, *fields, least=1)

    def hincrby(self, key: str, field: Value, by: int = 1) -> Self:
        """Add to a whole number below ±2**53. A field that does not exist counts as 0."""
        return self._write("HINCRBY", key, field, _whole("hincrby", by))

    def zadd(self, key: str, member: Value, score: Number) -> Self:
        """Add a member to a sorted set, or give it another score."""
        return self._write("ZADD", key, _number("zadd", score), member)

    def zincrby(self, key: str, member: Value, by: Number = 1) -> Self:
        """Add to the score of a member. One that is not in the sorted set counts as 0."""
        return self._write("ZINCRBY", key, _number("zincrby", by), member)

    def zrem(self, key: str, *members: Value) -> Self:
        """Remove members of a sorted set."""
        return self._write("ZREM", key, *members, least=1)

    def sadd(self, key: str, *members: Value) -> Self:
        """Add members to a set."""
        return self._write("SADD", key, *members, least=1)

    def srem(self, key: str, *members: Value) -> Self:
        """Remove members of a set."""
        return self._write("SREM", key, *members, least=1)

    def lpush(self, key: str, *values: Value) -> Self:
        """Put values at the front of a list, one after another, so that the last one is first."""
        return self._write("LPUSH", key, *values, least=1)

    def rpush(self, key: str, *values: Value) -> Self:
        """Put values at the end of a list, in their order."""
        return self._write("RPUSH", key, *values, least=1)

    def _write(self, command: str, key: str, *args: Value, least: int = 0) -> Self:
        clause = Clause(_VERBS.get(command) or command.lower(), key)
        if len(args) < least:
            raise ValueError(f"{clause}: name at least one field, member or value")
        try:
            values = [packable(arg) for arg in args]
        except (TypeError, ValueError) as error:
            raise type(error)(f"{clause}: {error}") from None
        self._add(clause, command, values, len(values) if least else 1)
        return self

    def _add(self, clause: Clause, command: str, values: Sequence[Packable], count: int) -> None:
        """Collect one write, which counts as `count` of them."""
        raise NotImplementedError


def write(command: str, position: int, args: Sequence[Packable]) -> tuple[Any, ...]:
    """One write, as `writes.lua` takes it."""
    return (command, position, _TYPES.get(command, False), *args)


def packable(value: Value) -> Packable:
    """The value in a form that can be sent to a script. Raises ValueError or TypeError if that is impossible."""
    if isinstance(value, bytes):
        # As a MessagePack str, which may hold any bytes: the server's scripts do not know the newer type bin.
        size = len(value)
        head = bytes((0xA0 | size,)) if size < 32 else b"\xdb" + size.to_bytes(4, "big")
        return msgspec.Raw(head + value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{value!r}: half a character (a lone surrogate) cannot be sent") from None
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{shown(value)}: bytes, a text, or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value}: a finite number")
    return repr(value)


def pack_rows(rows: Sequence[Any]) -> bytes:
    """Rows of packable values in MessagePack, as scripts take them."""
    return _pack(rows)


def _shortened(value: Value) -> Value:
    return value[:40] if isinstance(value, str | bytes) else value


def _number(verb: str, value: Number) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{verb}({shown(value)}): a number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(f"{verb}({shown(value)}): a score is a finite float, below 1.8e308")
    return value


def _whole(verb: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= EXACT_BELOW:
        raise ValueError(f"{verb}({shown(value)}): a whole number between -2**53 and 2**53, exclusive")
    return value


def _milliseconds(verb: str, name: str, seconds: float) -> int:
    check_number(verb, name, seconds, 0.001, 366 * 86400, "seconds from 0.001 to a year")
    return -int(-seconds * 1000 // 1)
