"""A transaction: conditions and writes on keys of one hash tag, in one step, all of them or none.

Of a lock (`held.transaction()`) it is done only while the holder still owns the lock, as the server sees it: a holder
that was paused past its lease cannot write. It is a list of plain operations; nothing is sent before `commit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec

from penstock.core.idempotency import Caller, answered, next_call
from penstock.core.keys import check_text
from penstock.core.operations import Driver, RoundTrip, verb
from penstock.core.scripts import Library
from penstock.core.slots import slot
from penstock.errors import LeaseLost, TransactionRefused
from penstock.locks.keys import TransactionKeys

Value: TypeAlias = str | bytes | int | float
Number: TypeAlias = int | float
Sent: TypeAlias = str | msgspec.Raw

MOST = 1000
"""Conditions and writes, one of several members counted as so many: some milliseconds of server time."""

MOST_BYTES = 1024 * 1024

EXACT = 2**53
"""Below it the server's scripts count exactly."""


@cache
def scripts() -> Library:
    return Library("core/call.lua", "locks/transaction.lua")


@dataclass(frozen=True, slots=True)
class Guard:
    """Locks that must hold the token. `loss` makes the error when they do not."""

    keys: tuple[str, ...]
    token: str
    loss: Callable[[], LeaseLost]


class Said(NamedTuple):
    """A condition or a write, to be named in an error."""

    verb: str
    key: str
    name: Value | None = None
    value: Value | None = None
    at_least: Number | None = None
    at_most: Number | None = None

    def __str__(self) -> str:
        said = [repr(_short(one)) for one in (self.key, self.name, self.value) if one is not None]
        bounds = [("at_least", self.at_least), ("at_most", self.at_most)]
        return f"{self.verb}({', '.join([*said, *(f'{name}={bound}' for name, bound in bounds if bound is not None)])})"


class Transaction:
    """Conditions, then writes: `app.transaction().require_value(…).set(…).commit()`.

    The keys are ordinary keys of the server's, of whatever client; all share a slot, and so a hash tag. A condition
    that gives neither a value nor a bound asks whether there is anything. Values are bytes, texts (UTF-8) or numbers.
    """

    def __init__(self, driver: Driver, *, home: str | None = None, guard: Guard | None = None) -> None:
        """`home`: a key in the slot; None: the first that is named."""
        self._driver = driver
        self._guard = guard
        self._locks, self._token = (guard.keys, guard.token) if guard else ((), "")
        self._home = guard.keys[0] if guard else home
        self._slot = -1
        self._places: dict[str, int] = {}
        self._conditions: list[tuple[Any, ...]] = []
        self._writes: list[tuple[Any, ...]] = []
        self._asked: list[Said] = []
        self._written: list[Said] = []
        self._count = 0
        self._caller: Caller | None = None
        self._is_done = False

    def __repr__(self) -> str:
        return f"<Transaction of {len(self._asked)} conditions and {len(self._written)} writes>"

    # --- conditions ---

    def require_exists(self, key: str) -> Self:
        return self._require("EXISTS", key, False, Said("require_exists", key))

    def require_missing(self, key: str) -> Self:
        return self._require("EXISTS", key, False, Said("require_missing", key), missing=True)

    def require_value(
        self, key: str, value: Value | None = None, *, at_least: Number | None = None, at_most: Number | None = None
    ) -> Self:
        """The string there is this one; or a number within the bounds."""
        return self._require("GET", key, False, Said("require_value", key, None, value, at_least, at_most))

    def require_field(
        self,
        key: str,
        field: Value,
        value: Value | None = None,
        *,
        at_least: Number | None = None,
        at_most: Number | None = None,
    ) -> Self:
        """The same of a field of a hash."""
        return self._require("HGET", key, _sent(field), Said("require_field", key, field, value, at_least, at_most))

    def require_no_field(self, key: str, field: Value) -> Self:
        return self._require("HEXISTS", key, _sent(field), Said("require_no_field", key, field), missing=True)

    def require_score(
        self,
        key: str,
        member: Value,
        score: Number | None = None,
        *,
        at_least: Number | None = None,
        at_most: Number | None = None,
    ) -> Self:
        """The score of a member of a sorted set: this one, or within the bounds; without either it is in there."""
        said = Said("require_score", key, member, score, at_least, at_most)
        return self._require("ZSCORE", key, _sent(member), said, compare="number")

    def require_no_score(self, key: str, member: Value) -> Self:
        return self._require("ZSCORE", key, _sent(member), Said("require_no_score", key, member), missing=True)

    def require_member(self, key: str, member: Value) -> Self:
        """It is in the set."""
        return self._require("SISMEMBER", key, _sent(member), Said("require_member", key, member))

    def require_no_member(self, key: str, member: Value) -> Self:
        return self._require("SISMEMBER", key, _sent(member), Said("require_no_member", key, member), missing=True)

    def _require(
        self, read: str, key: str, name: Sent | bool, said: Said, *, compare: str = "text", missing: bool = False
    ) -> Self:
        if said.at_least is said.at_most is None and said.value is None:
            return self._condition(said, read, key, name, "missing" if missing else "there", "")
        if said.value is not None:
            self._condition(said, read, key, name, compare, said.value)
        if said.at_least is not None:
            self._condition(said, read, key, name, "at least", said.at_least)
        if said.at_most is not None:
            self._condition(said, read, key, name, "at most", said.at_most)
        return self

    def _condition(self, said: Said, read: str, key: str, name: Sent | bool, compare: str, wanted: Value) -> Self:
        if compare != "text" and isinstance(wanted, int) and abs(wanted) >= EXACT:
            raise ValueError(f"{said}: {wanted} cannot be compared exactly; from -2**53 to 2**53, exclusive")
        value = _sent(wanted)
        place = self._place(said, key, 1)
        self._conditions.append((read, place, name, compare, value if compare == "text" else wanted))
        self._asked.append(said)
        return self

    # --- writes ---

    def set(self, key: str, value: Value, *, ttl: float | None = None) -> Self:
        """`ttl`: seconds; None: it stays, and a TTL that it had is gone."""
        return self._write("SET", key, value, *(() if ttl is None else ("PX", _milliseconds("set", "ttl", ttl))))

    def delete(self, *keys: str) -> Self:
        for key in keys:
            self._write("DEL", key)
        return self

    def expire(self, key: str, seconds: float) -> Self:
        """It goes after so many seconds; nothing happens if it is not there."""
        return self._write("PEXPIRE", key, _milliseconds("expire", "seconds", seconds))

    def incrby(self, key: str, by: int = 1) -> Self:
        """Add to a whole number below ±2**53; a key that is not there counts as 0."""
        return self._write("INCRBY", key, _whole("incrby", by))

    def hset(self, key: str, field: Value, value: Value) -> Self:
        return self._write("HSET", key, field, value)

    def hdel(self, key: str, *fields: Value) -> Self:
        return self._write("HDEL", key, *fields, least=1)

    def hincrby(self, key: str, field: Value, by: int = 1) -> Self:
        """Add to a whole number below ±2**53; a field that is not there counts as 0."""
        return self._write("HINCRBY", key, field, _whole("hincrby", by))

    def zadd(self, key: str, member: Value, score: Number) -> Self:
        return self._write("ZADD", key, _number("zadd", score), member)

    def zincrby(self, key: str, member: Value, by: Number = 1) -> Self:
        return self._write("ZINCRBY", key, _number("zincrby", by), member)

    def zrem(self, key: str, *members: Value) -> Self:
        return self._write("ZREM", key, *members, least=1)

    def sadd(self, key: str, *members: Value) -> Self:
        return self._write("SADD", key, *members, least=1)

    def srem(self, key: str, *members: Value) -> Self:
        return self._write("SREM", key, *members, least=1)

    def lpush(self, key: str, *values: Value) -> Self:
        return self._write("LPUSH", key, *values, least=1)

    def rpush(self, key: str, *values: Value) -> Self:
        return self._write("RPUSH", key, *values, least=1)

    def _write(self, command: str, key: str, *args: Value, least: int = 0) -> Self:
        said = Said(_NAMES.get(command) or command.lower(), key)
        if len(args) < least:
            raise ValueError(f"{said}: name at least one more thing than the key")
        if key in self._locks:
            raise ValueError(f"{said}: that is the lock itself; release() gives it back")
        values = [_sent(arg) for arg in args]
        place = self._place(said, key, len(values) if least else 1)
        self._writes.append((command, place, _KINDS.get(command, False), *values))
        self._written.append(said)
        return self

    # --- together ---

    def _place(self, said: Said, key: str, count: int) -> int:
        """Where the key stands in KEYS. The first are the base and the locks; Lua counts from 1."""
        if self._caller is not None or self._is_done:
            raise ValueError(f"{said}: this transaction was sent; make another one")
        self._count += count
        if self._count > MOST:
            raise ValueError(f"{said}: a transaction has at most {MOST:,} conditions and writes; make several")
        place = self._places.get(key)
        if place is None:
            check_text("key", key)
            if self._home is None:
                self._home = key
            if self._slot < 0:
                self._slot = slot(self._home)
            if slot(key) != self._slot:
                raise ValueError(
                    f"{said}: its slot is not that of {self._home!r}; give all one hash tag: {{tag}}:a and {{tag}}:b"
                )
            place = self._places[key] = 2 + len(self._locks) + len(self._places)
        return place

    @verb
    def commit(self) -> RoundTrip[tuple[int | float, ...]]:
        """Check everything, then write everything. Answers what each write answered, in order: the number of things
        added or removed, or the new number.

        Raises LeaseLost if the lock is not ours any more, TransactionRefused naming the first condition that does not
        hold; nothing is written then. After ServerUnavailable it is not known whether it was done: calling it again
        within a minute counts once. One round trip.
        """
        if not self._asked and not self._written:
            raise ValueError("commit(): there is nothing in this transaction; add what it requires and writes")
        if self._is_done:
            raise ValueError("commit(): it was done before; make another transaction")
        assert self._home is not None
        conditions, writes = _pack(self._conditions), _pack(self._writes)
        if len(conditions) + len(writes) > MOST_BYTES:
            raise ValueError(f"commit(): {len(conditions) + len(writes):,} bytes, at most {MOST_BYTES:,}; make several")
        caller = self._caller = self._caller or next_call()
        keys = (TransactionKeys(self._home).base, *self._locks, *self._places)
        args = (caller.id, caller.number, self._token, len(self._locks), conditions, writes)
        return RoundTrip(scripts()["commit"], keys, args, self._answer)

    def _answer(self, reply: Sequence[Any]) -> tuple[int | float, ...]:
        if self._caller is not None:
            answered(self._caller)
            self._caller = None
        verdict, *rest = reply
        if verdict == 1:
            self._is_done = True
            return tuple(float(one) if isinstance(one, bytes) else one for one in rest)
        if verdict == 0:
            assert self._guard is not None
            raise self._guard.loss()
        said = (self._asked if verdict == -1 else self._written)[rest[0] - 1]
        raise _refusal(f"{said} {'does not hold' if verdict == -1 else 'cannot be done'}", said, rest[1:])


def _refusal(what: str, said: Said, rest: Sequence[bytes | int]) -> TransactionRefused:
    found = str(rest[0]).encode() if rest and isinstance(rest[0], int) else rest[0] if rest else None
    assert not isinstance(found, int)
    there = "nothing" if found is None else found[:100].decode(errors="replace")
    return TransactionRefused(f"{what}: there is {there}; nothing was written", condition=str(said), found=found)


_NAMES = {"DEL": "delete", "PEXPIRE": "expire"}

_KINDS = {
    "INCRBY": "string", "HSET": "hash", "HDEL": "hash", "HINCRBY": "hash", "ZADD": "zset", "ZINCRBY": "zset",
    "ZREM": "zset", "SADD": "set", "SREM": "set", "LPUSH": "list", "RPUSH": "list",
}  # fmt: skip
"""The type a write works on; the others work on any."""

_pack = msgspec.msgpack.Encoder().encode


def _short(value: Value) -> Value:
    return value[:40] if isinstance(value, str | bytes) else value


def _sent(value: Value) -> Sent:
    if isinstance(value, bytes):
        # As MessagePack's older text, of any bytes: the server's scripts do not know its newer type for them.
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
        raise TypeError(f"{value!r}: bytes, a text, or a number")
    if not math.isfinite(value):
        raise ValueError(f"{value}: a finite number")
    return repr(value)


def _number(what: str, value: Number) -> Number:
    if isinstance(value, str | bytes):
        raise TypeError(f"{what}({value!r}): a number")
    return value


def _whole(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= EXACT:
        raise ValueError(f"{what}({value!r}): a whole number between -2**53 and 2**53, exclusive")
    return value


def _milliseconds(what: str, name: str, seconds: float) -> int:
    if not 0.001 <= seconds <= 366 * 86400:
        raise ValueError(f"{what}({name}={seconds}): seconds from 0.001 to a year")
    return -int(-seconds * 1000 // 1)
