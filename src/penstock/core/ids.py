"""Identifiers: of jobs and messages (ULIDs), and tokens that name the process that minted them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Container
from functools import cache
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]


class _Minter:
    """ULIDs (github.com/ulid/spec): 48 bits of time, 80 bits of chance; within a millisecond the next number.

    The server never reads the time in it; it makes ids sort and tells people when.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamp = -1
        self._low = 0
        self._head = ""
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._stamp = -1

    def __call__(self) -> str:
        with self._lock:
            stamp = time.time_ns() // 1_000_000
            if stamp > self._stamp or self._low >= (1 << 40) - 1:
                self._stamp = max(stamp, self._stamp + 1) if self._low >= (1 << 40) - 1 else stamp
                chance = int.from_bytes(os.urandom(10))
                self._low = chance & ((1 << 39) - 1)
                high = (self._stamp << 40) | (chance >> 40)
                self._head = "".join(_PAIRS[high >> shift & 1023] for shift in range(80, -1, -10))
            else:
                self._low += 1
            low = self._low
            head = self._head
        return head + _PAIRS[low >> 30] + _PAIRS[low >> 20 & 1023] + _PAIRS[low >> 10 & 1023] + _PAIRS[low & 1023]


mint_id = _Minter()


_OURS = "penstock"


@cache
def _host() -> str:
    return socket.gethostname().replace("/", "_")[:60]


def mint_token() -> str:
    """Says who, so that people can look; and is like no other."""
    return f"{_OURS}/{_host()}/{os.getpid()}/{secrets.token_urlsafe(12)}"


def is_gone(pid: int) -> bool:
    """Whether there surely is no such process on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def may_be_alive(token: str, here: Container[str]) -> bool:
    """Whether who minted it may be alive; only what is of this host, and gone, surely is not. `here`: tokens of this
    process that are in use."""
    match token.split("/"):
        case [_, host, pid, *_] if host == _host() and pid.isdecimal():
            return token in here if int(pid) == os.getpid() else not is_gone(int(pid))
    return True
