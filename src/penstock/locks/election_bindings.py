"""The scripts of an election as round trips, in addition to `bindings.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.core.operations import Operation, RoundTrip
from penstock.core.scripts import Library
from penstock.locks.answers import ElectionInfo, Leader, Owner
from penstock.locks.bindings import (
    MAX_SHOWN,
    AcquireReply,
    LeaseBindings,
    LeaseRequest,
    read_acquire_reply,
    read_waiters,
)
from penstock.locks.keys import ElectionKeys


@cache
def election_scripts() -> Library:
    return Library(
        "core/clock.lua",
        "core/notify.lua",
        "core/deputy.lua",
        "core/waiting.lua",
        "core/waiters.lua",
        "locks/server_time.lua",
        "locks/breaking.lua",
        "locks/election.lua",
    )


@dataclass(frozen=True, slots=True)
class Sighting:
    """The present leader, and the seconds after which to look again if no message arrives."""

    leader: Leader | None
    look_in: float


class ElectionBindings(LeaseBindings):
    """The round trips of one election. `value`: what this process announces as the leader."""

    def __init__(self, keys: ElectionKeys, lease: float, value: str) -> None:
        super().__init__(election_scripts(), LeaseRequest(keys.declared, lease))
        self._name = keys.name
        self._value = value

    def acquire(self, packed: bytes, ticket: int, *, join: bool) -> RoundTrip[AcquireReply]:
        args = (packed, ticket, int(join), self._value)
        return RoundTrip(self._acquire, self.declared, args, read_acquire_reply)

    def holders(self) -> Operation[Sequence[Owner]]:
        """The leader."""
        info = yield self.info()
        return () if info.leader is None else (info.leader.as_owner(),)

    def observe(self, address: str, ttl: float, known: str) -> RoundTrip[Sighting]:
        """Look who leads. If the leader has the token `known`, register an address for `ttl` seconds; 0 deregisters it.

        known  "" if there was no leader at the last look; for a first look, any other text that cannot be a token
        """
        return RoundTrip(self.scripts["observe"], self.declared, (address, math.ceil(ttl * 1000), known), _sighting)

    def info(self) -> RoundTrip[ElectionInfo]:
        return RoundTrip(self.scripts["show"], self.declared, (MAX_SHOWN,), self._info)

    def _info(self, reply: Sequence[Any]) -> ElectionInfo:
        now, _, term, *_, waiting = reply[:7]
        last_term = None if term is None else int(term)
        return ElectionInfo(self._name, _leader(reply), last_term, waiting, read_waiters(now, reply[7:]))


def _sighting(reply: Sequence[Any]) -> Sighting:
    left = reply[1]
    return Sighting(_leader(reply), (left + 1) / 1000 if left >= 0 else math.inf)


def _leader(reply: Sequence[Any]) -> Leader | None:
    now, left, term, token, at, value = reply[:6]
    if token is None:
        return None
    return Leader.elected(
        token.decode(errors="replace"),
        int(term or 0),
        value.decode(errors="replace"),
        age=max(0.0, (now - int(at)) / 1e6),
        left=left / 1000,
    )
