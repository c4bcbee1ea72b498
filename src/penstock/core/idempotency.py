"""Idempotency keys, by which the server recognises a call that is sent again.

A key is a caller's id and a number that increases. The server keeps the last number of each caller with its answer, for
a minute or longer (see `idempotency.lua`), and answers a repeated call without executing it again: a replay. A caller
has one unanswered call at a time and takes its next number when it has the answer. So the server keeps one answer for
each concurrent caller, however many calls are made in total.

The driver assigns a key to each call of a script whose first arguments are `caller` and `number`, if their values are
`UNNUMBERED`. Code that has to refer to a call later takes a key itself, with `take_key`.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Final

ARGUMENTS: Final = ("caller", "number")
"""The first arguments of a script that recognises repeated calls."""

UNNUMBERED: Final = ("", 0)
"""Placeholders that the driver replaces with a key. In a user's pipeline they stay: the user decides on retries."""


@dataclass(slots=True)
class IdempotencyKey:
    """The caller, and the number of its last call."""

    caller: str
    number: int = 0


class KeyPool:
    """Keys whose last call was answered. Threads may share a pool, processes must not."""

    def __init__(self) -> None:
        self._free: list[IdempotencyKey] = []

    def take(self) -> IdempotencyKey:
        """A key with a number that no call has had. No other call gets the key until `release`."""
        try:
            key = self._free.pop()
        except IndexError:
            key = IdempotencyKey(secrets.token_urlsafe(9))
        key.number += 1
        return key

    def release(self, key: IdempotencyKey) -> None:
        """Return a key whose call was answered. Never release one without an answer: its call may still arrive."""
        self._free.append(key)

    def clear(self) -> None:
        self._free.clear()


_shared = KeyPool()
os.register_at_fork(after_in_child=_shared.clear)

take_key = _shared.take
"""Take a key from the pool of the process, for a call that the caller must be able to refer to later."""

release_key = _shared.release
