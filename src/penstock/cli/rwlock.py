"""`penstock rwlock …`: read-write locks with their writers, readers and waiters."""

from __future__ import annotations

from penstock.cli.owners import owner_age, owner_name
from penstock.cli.where import HERE, AsJson, Where
from penstock.locks.answers import Owner, ReadWriteLockInfo
from penstock.ops.wording import age
from penstock.terminal.tables import Kind, show, show_facts, show_json, show_list, show_table

_COLUMNS: dict[str, Kind] = {"lock": "name", "writer": "name", "readers": "number", "waiting": "number"}


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the read-write locks that are held: the writer, or how many read, and how many wait.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        locks = inspector.read_write_locks()
    show_list(locks, _COLUMNS, map(_row, locks), none="No read-write lock is held.", as_json=as_json)


def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one read-write lock that is held: the writer or the readers, and the waiters in order.

    Parameters
    ----------
    name
        The read-write lock.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        lock = inspector.read_write_lock(name)
    if as_json:
        return show_json(lock)
    fence = "none within the last hour" if lock.fence is None else lock.fence
    show_facts(
        {
            "lock": lock.name,
            "writer": owner_name(lock.writer),
            "readers": f"{lock.reading:,}",
            "waiting": f"{lock.waiting:,}",
            "last fence": fence,
        }
    )
    lines = [(owner_name(one), what, owner_age(one), _lease(one)) for what, one in _processes(lock)]
    if lines:
        show("")
        show_table({"process": "name", "what": "text", "waits for": "number", "lease": "number"}, lines)
    return None


def _processes(lock: ReadWriteLockInfo) -> list[tuple[str, Owner]]:
    writers = [("writes", lock.writer)] if lock.writer is not None else []
    waiters = [
        ("waits to write" if writes else "waits to read", one)
        for one, writes in zip(lock.waiters, lock.waits_to_write, strict=True)
    ]
    return [*writers, *(("reads", one) for one in lock.readers), *waiters]


def _lease(one: Owner) -> str:
    return "" if one.left is None else age(one.left)


def _row(one: ReadWriteLockInfo) -> tuple[str, ...]:
    return one.name, owner_name(one.writer), f"{one.reading:,}", f"{one.waiting:,}"
