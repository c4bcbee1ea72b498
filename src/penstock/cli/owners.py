"""How commands name the processes that hold something or wait for it."""

from __future__ import annotations

from penstock.locks.answers import Owner
from penstock.ops.wording import age


def owner_name(one: Owner | None) -> str:
    """`host:pid`."""
    if one is None:
        return "nobody"
    return f"{one.host}:{one.pid}" if one.host else "another library"


def owner_age(one: Owner | None) -> str:
    """For how long it has held or waited; "" if the server does not know."""
    return "" if one is None or one.age is None else age(one.age)
