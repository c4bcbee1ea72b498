"""The scripts of a rate limit as round trips, in addition to `bindings.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec

from penstock.core.idempotency import IdempotencyKey
from penstock.core.operations import RoundTrip
from penstock.core.scripts import Library
from penstock.locks.answers import LimitKind, Owner, RateLimitInfo
from penstock.locks.bindings import MAX_SHOWN
from penstock.locks.keys import RateLimitKeys

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@cache
def rate_limit_scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/idempotency.lua",
        "core/bucket.lua",
        "core/deputy.lua",
        "core/waiters.lua",
        "locks/rate.lua",
    )


@dataclass(frozen=True, slots=True)
class RateReply:
    """The answer to one attempt to use units.

    outcome    "granted"; "refused"; "waits": try again in `seconds`, or earlier if a message asks for it; "full": too
               many requests wait; "again": send it again at once: this call dropped as many dead waiters as it may
    seconds    until it should try again, if it waits; otherwise, until the units would be allowed
    remaining  how many more units are allowed now
    ticket     the position among the waiters
    offer_ends  seconds until the offer to the first waiter ends; 0 if the reply does not say
    found_dead  whether this attempt dropped waiters whose process is gone or silent
    """

    outcome: Literal["granted", "refused", "waits", "full", "again"]
    seconds: float = 0.0
    remaining: int = 0
    ticket: int = 0
    offer_ends: float = 0.0
    found_dead: bool = False


_OUTCOMES: dict[int, Literal["granted", "refused", "waits", "full", "again"]] = {
    1: "granted",
    0: "refused",
    2: "waits",
    -1: "full",
    3: "again",
}


class RateLimitBindings:
    """The round trips of one rate limit. `packed`: the request of one `acquire()` or `try_acquire()`, by `pack`."""

    def __init__(self, keys: RateLimitKeys, kind: LimitKind, *, capacity: int, limit: int, per: float) -> None:
        """`capacity`: units that a full bucket holds, or that a window allows."""
        self.declared = keys.declared(kind)
        # Microseconds for one unit. Rounded up, so that the limit is never exceeded.
        interval = -int(-per * 1_000_000 // limit)
        self._name = keys.name
        self._kind: LimitKind = kind
        self._definition = (capacity, kind, int(per * 1_000_000), interval)

    def pack(self, token: str, n: int, address: str = "") -> bytes:
        """A request for `n` units. `address`: where messages reach it; "" if it does not wait."""
        return _pack((token, 0, address, self.declared, n, *self._definition))

    def acquire(
        self, packed: bytes, key: IdempotencyKey, ticket: int = 0, *, join: bool, max_wait: float | None = None
    ) -> RoundTrip[RateReply]:
        """Try to use the units of a request.

        key       the idempotency key of the request, which all its attempts share
        ticket    the position among the waiters, from the reply to the last attempt; 0 for the first
        join      if the units are not allowed now, join the waiters or keep the position; False gives it up
        max_wait  seconds; refuse a new request that would wait for longer. None: any
        """
        micros = -1 if max_wait is None else int(max_wait * 1_000_000)
        args = (key.caller, key.number, packed, ticket, int(join), micros)
        return RoundTrip(rate_limit_scripts()["acquire"], self.declared, args, _rate_reply)

    def withdraw(self, packed: bytes, key: IdempotencyKey) -> RoundTrip[bool]:
        """Withdraw a request, so that it neither waits nor uses units, even if its last attempt arrives later."""
        return RoundTrip(rate_limit_scripts()["withdraw"], self.declared, (key.caller, key.number, packed), bool)

    def info(self) -> RoundTrip[RateLimitInfo]:
        return RoundTrip(rate_limit_scripts()["show"], self.declared, (self._kind, MAX_SHOWN), self._info)

    def reset(self) -> RoundTrip[bool]:
        """Forget the units that were used. Returns whether there were any."""
        return RoundTrip(rate_limit_scripts()["reset"], self.declared, (self._kind,), bool)

    def _info(self, reply: Sequence[Any]) -> RateLimitInfo:
        now, terms, left, micros, units, waiting, *rows = reply
        waiters = tuple(_waiter(now, packed, ticket) for packed, ticket in zip(rows[0::2], rows[1::2], strict=True))
        if not terms:
            return RateLimitInfo(self._name, self._kind, None, None, None, None, 0.0, waiting, units, waiters)
        capacity, per, interval = map(int, terms.split())
        limit, burst = (capacity, None) if self._kind == "window" else (_limit(capacity, per, interval), capacity)
        return RateLimitInfo(
            self._name, self._kind, limit, per / 1e6, burst, left, micros / 1e6, waiting, units, waiters
        )


def _limit(burst: int, per: int, interval: int) -> int:
    """The units of a bucket in `per` microseconds. The interval of a unit was rounded up, so others may be possible."""
    return burst if -(-per // burst) == interval else round(per / interval)


def _waiter(now: int, packed: bytes, ticket: bytes) -> Owner:
    """A request that waits; the ticket is the time of its arrival, in server microseconds like `now`."""
    token, _, _, _, units, *_ = _unpack(packed)
    return Owner.from_token(token, max(0.0, (now - float(ticket)) / 1e6), None, units)


def _rate_reply(reply: Sequence[int]) -> RateReply:
    outcome, seconds, rest = _OUTCOMES[reply[0]], reply[1] / 1_000_000, reply[2]
    if outcome in ("refused", "full", "again"):
        return RateReply(outcome, seconds, remaining=rest)
    offer_ends, found_dead = reply[3] / 1000, bool(reply[4])
    if outcome == "waits":
        return RateReply(outcome, seconds, 0, rest, offer_ends, found_dead)
    return RateReply(outcome, seconds, rest, 0, offer_ends, found_dead)
