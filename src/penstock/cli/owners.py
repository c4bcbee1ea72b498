"""How commands name the processes that hold something or wait for it, and the user who types them."""

from __future__ import annotations

import getpass
import socket

from penstock.locks.answers import Owner
from penstock.ops.wording import age


def user_name() -> str:
    """`user@host` of the person at this terminal."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        name = "somebody"
    return f"{name}@{socket.gethostname()}"[:100]


def owner_name(one: Owner | None) -> str:
    """`host:pid`."""
    if one is None:
        return "nobody"
    return f"{one.host}:{one.pid}" if one.host else "another library"


def owner_age(one: Owner | None) -> str:
    """For how long it has held or waited; "" if the server does not know."""
    return "" if one is None or one.age is None else age(one.age)
