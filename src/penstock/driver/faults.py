"""Explains a failed connection, or a call that found damaged data: the reason and the remedy.

Another attempt cannot help if a certificate is not trusted, the port speaks another protocol, or a name is unknown.
These errors are raised at once. A closed port is tried again, because its server may be restarting.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from msgspec import MsgspecError

from penstock.core.keys import TABLES, component_of
from penstock.core.operations import RoundTrip
from penstock.core.slots import Node
from penstock.errors import PenstockError, ServerError, ServerRefused, ServerUnavailable, StateDamaged

R = TypeVar("R")

# How a connection ends during a handshake if the server stops. A server that refuses causes other errors.
_ENDS_OF_CONNECTION = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError)

_UNKNOWN_NAME = {getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)}

_CLOSED = {errno.ECONNREFUSED, errno.ENOENT}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from. The client libraries wrap the system's error in their own."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def final_error(error: Exception, address: str, *, is_new: bool) -> PenstockError | None:
    """The error to raise at once for a failed connection; None if another attempt may help.

    is_new  this process has not reached the server yet. Later an unknown name is retried: the server that
            it names may be moving.
    """
    for one in causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return ServerRefused(
                f"the certificate of the server at {address} is not accepted: {one.verify_message}. Add "
                "?ssl_ca_certs=FILE with the authority that has signed it to the address, or name the host as the "
                "certificate does"
            )
        if isinstance(one, ssl.SSLError) and not isinstance(one, _ENDS_OF_CONNECTION):
            return ServerRefused(
                f"the server at {address} and this program cannot agree on TLS: {one.reason or one}. If its port "
                "speaks no TLS, write valkey://; if it wants a certificate of yours, add ssl_certfile=… and "
                "ssl_keyfile=… to the address"
            )
        if is_new and isinstance(one, socket.gaierror) and one.errno in _UNKNOWN_NAME:
            return ServerUnavailable(
                f"the host of {address} has a name that does not resolve: {one.strerror}. Is it right (the "
                "argument, or $PENSTOCK_URL), and does this machine know it?"
            )
    return None


def is_closed(error: Exception) -> bool:
    """Whether nothing listens at the port, or the socket."""
    return any(isinstance(one, OSError) and one.errno in _CLOSED for one in causes(error))


def _is_hung_up(error: Exception) -> bool:
    """Whether the other side has accepted the connection, and closed it."""
    return any(
        isinstance(one, ConnectionResetError | BrokenPipeError | EOFError) or "closed by server" in str(one)
        for one in causes(error)
    )


def advice(error: Exception, address: str) -> str:
    """Advice for an address at which no server has answered for a while."""
    if is_closed(error):
        return (
            "Nothing listens there. Is the server running, and is the address right (the argument, or $PENSTOCK_URL)?"
        )
    uses_tls = address.startswith(("valkeys", "rediss"))
    hint = ""
    if uses_tls:
        hint = " If its port speaks no TLS, write valkey://."
    elif _is_hung_up(error):
        hint = (
            " It closes the connection instead of an answer. If its port wants TLS, write valkeys://. If a proxy "
            "stands in front that knows no scripts, such as twemproxy, use the address of the server itself."
        )
    return f"Is the server running, and is the address right (the argument, or $PENSTOCK_URL)?{hint}"


# --- what the server says about a call, and what it has stored ---

# Where the script failed, which says nothing to a reader: " script: 5f3…, on @user_script:20." and "user_script:20: ".
_PLACE_IN_SCRIPT = re.compile(r" ?script: (?:[0-9a-f]{40})?,? ?on @?user_script:\d+\.?|(?:ERR )?@?user_script:\d+: ")


def describe(call: RoundTrip[Any]) -> str:
    """Which component a script call is about, and which keys it has."""
    if not call.keys:
        return f"the call {call.script.name}"
    keys = " ".join(shown_name(key) for key in call.keys[:3])
    return f"the call {call.script.name} of {component_of(call.keys[0])} (keys {keys}…)"


def shown_name(name: str) -> str:
    """A name or key for an error message, in at most some eighty characters."""
    return name if len(name) <= 80 else f"{name[:80]}…"


# Errors of the server about the text of a script. No stored value can be the cause: the server lacks something that the
# script uses, or the script has a bug.
_FAULT_OF_SCRIPT = re.compile(
    r"nonexistent global|attempt to call |compiling script|readonly table|stack overflow|too many results"
    r"|[Uu]nknown (?:\w+ )?(?:sub)?command|[Ww]rong number of arg"
    r"|not allowed from script|syntax error|Unsupported option"
)


def script_error(call: RoundTrip[Any], code: str, error: Exception) -> ServerError | None:
    """The error for a script that failed in the server while it ran; None if the server refused to run it."""
    if code == "WRONGTYPE":
        return state_damaged(call, error)
    if code != "ERR" or "user_script:" not in str(error):
        return None
    if not _FAULT_OF_SCRIPT.search(str(error)):
        return state_damaged(call, error)
    return ServerError(
        f"the server cannot run {describe(call)}: {_reason(error)}. The stored data is not the cause: either the "
        "server lacks what the script needs, see `penstock doctor server`, or this is a bug; please report it"
    )


def state_damaged(call: RoundTrip[Any], error: Exception, key: str = "") -> StateDamaged:
    """The error for a call that found damaged data. `key`: the one of a wrong type; "": the damage is not proven."""
    base = call.keys[0] if call.keys else ""
    component = component_of(base)
    if key:
        text = (
            f"{component} is damaged: the key {shown_name(key)} holds what Penstock did not write ({_reason(error)}, "
            f"in the call {call.script.name}). Restore it, or delete the keys of {component} and begin again"
        )
    else:
        text = (
            f"{component} may be damaged: a key that begins with {shown_name(base)} has a value that Penstock cannot "
            f"use ({_reason(error)}, in the call {call.script.name}). `penstock doctor keys` shows which keys Penstock "
            "did not write; if there are none, please report this bug"
        )
    return StateDamaged(text, key=key or base)


_TEXT_OF_LUA = re.compile(r"attempt to |bad argument|nil value|(?:number|string|table) expected")


def _reason(error: Exception) -> str:
    if _TEXT_OF_LUA.search(str(error)) and not _FAULT_OF_SCRIPT.search(str(error)):
        return "it is missing, or of another kind"  # the text names variables of the script, and is still in the cause
    return shown_name(_PLACE_IN_SCRIPT.sub("", str(error)) or type(error).__name__)


def read_reply(call: RoundTrip[R], read: Callable[[Any], R], reply: Any) -> R:
    """Call `read` with the reply. Raises StateDamaged if the reply contains what Penstock does not store."""
    try:
        return read(reply)
    except PenstockError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error, MsgspecError) as error:
        raise state_damaged(call, error) from error


async def name_wrong_key(
    exchange: Callable[..., Coroutine[Any, Any, list[Any]]], node: Node | None, call: RoundTrip[Any], error: Exception
) -> Exception:
    """The error itself; or, if a fixed key of the component has the wrong type, an error that names this key.

    exchange  sends commands to the node (see `Face.exchange`)
    """
    if node is None or not str(error).startswith("WRONGTYPE"):
        return error
    wanted: dict[str, str] = {}
    for base, key in zip(call.keys, (*call.keys[1:], ""), strict=True):
        component = component_of(base)
        if base.endswith(":") and component.kind in TABLES:
            wanted |= {base + rest: row[0] for rest, row in TABLES[component.kind].items() if not rest.endswith(":")}
            if component.kind == "lock" and key:
                wanted[key] = "STRING"
    try:
        types = await exchange(node, *(("TYPE", key) for key in wanted))
    except Exception:
        return error
    for (key, kind), found in zip(wanted.items(), types, strict=True):
        if not isinstance(found, Exception) and found.decode() not in {"none", kind.lower()}:
            return state_damaged(call, error, key)
    return error
