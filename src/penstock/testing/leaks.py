"""Did the app leave anything in the server that should not be there?"""

from __future__ import annotations

from itertools import chain

from penstock.app import Penstock
from penstock.core.keys import pattern
from penstock.ops.audit.books import books, entries, lost_members


def leaks(app: Penstock) -> list[str]:
    """One sentence for each thing that does not fit: [] is the good answer.

    Reads back every key of the app's prefix: a key that Penstock does not know or that nothing will ever delete, counts
    that are not those of the jobs, a claim without its job, somebody who is written down as waiting though nobody
    waits. Jobs that wait or died are no leak. Ask when no worker runs and nobody waits, and on a test's server: it
    reads every job. Works in either face.
    """
    found = list(entries(app._driver.connector.blocking_client(), pattern(app.settings.prefix)))
    faults = [*chain.from_iterable(entry.faults() for entry in found)]
    for (_, name), book in books(found).items():
        what = name if ":" in name else f"queue {name}"
        faults += [f"{what}: {fault}" for fault in (*book.faults(), *book.waits())]
    return [*faults, *lost_members(found)]


def assert_no_leaks(app: Penstock) -> None:
    """AssertionError with all that `leaks` found."""
    if found := leaks(app):
        raise AssertionError("left in the server:\n  " + "\n  ".join(found))
