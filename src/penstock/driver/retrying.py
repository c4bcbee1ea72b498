"""Which errors are worth another attempt, how long to retry, and which errors Penstock raises instead of the others.

Every script call can safely be sent again. The ids of new jobs and messages are among its arguments, so a second copy
has the same ones. A call that must not take effect twice also has an idempotency key, or the number of a worker's turn
(see `jobs/lease.lua`), by which the server recognises the second copy and repeats its reply.

So the driver handles a lost reply, a restarting server, a primary that has become a replica and a moving slot alike: it
waits a little, finds the node again, sends again, and gives up after `give_up_after`.

valkey-py and redis-py raise errors of the same names whose classes are not related, and both remove the error code from
some of the server's messages. `error_code` recovers it, from the error's class or from its message.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from typing import Any

from penstock.core.operations import RoundTrip
from penstock.driver.faults import advice, describe, final_error, is_closed, script_error
from penstock.driver.interruption import raise_if_interrupted
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

LOST = "LOST"  # the connection was closed or refused; the server may have run the script
SILENT = "SILENT"  # the node did not answer in time, although nobody closed the connection
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
    "TimeoutError": SILENT,
    "InvalidResponse": LOST,
    "OSError": LOST,
    "EOFError": LOST,
}

# The server answers BUSY while another client's slow script runs. It sends UNBLOCKED to a client in a blocked read when
# it becomes a replica.
_PASSING = {"LOADING", "TRYAGAIN", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "UNBLOCKED"}

# With these a primary refuses all writes: during a fail-over its replicas have left it, or its disk is full.
_REFUSES_WRITES = {"NOREPLICAS", "MISCONF"}

_RETRYABLE = {LOST, SILENT, MOVED, ASK, *_PASSING, *_REFUSES_WRITES}

# After one of these errors the server may have run the script.
UNANSWERED = {LOST, SILENT}

# After one of these errors the node serves no calls, so every connection to it is useless.
NODE_FAILED = {SILENT, "READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"}

# After one of these errors, another node may serve the key. A node that restarts answers LOADING until it has read its
# data, and its replica may have taken over meanwhile.
STALE_ROUTE = {LOST, "LOADING", *NODE_FAILED, *_REFUSES_WRITES}

# After one of these errors a look-up waits a little for an answer that names another node.
HAS_SUCCESSOR = {*NODE_FAILED, *_REFUSES_WRITES}

# The system reports these instead of a timeout if a host or the way to it has died.
_SILENT_ERRNOS = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH}

_ERROR_CLASSES: dict[str, type[PenstockError]] = {
    "OOM": ServerFull,
    "NOAUTH": ServerRefused,
    "WRONGPASS": ServerRefused,
    "NOPERM": ServerRefused,
    "CHANNELS": ServerRefused,
    "PENSTOCKFORMAT": FormatTooNew,
    "CROSSSLOT": ConfigurationError,
    "UNKNOWN": ServerRefused,
}

_HINTS = {
    "NOREPLICAS": "its setting `min-replicas-to-write` is above the number of its replicas: start one, or lower it",
    "MISCONF": "it could not write its data to disk: make room there or mend the folder `dir`; its log has the reason",
    "UNKNOWN": "Penstock needs scripts (EVALSHA) and sharded messages (SSUBSCRIBE, SPUBLISH). Valkey from 7.2 and "
    "Redis from 7.0 have them, unless a build, `rename-command` or a proxy in front takes them away",
    "OOM": "the server is at `maxmemory` and nothing was written: raise it, or let the workers catch up",
    "NOAUTH": "the server wants another user or password: valkey://user:password@host/0",
    "CROSSSLOT": "on a cluster all keys of one call must share a hash tag: name them {tag}:a and {tag}:b",
    "NOPERM": "this user lacks a right: `ACL SETUSER` must allow scripts and our key prefix",
    "CHANNELS": "this user lacks a right that wake-ups need: `ACL SETUSER <user> +spublish +ssubscribe +sunsubscribe "
    "&penstock:wake:*`",
}

# How the errors of Valkey, and of Redis 7.0, begin if a script used a command or a key to which its user has no right.
_LACKS_RIGHT = ("ACL failure in script", "The user executing the script can't")

# How a server without a command, or without Lua, answers a client. A script that calls an unknown command gets
# "Unknown … command".
_LACKS_COMMAND = ("unknown command", "Could not find scripting engine")

# Pauses between attempts, in seconds: the first, and the longest, to which they double.
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 1.0

# A closed port where no server was reached yet is retried for this many seconds. A server that starts or restarts opens
# its port sooner.
_CLOSED_GIVE_UP_AFTER = 3.0

# A warning is logged when an operation has failed for this many seconds; at most one in that time.
_WARN_AFTER = 1.0

_last_warning = float("-inf")


def error_code(error: BaseException) -> str:
    """The server's error code, `LOST` or `SILENT` for a failed connection, or "" for an error of any other kind."""
    if isinstance(error, PenstockError):
        return ""
    for kind in type(error).__mro__:
        if (code := _CODES.get(kind.__name__)) is not None:
            if code == LOST and error.__cause__ is not None:
                # On a unix socket the asyncio client of valkey-py wraps the error of its handshake in another one.
                return error_code(error.__cause__) or code
            if code == LOST and _errno(error) in _SILENT_ERRNOS:
                return SILENT
            return code
        if kind.__name__ == "ResponseError":
            if any(words in str(error) for words in _LACKS_RIGHT):
                return "NOPERM"
            if any(words in str(error) for words in _LACKS_COMMAND):
                return "UNKNOWN"
            code = str(error).partition(" ")[0]
            return code if code.isupper() else "ERR"
    return ""


def _errno(error: BaseException) -> int | None:
    # The libraries raise their own error while they handle the system's.
    return next((one.errno for one in (error, error.__context__) if isinstance(one, OSError)), None)


def is_error_reply(error: BaseException) -> bool:
    """Whether the error is a reply of the server. Its connection still works and can be used again."""
    return any(kind.__name__ == "ResponseError" for kind in type(error).__mro__)


def is_of_asyncio(error: BaseException) -> bool:
    """Whether asyncio itself has raised the error: its transports raise various errors when a connection is lost."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    return isinstance(error, Exception) and not error_code(error) and module.partition(".")[0] == "asyncio"


def is_timeout(error: BaseException) -> bool:
    """Whether the error says that something took too long."""
    return any(kind.__name__ == "TimeoutError" for kind in type(error).__mro__)


class Attempts:
    """The attempts at one operation. Call `pause_after` with each error: it returns how long to wait, or raises."""

    __slots__ = ("_closed_give_up_after", "_give_up_after", "_is_new", "_since", "failures")

    def __init__(self, give_up_after: float, *, is_new: bool = False, is_single: bool = False) -> None:
        """Retry for `give_up_after` seconds, or for less at a closed port if both of these are true:

        is_new     no server was reached at the address yet, so the address itself may be wrong
        is_single  the address names one server, which no other server can replace
        """
        self._give_up_after = give_up_after
        self._closed_give_up_after = (
            min(give_up_after, _CLOSED_GIVE_UP_AFTER) if is_new and is_single else give_up_after
        )
        self._is_new = is_new
        self._since = 0.0
        self.failures = 0

    def pause_after(self, error: Exception, address: str, call: RoundTrip[Any] | None = None) -> float:
        """Seconds to wait before the next attempt, random, so that the clients of a restarted server spread out.

        Raises a PenstockError where another attempt cannot help, and ServerUnavailable when `give_up_after` seconds
        have passed since the first failure. An error that is not from the server or the network is raised unchanged.
        `call`: what was attempted, for the message.
        """
        raise_if_interrupted(error)
        code = error_code(error)
        if not code:
            raise error
        if code not in _RETRYABLE:
            raise penstock_error(error, code, call) from error
        if code == LOST and (final := final_error(error, address, is_new=self._is_new)) is not None:
            raise final from error
        now = time.monotonic()
        if not self.failures:
            self._since = now
        passed = now - self._since
        give_up_after = self._closed_give_up_after if code == LOST and is_closed(error) else self._give_up_after
        if passed >= give_up_after:
            text = _unavailable(error, code, address, passed)
            # Drop the chain of the library's own attempts: forty lines of traceback that repeat this message.
            error.__context__ = error.__cause__ = None
            raise ServerUnavailable(text) from error
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self.failures, 10)) * random.uniform(0.5, 1.0)
        if passed < _WARN_AFTER <= passed + pause:
            _warn(error, address, now)
        self.failures += 1
        return min(pause, self._since + give_up_after - now)


def _warn(error: Exception, address: str, now: float) -> None:
    """Log one line, however many threads and tasks wait for the same server."""
    global _last_warning  # noqa: PLW0603 - one for the process, as the log is
    if now - _last_warning >= _WARN_AFTER:
        _last_warning = now
        log.warning("no answer from %s for a second, still trying: %s", address, error)


def penstock_error(error: Exception, code: str, call: RoundTrip[Any] | None = None) -> PenstockError:
    """The PenstockError for an error with this code, where another attempt cannot help."""
    hint = _HINTS.get("NOAUTH" if code == "WRONGPASS" else code)
    if call is not None and code in {"NOPERM", "CROSSSLOT", "OOM"}:
        hint = f"in {describe(call)}; {hint}"
    if call is not None and (failed := script_error(call, code, error)) is not None:
        return failed
    return _ERROR_CLASSES.get(code, ServerError)(f"{error} ({hint})" if hint else str(error))


def _unavailable(error: Exception, code: str, address: str, passed: float) -> str:
    if code in UNANSWERED:
        reason = str(error).rstrip(".") or type(error).__name__
        return f"no server answers at {address}, tried for {passed:.1f} s: {reason}. {advice(error, address)}"
    if code in _REFUSES_WRITES:
        return f"the server at {address} refuses writes, tried for {passed:.1f} s: {error} ({_HINTS[code]})"
    return f"the server at {address} is not ready, tried for {passed:.1f} s: {code} {error}"
