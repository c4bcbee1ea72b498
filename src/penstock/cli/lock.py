"""`penstock lock …`: locks with their owners and waiters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.exits import Exit
from penstock.cli.owners import owner_age, owner_name
from penstock.cli.where import HERE, AsJson, Where, Yes, confirm
from penstock.errors import ConfigurationError
from penstock.locks.answers import LockInfo
from penstock.ops.wording import age, many
from penstock.terminal.tables import headings, show, show_list

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


def break_(
    *names: str,
    name_prefix: str | None = None,
    host: str | None = None,
    reason: str = "",
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Take locks from their owners, which are notified. Each goes to its first waiter. Exit code 1 if none is held.

    The fence of each lock rises. An owner that hangs and resumes later gets LeaseLost with the reason.

    Parameters
    ----------
    names
        Names of locks.
    name_prefix
        Instead of names: all held locks whose name begins so.
    host
        Instead of names, or together with --name-prefix: all locks whose owner runs on this host.
    reason
        Why, for the owner's log.
    yes
        Do not ask; required unless at a terminal.
    """
    by_search = name_prefix is not None or host is not None
    if bool(names) == by_search:
        raise ConfigurationError("name locks, or select them with --name-prefix or --host, but not both")
    with where.open() as inspector:
        locks = inspector.coordination.held_locks(names, name_prefix=name_prefix, host=host)
        if not locks:
            show("No such lock is held.")
            return Exit.FAILED
        owners = ", ".join(f"{lock.name} of {owner_name(lock.holder)}" for lock in locks[:10])
        more = f" and {len(locks) - 10:,} more" if len(locks) > 10 else ""
        what = many(len(locks), "lock")
        confirm(f"This takes {what} from the owner: {owners}{more}, at {inspector.location}.", yes=yes)
        broken = inspector.coordination.break_locks(locks, reason)
    for lock in broken:
        show(f"{lock.name} taken from {owner_name(lock.holder)}")
    if len(broken) < len(locks):
        show(f"{many(len(locks) - len(broken), 'lock')} had been released meanwhile.")
    return Exit.OK


def _rows(lock: LockInfo, *, waiters: bool) -> Iterator[tuple[str, ...]]:
    holder = lock.holder
    left = "" if holder is None else "for ever" if holder.left is None else age(holder.left)
    yield lock.name, owner_name(holder), owner_age(holder), left, f"{lock.waiting:,}"
    if waiters:
        for one in lock.waiters:
            yield "", f"{owner_name(one)} waits", owner_age(one), "", ""
