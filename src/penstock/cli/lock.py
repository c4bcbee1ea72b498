"""`penstock lock …`: locks with their owners and waiters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.owners import owner_age, owner_name
from penstock.cli.where import HERE, AsJson, Where
from penstock.locks.answers import LockInfo
from penstock.ops.wording import age
from penstock.terminal.tables import headings, show_list

_COLUMNS = headings("lock:name", "holder:name", "for", "lease", "waiting")


def ls(
    *,
    waiters: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List the locks that are held or waited for, of any app, with host, process and age.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    waiters
        List the waiters too, in order, up to a hundred per lock.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        locks = inspector.coordination.locks()
    lines = (row for lock in locks for row in _rows(lock, waiters=waiters))
    show_list(locks, _COLUMNS, lines, none="No lock is held.", as_json=as_json)


def _rows(lock: LockInfo, *, waiters: bool) -> Iterator[tuple[str, ...]]:
    holder = lock.holder
    left = "" if holder is None else "for ever" if holder.left is None else age(holder.left)
    yield lock.name, owner_name(holder), owner_age(holder), left, f"{lock.waiting:,}"
    if waiters:
        for one in lock.waiters:
            yield "", f"{owner_name(one)} waits", owner_age(one), "", ""
