"""Numbers for calls that count once, however often they are sent.

A call carries a caller's id and a number that rises; the server keeps the last number of each caller, with its answer,
for a minute. A caller has one call under way at a time, and goes on to the next when it knows the answer: so what the
server remembers grows with the calls at once, not with the calls.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass


@dataclass(slots=True)
class Caller:
    """`number` is that of its last call."""

    id: str
    number: int = 0


# Those whose last call was answered. A forked child would use the numbers of its parent.
_idle: list[Caller] = []
os.register_at_fork(after_in_child=_idle.clear)


def next_call() -> Caller:
    """A caller with a number that it has not used. Nobody else has it until `answered`."""
    try:
        caller = _idle.pop()
    except IndexError:
        caller = Caller(secrets.token_urlsafe(9))
    caller.number += 1
    return caller


def answered(caller: Caller) -> None:
    """Its call is over. A caller whose call has no answer is dropped: the call may still be done."""
    _idle.append(caller)
