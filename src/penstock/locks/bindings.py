"""The scripts of locks, semaphores and transactions as round trips.

Argument order and reply shapes are written here and nowhere else. Nothing here sends anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from penstock.core.idempotency import IdempotencyKey
from penstock.core.operations import Arg, Operation, RoundTrip
from penstock.core.scripts import Library
from penstock.core.writes import Packable, Value
from penstock.locks.answers import LockInfo, Owner, ReadWriteLockInfo, SemaphoreInfo
from penstock.locks.constants import ALL, UNLIMITED
from penstock.locks.keys import LockKeys, SemaphoreKeys, TransactionKeys

MAX_SHOWN = 100
"""The most owners, and the most waiters, that one `info()` returns."""

PAGE = 1000
"""The most permits that one round trip of `holders` reads."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@cache
def lock_scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/deputy.lua",
        "core/waiters.lua",
        "locks/server_time.lua",
        "locks/breaking.lua",
        "locks/lock.lua",
    )


@cache
def semaphore_scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/deputy.lua",
        "core/waiters.lua",
        "locks/server_time.lua",
        "locks/breaking.lua",
        "locks/semaphore.lua",
    )


@cache
def transaction_scripts() -> Library:
    return Library("core/idempotency.lua", "core/writes.lua", "locks/transaction.lua")


# --- locks and semaphores ---


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for locks or for permits, without the token of the `acquire()` that sends it.

    declared  the keys that each script declares
    lease     seconds
    permits, limit  of a semaphore; 0 for a lock. For a read-write lock 1 or ALL, and UNLIMITED
    """

    declared: tuple[str, ...]
    lease: float
    permits: int = 0
    limit: int = 0

    def pack(self, token: str, address: str = "") -> bytes:
        """The request as `core/waiters.lua` stores it. `address`: where messages reach it; "" if it does not wait."""
        return _pack((token, math.ceil(self.lease * 1000), address, self.declared, 0, self.limit, self.permits))


class AcquireReply(msgspec.Struct, frozen=True):
    """The answer to one attempt.

    granted   whether the request now holds what it asked for; `fence` is then set
    ticket    its position among the waiters
    retry_in  seconds after which to try again if no message arrives earlier
    more      whether to send it again at once: this call dropped as many dead waiters as one call may, and does not
              know yet whether the request can be granted
    refused   0, unless the request can never be granted. For locks: the number, from 1, of the lock whose key holds
              other data. For a semaphore: its limit, which is lower than the permits requested
    now       the server's time, in microseconds
    limit     of a semaphore that did not grant the request: the limit that applies
    """

    granted: bool
    fence: int = 0
    ticket: int = 0
    retry_in: float = 0.0
    more: bool = False
    refused: int = 0
    now: int = 0
    limit: int = 0


class RenewReply(NamedTuple):
    """The answer to a renewal.

    is_held       whether the request still holds all that it asked for
    left          seconds until the lease ends
    break_reason  None unless an operator ended the holding
    """

    is_held: bool
    left: float = 0.0
    break_reason: str | None = None


class ReleaseReply(NamedTuple):
    """The answer to a release.

    was_held      whether the request held all that it asked for
    more          whether to send it again at once: this call dropped as many dead waiters as one call may, and has not
                  reached the next owner yet
    break_reason  None unless an operator ended the holding
    """

    was_held: bool
    more: bool
    break_reason: str | None = None


class BreakReply(NamedTuple):
    """The answer to an operator who ends a holding.

    ended  whether an operator ended it, by this call or an earlier one
    more   whether to send a release to reach the next owner; as in `ReleaseReply`
    """

    ended: bool
    more: bool


class LeaseBindings:
    """The round trips that locks, semaphores and elections share. `packed`: the request of one `acquire()`, by
    `request.pack`."""

    def __init__(self, scripts: Library, request: LeaseRequest) -> None:
        self.scripts = scripts
        self.request = request
        self.declared = request.declared
        self._acquire = scripts["acquire"]
        self._renew = scripts["renew"]
        self._release = scripts["release"]

    def acquire(self, packed: bytes, ticket: int, *, join: bool) -> RoundTrip[AcquireReply]:
        """Send one attempt of a request.

        ticket  the position among the waiters, from the reply to the last attempt; 0 for the first
        join    if it is not granted, join the waiters or keep the position among them; False gives the position up
        """
        return RoundTrip(self._acquire, self.declared, (packed, ticket, int(join)), read_acquire_reply)

    def renew(
        self, packed: bytes, seconds: float, *, ends: int = 0, confirms: bool = False, address: str = ""
    ) -> RoundTrip[RenewReply]:
        """Extend the lease to `seconds` from now; never shorten it.

        ends      server microseconds at which the holding ends at the latest; 0: never
        confirms  whether it is the first renewal of a lock that a message granted
        address   where the owner is notified when an operator ends the holding
        """
        values: dict[str, Arg] = {
            "request": packed,
            "ms": math.ceil(seconds * 1000),
            "ends": ends,
            "confirms": int(confirms),
            "address": address,
        }
        args = tuple(values[name] for name in self._renew.args)  # each noun's script takes some of them
        return RoundTrip(self._renew, self.declared, args, _renew_reply)

    def release(self, packed: bytes) -> RoundTrip[ReleaseReply]:
        """Release what the request holds, and its position among the waiters. May be repeated."""
        return RoundTrip(self._release, self.declared, (packed,), _release_reply)

    def holders(self) -> Operation[Sequence[Owner]]:
        """The processes that hold it. One round trip for each 1000 permits."""
        raise NotImplementedError

    def end_holding(self, token: str, reason: str) -> RoundTrip[BreakReply]:
        """Take what the holder with this token holds away from it."""
        return RoundTrip(self.scripts["end_holding"], self.declared, (token, reason), _break_reply)

    def server_time(self) -> RoundTrip[float]:
        """Seconds since 1970, by the server clock that the leases run on."""
        return RoundTrip(self.scripts["now"], self.declared[:2], (), lambda reply: reply / 1e6)


def read_acquire_reply(reply: Sequence[int]) -> AcquireReply:
    if reply[0] < 0:
        return AcquireReply(False, refused=reply[1])
    if reply[0] == 1:
        return AcquireReply(True, fence=reply[1], now=reply[3])
    _, ticket, ms, now, *limit = reply
    return AcquireReply(
        False, ticket=ticket, retry_in=max(0, ms) / 1000, more=ms == 0, now=now, limit=limit[0] if limit else 0
    )


def _renew_reply(reply: Sequence[Any]) -> RenewReply:
    is_held, rest = reply
    if is_held:
        return RenewReply(True, left=rest / 1000)
    return RenewReply(False, break_reason=_text(rest))


def _release_reply(reply: Sequence[Any]) -> ReleaseReply:
    was_held, more, reason = reply
    return ReleaseReply(bool(was_held), bool(more), _text(reason))


def _break_reply(reply: Sequence[int]) -> BreakReply:
    ended, more = reply
    return BreakReply(bool(ended), bool(more))


def _text(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace")


class LockBindings(LeaseBindings):
    """The round trips of one lock, or of several that are acquired together."""

    def __init__(self, names: Sequence[str], lease: float) -> None:
        keys = [LockKeys(name) for name in names]
        declared = tuple(key for one in keys for key in one.declared)
        super().__init__(lock_scripts(), LeaseRequest(declared, lease))
        self._name = names[0]

    def holders(self) -> Operation[Sequence[Owner]]:
        """The owner of the first lock."""
        info = yield self.info()
        return () if info.holder is None else (info.holder,)

    def end_holding(self, token: str, reason: str) -> RoundTrip[BreakReply]:
        """Take the first lock from the owner with this token. The token of another library may be no text: then from
        any owner."""
        token = "" if "\ufffd" in token else token
        return RoundTrip(self.scripts["end_holding"], self.declared[:2], (token, reason), _break_reply)

    def info(self) -> RoundTrip[LockInfo]:
        return RoundTrip(self.scripts["show"], self.declared[:2], (MAX_SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> LockInfo:
        now, token, left, fence, waiting, *rows = reply
        holder = None if token is None else _owner(token, left, fence, now)
        return LockInfo(self._name, holder, None if fence is None else int(fence), waiting, read_waiters(now, rows))


def _owner(token: bytes, left: int, fence: bytes | None, now: int) -> Owner:
    """The owner of a lock. Its fence is the server's time at which it acquired the lock."""
    age = None if fence is None else max(0.0, (now - int(fence)) / 1e6)
    return Owner.from_token(token.decode(errors="replace"), age, left / 1000 if left >= 0 else None)


@lru_cache(maxsize=1024)
def lock_bindings(names: tuple[str, ...], lease: float) -> LockBindings:
    """The bindings of a lock. Those of the locks that a program made last are kept: it often makes the same ones."""
    return LockBindings(names, lease)


class SemaphoreBindings(LeaseBindings):
    """The round trips of one semaphore."""

    def __init__(self, keys: SemaphoreKeys, lease: float, permits: int, limit: int) -> None:
        super().__init__(semaphore_scripts(), LeaseRequest(keys.declared, lease, permits, limit))
        self._name = keys.name

    def set_limit(self, limit: int | None) -> RoundTrip[bool]:
        """Store a limit, or remove it. True means: send it again, because this call dropped as many dead waiters as one
        call may."""
        return RoundTrip(self.scripts["set_limit"], self.declared, (limit or 0,), bool)

    def holders(self) -> Operation[Sequence[Owner]]:
        return _all_holders(self)

    def info(self) -> RoundTrip[SemaphoreInfo]:
        return RoundTrip(self.scripts["show"], self.declared, (MAX_SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> SemaphoreInfo:
        now, limit, held, permits, _, waiting, *rows = reply
        stored = None if limit is None else int(limit)
        return SemaphoreInfo(self._name, stored, held, _holders(now, permits), waiting, read_waiters(now, rows))


class ReadWriteBindings(LeaseBindings):
    """The round trips of one side of a read-write lock."""

    def __init__(self, keys: SemaphoreKeys, lease: float, permits: int) -> None:
        """`permits`: 1 for a reader, ALL for a writer."""
        super().__init__(semaphore_scripts(), LeaseRequest(keys.declared, lease, permits, UNLIMITED))
        self._name = keys.name

    def holders(self) -> Operation[Sequence[Owner]]:
        """The writer, or the readers, whichever side this is."""
        return _all_holders(self)

    def info(self) -> RoundTrip[ReadWriteLockInfo]:
        return RoundTrip(self.scripts["show"], self.declared, (MAX_SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> ReadWriteLockInfo:
        now, _, held, permits, fence, waiting, *rows = reply
        holders = _holders(now, permits)
        is_written = any(permit.endswith(b"/all") for permit in permits[0::2])
        return ReadWriteLockInfo(
            self._name,
            holders[0] if is_written else None,
            0 if is_written else held,
            () if is_written else holders,
            None if fence is None else int(fence),
            waiting,
            read_waiters(now, rows),
            tuple(_unpack(packed)[-1] == ALL for packed in rows[0::2]),
        )


def _all_holders(of: SemaphoreBindings | ReadWriteBindings) -> Operation[Sequence[Owner]]:
    """The holders of all permits, which are read in the order in which their leases end."""
    permits: dict[bytes, bytes] = {}
    since = skip = 0
    while True:
        now, *page = yield RoundTrip(of.scripts["list_permits"], of.declared, (since, skip, PAGE), list)
        permits.update(zip(page[0::2], page[1::2], strict=True))
        if len(page) < 2 * PAGE:
            return _holders(now, [part for row in permits.items() for part in row])
        last = page[-1]
        skip = page[1::2].count(last) + (skip if since == int(last) else 0)
        since = int(last)


def _holders(now: int, permits: Sequence[Any]) -> tuple[Owner, ...]:
    """`permits`: token/number, server ms until which it is held, …; `now` is in server microseconds."""
    until = [
        (permit.decode(errors="replace").rpartition("/")[0], (int(till) - now / 1000) / 1000)
        for permit, till in zip(permits[0::2], permits[1::2], strict=True)
    ]
    holders = []
    for token, group in groupby(sorted(until), lambda permit: permit[0]):
        lefts = [left for _, left in group]
        holders.append(Owner.from_token(token, None, lefts[0], len(lefts)))
    return tuple(holders)


def read_waiters(now: int, rows: Sequence[Any]) -> tuple[Owner, ...]:
    """`rows`: request, ticket, request, ticket, …; a ticket is a time of arrival, in server microseconds like `now`."""
    waiters = []
    for packed, ticket in zip(rows[0::2], rows[1::2], strict=True):
        token, _, _, _, _, _, permits = _unpack(packed)
        waiters.append(Owner.from_token(token, max(0.0, (now - float(ticket)) / 1e6), None, permits or 1))
    return tuple(waiters)


# --- transactions ---

Comparison: TypeAlias = Literal["there", "missing", "text", "number", "at least", "at most"]


class Condition(NamedTuple):
    """One condition, as `condition.holds` takes it. `member`: a hash field or a member; False for a whole key."""

    command: str
    position: int
    member: Packable | Literal[False]
    comparison: Comparison
    wanted: Value | msgspec.Raw


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The answer to a commit. Unless the outcome is "done", nothing was written.

    outcome  "not held": a lock that guards the transaction is no longer held; "unmet": a condition does not hold;
             "impossible": a write cannot be executed
    results  for "done", the reply to each write
    index    which condition is unmet, or which write is impossible, from 0
    found    the value that the server has instead; None if it has none
    """

    outcome: Literal["done", "not held", "unmet", "impossible"]
    results: tuple[int | float, ...] = ()
    index: int = 0
    found: bytes | None = None


class TransactionBindings:
    """The round trip of one transaction. `locks` must hold `token`; both are empty without a guard."""

    def __init__(self, locks: tuple[str, ...] = (), token: str = "") -> None:
        self._locks = locks
        self._token = token

    def position(self, number: int) -> int:
        """The position in KEYS, counted from 1 as in Lua, of the transaction's key `number`, counted from 0."""
        return 2 + len(self._locks) + number

    def commit(
        self, slot_key: str, keys: Sequence[str], key: IdempotencyKey, conditions: bytes, writes: bytes
    ) -> RoundTrip[CommitReply]:
        """Check everything, then write everything. `slot_key`: a key in the slot of all `keys`."""
        declared = (TransactionKeys(slot_key).base, *self._locks, *keys)
        args = (key.caller, key.number, self._token, len(self._locks), conditions, writes)
        return RoundTrip(transaction_scripts()["commit"], declared, args, _commit_reply)


def _commit_reply(reply: Sequence[Any]) -> CommitReply:
    code, *rest = reply
    if code == 1:
        return CommitReply("done", tuple(float(one) if isinstance(one, bytes) else one for one in rest))
    if code == 0:
        return CommitReply("not held")
    index, *found = rest
    there = found[0] if found else None
    if isinstance(there, int):
        there = str(there).encode()
    return CommitReply("unmet" if code == -1 else "impossible", index=index - 1, found=there)
