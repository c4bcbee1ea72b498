"""Which errors mean "send it again", for how long, and what the others are called here.

Sending a step again is always safe: its ids were minted by the caller, and a step that must not count twice
carries a producer's number (or a turn's), by which the server recognises the second copy and repeats the answer.
So a lost reply, a server that restarts, a replica that was a primary a moment ago and a slot on the move are all
treated alike: wait a little, ask the way again, send again, until `give_up_after`.

The two client libraries raise classes of the same names that do not inherit from each other, and each takes the
code off some of the server's errors; `error_code` gives all of them one word again: the server's own where it said one.
"""

from __future__ import annotations

import logging
import random
import time

from penstock.errors import (
    ConfigurationError,
    FormatTooNew,
    PenstockError,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
)

log = logging.getLogger("penstock")

LOST = "LOST"  # the connection, or the reply on it; the server may have done the step
NOSCRIPT = "NOSCRIPT"
MOVED = "MOVED"
ASK = "ASK"

_CODES = {
    "OutOfMemoryError": "OOM",
    "NoScriptError": NOSCRIPT,
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "NoPermissionError": "NOPERM",
    "AuthorizationError": "NOPERM",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "TryAgainError": "TRYAGAIN",
    "MovedError": MOVED,
    "AskError": ASK,
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ConnectionError": LOST,
    "TimeoutError": LOST,
    "InvalidResponse": LOST,
    "OSError": LOST,
    "EOFError": LOST,
}

# BUSY is someone else's slow script; UNBLOCKED is said to a blocked reader when its server becomes a replica.
_AGAIN = {LOST, MOVED, ASK, "LOADING", "TRYAGAIN", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "UNBLOCKED"}

# After these the node is not, or may no longer be, the one that serves the key.
ASTRAY = {LOST, "READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"}

_FINAL: dict[str, type[PenstockError]] = {
    "OOM": ServerFull,
    "NOAUTH": ServerRefused,
    "WRONGPASS": ServerRefused,
    "NOPERM": ServerRefused,
    "PENSTOCKFORMAT": FormatTooNew,
    "CROSSSLOT": ConfigurationError,
}

_HINTS = {
    "OOM": "the server is at `maxmemory` and nothing was written: raise it, or let the workers catch up",
    "NOAUTH": "the server wants another user or password: valkey://user:password@host/0",
    "CROSSSLOT": "on a cluster the keys of one step share a hash tag: name them {tag}:a and {tag}:b",
    "NOPERM": "this user lacks a right: `ACL SETUSER` must allow scripts, blocking commands and our key prefix",
}

_SLOWEST = 1.0
_FASTEST = 0.005

_told = float("-inf")


def error_code(error: BaseException) -> str:
    """The server's word for it, or `LOST`, or "" for what is no error of the server or the way to it."""
    if isinstance(error, PenstockError):
        return ""
    for kind in type(error).__mro__:
        if (word := _CODES.get(kind.__name__)) is not None:
            if word == LOST and error.__cause__ is not None:
                # valkey-py's asyncio face wraps what the greeting met on a unix socket.
                return error_code(error.__cause__) or word
            return word
        if kind.__name__ == "ResponseError":
            word = str(error).partition(" ")[0]
            return word if word.isupper() else "ERR"
    return ""


def answered(error: BaseException) -> bool:
    """Whether it is a reply: the connection it came on is in order and may be used again."""
    return any(kind.__name__ == "ResponseError" for kind in type(error).__mro__)


class Attempts:
    """The attempts at one step. `pause` is asked after each failure: it answers for how long to wait, or raises."""

    __slots__ = ("_give_up_after", "_since", "tries")

    def __init__(self, give_up_after: float) -> None:
        self._give_up_after = give_up_after
        self._since = 0.0
        self.tries = 0

    def pause(self, error: Exception, address: str) -> float:
        """Seconds until the next attempt, jittered so that the clients of a restarted server do not march in step.

        Raises our own error for what no second attempt mends, and ServerUnavailable when the time is over.
        What is neither the server's nor the network's fault is raised as it is.
        """
        word = error_code(error)
        if not word:
            raise error
        if word not in _AGAIN:
            raise translated(error, word) from error
        now = time.monotonic()
        if not self.tries:
            self._since = now
        passed = now - self._since
        if passed >= self._give_up_after:
            # Without the chain of the library's own attempts, which says the same in forty lines.
            error.__context__ = error.__cause__ = None
            raise ServerUnavailable(_unavailable(error, word, address, passed)) from error
        pause = min(_SLOWEST, _FASTEST * 2.0 ** min(self.tries, 10)) * random.uniform(0.5, 1.0)
        if passed < _SLOWEST <= passed + pause:
            _tell(error, address, now)
        self.tries += 1
        return min(pause, self._since + self._give_up_after - now)


def _tell(error: Exception, address: str, now: float) -> None:
    """One line, however many threads and tasks wait for the same server."""
    global _told  # noqa: PLW0603 - of the process, as the log is
    if now - _told >= _SLOWEST:
        _told = now
        log.warning("no answer from %s for a second, trying on: %s", address, error)


def translated(error: Exception, word: str) -> PenstockError:
    """Our error for one that no second attempt mends."""
    hint = _HINTS.get("NOAUTH" if word == "WRONGPASS" else word)
    return _FINAL.get(word, ServerError)(f"{error} ({hint})" if hint else str(error))


def _unavailable(error: Exception, word: str, address: str, passed: float) -> str:
    if word == LOST:
        return (
            f"nobody answers at {address}, tried for {passed:.1f} s: {str(error).rstrip('.') or type(error).__name__}. "
            "Is the server running, and is this the address meant (the argument, or $PENSTOCK_URL)?"
        )
    return f"the server at {address} is not ready, tried for {passed:.1f} s: {word} {error}"
