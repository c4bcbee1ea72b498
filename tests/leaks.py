"""The leaks of a test's apps, in a server that only tests use. The audit of `penstock.testing` finds them."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from penstock.testing.audit.instances import audits, missing_from_index
from penstock.testing.audit.stored_keys import StoredKey, read_keys

# Keys of locks, semaphores, mailboxes and chats that do not exist while nothing is held or waited for. Not among them
# are the lists of faces that wait: a face whose listener found something stays there until the next event, or its TTL.
_EMPTY_AT_REST = {
    "holders",
    "waiters",
    "checks",
    "offers",
    "wanting",
    "idle:",
    "present",
    "unproven",
    "asked",
    "leader",
}


def leaks_of_test(nodes: Iterable[Any], prefixes: Iterable[str], *, damaged: bool) -> list[str]:
    """A sentence for each leak. Deletes every key of the servers.

    nodes     a client for each primary
    prefixes  the prefixes of the test's apps
    damaged   True: the test spoilt stored data, so the counters cannot be right, and only the keys are checked
    """
    keys: list[StoredKey] = []
    for client in nodes:
        keys += read_keys(client)
        pipe = client.pipeline(transaction=False)
        for key in client.scan_iter(count=1000):
            pipe.delete(key)
        pipe.execute()
    known = {"", *prefixes}  # the keys beside a lock have no prefix
    ours, found = [], []
    for key in keys:
        if key.instance and key.instance.prefix in known:
            ours.append(key)
        else:
            found.append(f"{key.name}: a key of no app of this test")
    found += chain.from_iterable(key.problems() for key in ours)
    found += [f"{key.name}: the test left its own key" for key in ours if key.rest.startswith("user:")]
    if damaged:
        return found
    found += [f"{key.name}: still in use" for key in ours if key.rest in _EMPTY_AT_REST]
    for audit in audits(ours).values():
        found += [*audit.problems(), *audit.leftovers()]
    return [*found, *missing_from_index(ours)]
