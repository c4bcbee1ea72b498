"""Examines a server at the first connection: whether Penstock can work with it, and which data it may lose.

`penstock doctor` examines more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.core.keys import WAKE_CHANNELS
from penstock.core.server_release import ServerRelease, supported_releases
from penstock.driver.retrying import error_code, penstock_error
from penstock.errors import ServerTooOld

Version: TypeAlias = tuple[str, tuple[int, ...]]

_INFO = ("server", "memory", "persistence")

TRY_CHANNELS: tuple[tuple[str, ...], ...] = (
    ("SPUBLISH", WAKE_CHANNELS + "published", ""),
    ("SSUBSCRIBE", WAKE_CHANNELS + "subscribed"),
    ("SUNSUBSCRIBE", WAKE_CHANNELS + "subscribed"),
)
"""Sent once per process, so that a user without the rights to these gets an error at the start, and not in a wait.

SPUBLISH goes to a channel without subscribers, because another process would take the message for a reply.
"""

FIRST_COMMANDS = (*(("INFO", section) for section in _INFO), *TRY_CHANNELS)
"""Sent together. Each section of INFO is a command of its own, because servers before Redis 7.0 take only one."""

log = logging.getLogger("penstock")


def check_server(replies: Sequence[Any], address: str) -> Version:
    """The version of the server, from the replies to FIRST_COMMANDS; `unknown` where this user may not send INFO.

    Raises ServerTooOld; ServerRefused for a command or a right that is missing; and the error of the connection. Logs a
    warning about a server that deletes jobs when it is full, and a line about one without an append-only file.
    """
    server, memory, persistence = replies[: len(_INFO)]
    if isinstance(server, Exception) and error_code(server) != "NOPERM":
        raise penstock_error(server, "UNKNOWN") if error_code(server) == "ERR" else server
    version = _version(_fields(server), address)
    for reply in replies[len(_INFO) :]:
        code = error_code(reply) if isinstance(reply, Exception) else ""
        if code in {"NOPERM", "UNKNOWN", "ERR"}:  # a proxy may refuse a command in its own words
            raise penstock_error(reply, "CHANNELS" if code == "NOPERM" else "UNKNOWN")
    policy = _fields(memory).get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and _fields(memory).get("maxmemory", "0") != "0":
        log.warning(
            "the server at %s has a maxmemory, and maxmemory-policy %s: when it is full, it deletes jobs and locks. "
            "`CONFIG SET maxmemory-policy noeviction` makes it refuse new work instead",
            address,
            policy,
        )
    if _fields(persistence).get("aof_enabled") == "0":
        log.info("the server at %s has no append-only file: a crash takes what came after its last snapshot", address)
    return version


def _version(info: dict[str, str], address: str) -> Version:
    if not info:  # this user may not ask, so it is assumed to be new enough
        return "unknown", ()
    name = "valkey" if "valkey_version" in info else "redis"
    text = info.get(f"{name}_version", "0")
    version = tuple(int(part) for part in text.split(".") if part.isdigit())
    if not ServerRelease(name, version).is_supported:
        raise ServerTooOld(f"{address} is {name.title()} {text}: Penstock needs {supported_releases()}")
    return name, version


def _fields(info: bytes | Exception) -> dict[str, str]:
    """The fields of a reply to INFO; {} for an error."""
    lines = [] if isinstance(info, Exception) else info.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
