"""Ids of jobs and messages, and tokens that name the process that made them."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Container
from functools import cache
from typing import Final

# Crockford's base 32. Ids are encoded ten bits at a time.
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]


class _Minter:
    """Makes ULIDs (github.com/ulid/spec): 48 bits of time, then 80 random bits, increased by one within a millisecond.

    Scripts never read the time in an id. It makes ids sort by time, and shows people when one was made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamp = -1
        self._low = 0
        self._head = ""
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._stamp = -1

    def __call__(self) -> str:
        """A new id of 26 characters, larger than all before it in this process. Threads may share the minter."""
        with self._lock:
            stamp = time.time_ns() // 1_000_000
            if stamp > self._stamp or self._low >= (1 << 20) - 1:
                self._stamp = max(stamp, self._stamp + 1) if self._low >= (1 << 20) - 1 else stamp
                random_bits = int.from_bytes(os.urandom(10))
                self._low = random_bits & ((1 << 19) - 1)
                high = (self._stamp << 60) | (random_bits >> 20)
                self._head = "".join(_PAIRS[high >> shift & 1023] for shift in range(100, -1, -10))
            else:
                self._low += 1
            low = self._low
            head = self._head
        return f"{head}{_PAIRS[low >> 10]}{_PAIRS[low & 1023]}"


mint_id = _Minter()

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUV"
"""The digits that `int(text, 32)` reads."""

_TO_DIGITS: Final = str.maketrans(_ALPHABET, _DIGITS)
_CHARACTERS: Final = 26
_BYTES: Final = 16


def packed_id(text: str) -> bytes | str:
    """The 16 bytes of an id as `mint_id` makes them; any other text unchanged."""
    if len(text) != _CHARACTERS or not text.isalnum() or text.strip(_ALPHABET):
        return text
    number = int(text.translate(_TO_DIGITS), 32)
    return number.to_bytes(_BYTES) if number < 1 << 8 * _BYTES else text


def text_of_id(packed: bytes) -> str:
    """The id that `packed_id` has packed."""
    number = int.from_bytes(packed)
    return "".join(_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10))


def derived_id(stamp: int, *parts: str) -> str:
    """The id that follows from these texts, in the form of a new one.

    stamp  milliseconds since 1970, for which it sorts
    """
    digest = hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=10).digest()
    number = (stamp << 80) | int.from_bytes(digest)
    return "".join(_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10))


@cache
def _host() -> str:
    return socket.gethostname().replace("/", "_")[:60]


def process_name() -> str:
    """`host:pid` of this process."""
    return f"{_host()}:{os.getpid()}"


def mint_token() -> str:
    """A new token, `penstock/host/process id/random text`, so that people can find the process that holds something."""
    return f"penstock/{_host()}/{os.getpid()}/{secrets.token_urlsafe(12)}"


def is_gone(pid: int) -> bool:
    """Whether it is certain that this host has no process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def may_be_alive(token: str, in_use: Container[str]) -> bool:
    """Whether the process that made this token may still use it.

    False only if that is certain: the token's process ran on this host and is gone, or it is this process, in which the
    token is not among those `in_use`.
    """
    match token.split("/"):
        case [_, host, pid, *_] if host == _host() and pid.isdecimal():
            return token in in_use if int(pid) == os.getpid() else not is_gone(int(pid))
    return True
