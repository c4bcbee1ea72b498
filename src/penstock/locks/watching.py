"""Waiting for a state in the server: the loop of those that wait for a latch, or for the next leader.

Each look registers an address, to which a message is sent when the state changes. All waits of one face for the same
thing share an address.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.core.arguments import LONGEST_WAIT, check_seconds
from penstock.core.operations import Listen, Operation, RoundTrip, wait_until_recheck

R = TypeVar("R")

REREGISTER_INTERVAL = 300.0
"""Seconds after which a waiting operation looks again in any case, and renews its registration."""

REGISTRATION_TTL = 3 * REREGISTER_INTERVAL
"""Seconds for which the server keeps a registration."""


def check_timeout(what: str, timeout: Any) -> None:
    """Raise ValueError unless `timeout` is a number of seconds, or None for a wait without a limit."""
    if timeout is not None:
        check_seconds(what, "timeout", timeout, 0, LONGEST_WAIT, "seconds from 0, or None for ever")


def look_until(
    found: Callable[[R], object],
    look: Callable[[str, float], RoundTrip[R]],
    key: str,
    timeout: float | None,
    due: Callable[[R], float] = lambda _: REREGISTER_INTERVAL,
) -> Operation[R]:
    """Look until `found` accepts the answer or `timeout` seconds are over. Returns the last answer either way.

    look  makes the call that looks. Its arguments are the address to notify of the next change, and the seconds for
          which to register it; 0 deregisters it
    key   a key of what it waits for
    due   the seconds after which to look again if no message arrives

    One round trip if `timeout` is 0. Otherwise one at first, one for each message, one for each time that was due, and
    one to deregister at the end of a wait in vain.
    """
    if timeout == 0:
        answer: R = yield look("", 0.0)
        return answer
    deadline = None if timeout is None else time.monotonic() + timeout
    listener = yield Listen(key, shared=True)
    try:
        while True:
            if deadline is not None and time.monotonic() >= deadline:
                # The address stays registered if other operations share it.
                answer = yield look(listener.address if listener.close() else "", 0.0)
                return answer
            answer = yield look(listener.address, REGISTRATION_TTL)
            if found(answer):
                return answer
            yield from wait_until_recheck(listener, min(due(answer), REREGISTER_INTERVAL), deadline)
    except BaseException:
        if listener.close():
            yield look(listener.address, 0.0)
        raise
    finally:
        listener.close()
