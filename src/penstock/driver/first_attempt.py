"""The first attempt at a script call, if the node is known and the call needs no other command.

A face sends it at once, without a coroutine. If anything goes wrong, the call continues in `Engine.send`, with the same
idempotency key.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.idempotency import IdempotencyKey, KeyPool
from penstock.core.operations import Arg, RoundTrip
from penstock.core.scripts import Script
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.driver.retrying import NOSCRIPT, error_code
from penstock.driver.route import Route


class FirstAttempt(msgspec.Struct):
    """A script call that can be sent now.

    key      the idempotency key of the call, if it has one
    error    why the attempt failed; None: it was not made, or the node does not know the script
    to_load  the shortcut of the call, if the node does not know it
    """

    node: Node
    command: Command
    key: IdempotencyKey | None
    error: Exception | None = None
    to_load: Script | None = None

    @classmethod
    def of(
        cls, round_trip: RoundTrip[Any], route: Route | None, pool: KeyPool, *, followed: bool = False
    ) -> FirstAttempt | None:
        """None if the node has to be found first, or if the call takes several commands.

        `followed`: the caller also sends the command that follows the script.
        """
        keys = round_trip.keys
        node = None if route is None else route.node(keys[0] if keys else "")
        if node is None or round_trip.durable or (round_trip.followed_by and not followed):
            return None
        args, key = numbered_arguments(round_trip, pool)
        script = round_trip.shortcut or round_trip.script
        return cls(node, ("EVALSHA", script.sha, str(len(keys)), *keys, *args), key)

    def failed(self, error: Exception) -> None:
        if error_code(error) != NOSCRIPT:
            self.error = error

    def answered(self, round_trip: RoundTrip[Any], reply: Any) -> bool:
        """Whether `reply` answers the call. Otherwise `Engine.send` continues from here."""
        if isinstance(reply, Exception):
            self.failed(reply)
            self.to_load = round_trip.shortcut if self.error is None else None
            return False
        return round_trip.shortcut is None or reply != 0


def numbered_arguments(round_trip: RoundTrip[Any], pool: KeyPool) -> tuple[tuple[Arg, ...], IdempotencyKey | None]:
    """The arguments of a call, with an idempotency key if its script takes one and the call has none yet."""
    args = round_trip.args
    if not round_trip.script.is_numbered or args[0]:
        return args, None
    key = pool.take()
    return (key.caller, str(key.number), *args[2:]), key
