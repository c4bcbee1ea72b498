"""Finds what an app should not have left in the server."""

from __future__ import annotations

from itertools import chain

from penstock.app import Penstock
from penstock.core.keys import key_pattern
from penstock.testing.audit.instances import audits, missing_from_index
from penstock.testing.audit.stored_keys import read_keys


def leaks(app: Penstock) -> list[str]:
    """A sentence for each thing that should not be in the server; [] if all is well.

    Reads back every key under the app's prefix and finds:

    - keys that Penstock does not write, or that nothing will ever delete
    - counters that differ from what they count
    - claims without a job
    - workers, sleepers and waiters that are registered although nothing runs

    Waiting jobs and dead letters are not leaks. Call it while no worker runs and no call of Penstock is blocked. Use a
    test server, because it reads every job. Works in blocking code and inside a running event loop.
    """
    keys = list(read_keys(app._driver.connector.blocking_client(), key_pattern(app.settings.prefix)))
    found = [*chain.from_iterable(key.problems() for key in keys)]
    for (_, name), audit in audits(keys).items():
        instance = name if ":" in name else f"queue {name}"
        found += [f"{instance}: {problem}" for problem in (*audit.problems(), *audit.leftovers())]
    return [*found, *missing_from_index(keys)]


def assert_no_leaks(app: Penstock) -> None:
    """Raises AssertionError with everything that `leaks` found."""
    if found := leaks(app):
        raise AssertionError("left in the server:\n  " + "\n  ".join(found))
