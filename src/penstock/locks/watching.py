"""Waits for a state in the server: the loop that waits for a latch, or for the next leader.

Each look registers an address, to which a message is sent when the state changes. All waits of one face for the same
thing share an address. They also share the looks that no message asked for: one of them looks, and the others use its
answer. So a hundred idle waits send as few commands as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from penstock.core.arguments import LONGEST_WAIT, check_number
from penstock.core.operations import Listen, Listener, Operation, RoundTrip, wait_until_recheck

R = TypeVar("R")

REREGISTER_INTERVAL = 300.0
"""Seconds after which a waiting operation looks again in any case, and renews its registration."""

REGISTRATION_TTL = 3 * REREGISTER_INTERVAL
"""Seconds for which the server keeps a registration."""

# While another wait looks, a wait checks at this interval whether the answer has arrived, and after this timeout it
# looks itself. Both are seconds.
_ANSWER_INTERVAL = 0.05
_ANSWER_TIMEOUT = 2.0


class _SharedLook:
    """A look of one wait, whose answer others may use.

    begun     the `time.monotonic()` at which the look began; `answered`: at which it ended
    answer    None while there is no answer, and if the answer ended the wait, because then no address was registered
    """

    __slots__ = ("answer", "answered", "begun", "is_pending")

    def __init__(self) -> None:
        self.begun = self.answered = time.monotonic()
        self.answer: Any = None
        self.is_pending = True

    def end(self) -> None:
        self.answered, self.is_pending = time.monotonic(), False


# Address -> the last look that registered it. Removed when the last of the waits that share the address ends.
_last_looks: dict[str, _SharedLook] = {}


def check_timeout(what: str, timeout: Any) -> None:
    """Raise ValueError unless `timeout` is a number of seconds, or None for a wait without a limit."""
    if timeout is not None:
        check_number(what, "timeout", timeout, 0, LONGEST_WAIT, "seconds from 0, or None for ever")


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

    One round trip if `timeout` is 0. Otherwise one at first, one for each message, one for each time that was due,
    which all waits share, and one to deregister if the wait ends in vain.
    """
    if timeout == 0:
        answer: R = yield look("", 0.0)
        return answer
    deadline = None if timeout is None else time.monotonic() + timeout
    listener = yield Listen(key, shared=True)
    address = listener.address
    last, must_look = _SharedLook(), True
    try:
        while True:
            if deadline is not None and time.monotonic() >= deadline:
                # The address stays registered if other operations share it.
                answer = yield look(address if _close(listener) else "", 0.0)
                return answer
            other = None if must_look else _look_after(last, address)
            if other is not None and other.is_pending and time.monotonic() < other.begun + _ANSWER_TIMEOUT:
                must_look = yield from wait_until_recheck(listener, _ANSWER_INTERVAL, deadline)
                continue
            if other is not None and other.answer is not None:
                last = other
            else:
                last = _SharedLook()
                if other is None:
                    _last_looks[address] = last
                try:
                    answer = yield look(address, REGISTRATION_TTL)
                finally:
                    last.end()
                if found(answer):
                    return answer
                last.answer = answer
            if found(last.answer):
                return cast(R, last.answer)
            look_in = last.answered + min(due(last.answer), REREGISTER_INTERVAL) - time.monotonic()
            must_look = yield from wait_until_recheck(listener, look_in, deadline)
    except BaseException:
        if _close(listener):
            yield look(address, 0.0)
        raise
    finally:
        _close(listener)


def _look_after(mine: _SharedLook, address: str) -> _SharedLook | None:
    """The last look of another wait, if it began after mine."""
    other = _last_looks.get(address)
    return other if other is not None and other.begun > mine.begun else None


def _close(listener: Listener) -> bool:
    """Close a listener. Returns whether no other operation shares its address."""
    is_last = listener.close()
    if is_last:
        _last_looks.pop(listener.address, None)
    return is_last
