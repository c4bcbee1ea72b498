"""The scripts of latches and barriers as round trips, in addition to `bindings.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from penstock.core.idempotency import UNNUMBERED, IdempotencyKey
from penstock.core.operations import RoundTrip
from penstock.core.scripts import Library
from penstock.locks.answers import BarrierInfo, LatchInfo, Owner
from penstock.locks.constants import BROKEN, LATER, MISMATCH, PASSED, WAIT
from penstock.locks.keys import BarrierKeys, LatchKeys

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@cache
def latch_scripts() -> Library:
    return Library("core/clock.lua", "core/notify.lua", "core/idempotency.lua", "core/waiting.lua", "locks/latch.lua")


@cache
def barrier_scripts() -> Library:
    return Library("core/clock.lua", "core/notify.lua", "core/idempotency.lua", "core/waiting.lua", "locks/barrier.lua")


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


# --- latches ---


@dataclass(frozen=True, slots=True)
class LatchReply:
    """The answer of a latch.

    left   how much is still to be counted down; -1, and nothing was changed, if the latch has another count
    count  the count with which the latch was created
    """

    left: int
    count: int


class LatchBindings:
    """The round trips of one latch."""

    def __init__(self, keys: LatchKeys, count: int, ttl: float) -> None:
        self.declared = keys.declared
        self._name = keys.name
        self._terms = (count, _ms(ttl))

    def count_down(self, n: int, id: str) -> RoundTrip[LatchReply]:
        """`id`: "", or an id that counts only once."""
        args = (*UNNUMBERED, *self._terms, n, id)
        return RoundTrip(latch_scripts()["count_down"], self.declared, args, lambda reply: LatchReply(*reply))

    def look(self, address: str, ttl: float) -> RoundTrip[LatchReply]:
        """Register an address for `ttl` seconds, unless the latch is open; 0 deregisters it."""
        args = (*self._terms, address, _ms(ttl))
        return RoundTrip(latch_scripts()["look"], self.declared, args, lambda reply: LatchReply(*reply))

    def info(self) -> RoundTrip[LatchInfo | None]:
        """None if the latch does not exist."""
        return RoundTrip(latch_scripts()["show"], self.declared, (), self._info)

    def _info(self, reply: Sequence[int]) -> LatchInfo | None:
        if not reply:
            return None
        left, count, ttl, faces = reply
        return LatchInfo(self._name, count, left, faces, max(0, ttl) / 1000)


# --- barriers ---


@dataclass(frozen=True, slots=True)
class BarrierReply:
    """The answer to a party.

    generation  the generation in which it waits, or has waited
    index       how many parties had arrived in it before; with MISMATCH the number of parties that the others need
    outcome     WAIT, PASSED, BROKEN, MISMATCH or LATER, as in barrier.lua
    look_in     seconds after which it must look again
    why         why the generation is broken: a constant of barrier.lua, followed by a token or a reason
    """

    generation: int
    index: int
    outcome: int
    look_in: float = 0.0
    why: bytes = b""


class BarrierBindings:
    """The round trips of one barrier."""

    def __init__(self, keys: BarrierKeys, parties: int, lease: float, ttl: float) -> None:
        self.declared = keys.declared
        self._name = keys.name
        self._terms = (parties, _ms(lease), _ms(ttl))

    @staticmethod
    def party(token: str, address: str) -> bytes:
        """A party as `barrier.lua` stores it."""
        return _pack((token, address))

    def arrive(self, key: IdempotencyKey, party: bytes) -> RoundTrip[BarrierReply]:
        """Arrive, or learn that those that wait need another number of parties."""
        args = (key.caller, key.number, party, *self._terms)
        return RoundTrip(barrier_scripts()["arrive"], self.declared, args, _barrier_reply)

    def look(self, party: bytes, generation: int, index: int) -> RoundTrip[BarrierReply]:
        """Look whether the generation has ended, and prove that the party is alive."""
        args = (party, generation, index, *self._terms)
        return RoundTrip(barrier_scripts()["look"], self.declared, args, _barrier_reply)

    def leave(self, key: IdempotencyKey, party: bytes, generation: int, why: bytes) -> RoundTrip[BarrierReply]:
        """Stop waiting. `key`: that of the arrival, which has no effect if it comes later. May be repeated."""
        args = (key.caller, key.number, party, generation, why)
        return RoundTrip(barrier_scripts()["leave"], self.declared, args, _barrier_reply)

    def abort(self, reason: str) -> RoundTrip[bool]:
        """Break the generation that waits. False if no party waits."""
        return RoundTrip(barrier_scripts()["abort"], self.declared, (*UNNUMBERED, reason), bool)

    def info(self) -> RoundTrip[BarrierInfo | None]:
        """None if the barrier does not exist."""
        return RoundTrip(barrier_scripts()["show"], self.declared, (), self._info)

    def _info(self, reply: Sequence[Any]) -> BarrierInfo | None:
        if not reply:
            return None
        generation, parties, waiting, some, now = reply
        owners = [
            Owner.from_token(_unpack(party)[0], None, (int(till) - now) / 1000)
            for party, till in zip(some[0::2], some[1::2], strict=True)
        ]
        return BarrierInfo(self._name, parties, generation, waiting, tuple(owners))


def _barrier_reply(reply: Sequence[Any]) -> BarrierReply:
    generation, index, outcome, *rest = reply
    if outcome in {WAIT, LATER}:
        return BarrierReply(generation, index, outcome, look_in=rest[0] / 1000)
    if outcome == BROKEN:
        return BarrierReply(generation, index, outcome, why=rest[0])
    assert outcome in {PASSED, MISMATCH}
    return BarrierReply(generation, index, outcome)
