"""What the apps of a test left in a server that only tests use: nothing but what `console/audit.py` finds in order."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from penstock.ops.audit.books import Entry, books, entries, lost_members

# Of locks, semaphores, mailboxes and chats: empty, and so not there, when nobody holds or waits.
_EMPTY = {"holders", "line", "looks", "offers", "waiting", "wanting"}


def faults(nodes: Iterable[Any], prefixes: Iterable[str], *, damaged: bool) -> list[str]:
    """One sentence for each thing that should not be there. `nodes`: a client for each primary. Deletes what it saw.
    `damaged`: the test spoilt what is stored, so the books cannot balance; only the keys are looked at.
    """
    found: list[Entry] = []
    for client in nodes:
        found += entries(client)
        pipe = client.pipeline(transaction=False)
        for key in client.scan_iter(count=1000):
            pipe.delete(key)
        pipe.execute()
    known = {"", *prefixes}  # what is beside a lock has no prefix
    ours, told = [], []
    for entry in found:
        if entry.home and entry.home[0] in known:
            ours.append(entry)
        else:
            told.append(f"{entry.key}: a key of no app of this test")
    told += chain.from_iterable(entry.faults() for entry in ours)
    told += [f"{entry.key}: the test left its own key" for entry in ours if entry.suffix.startswith("user:")]
    if not damaged:
        told += [f"{entry.key}: somebody is left in it" for entry in ours if entry.suffix in _EMPTY]
        told += lost_members(ours)
    for book in () if damaged else books(ours).values():
        told += [*book.faults(), *book.waits()]
    return told
