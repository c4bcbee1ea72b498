"""`penstock worker --check`: is a worker of this machine alive? For a container's health check."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable

from penstock.app import Penstock
from penstock.core.ids import is_gone
from penstock.core.operations import Operation
from penstock.worker.processes import process_state


def check(app: Penstock, queues: Iterable[str]) -> bool:
    """One line about each queue; True if each has a worker here. Raises ServerError."""
    with app:
        found = {name: app._driver.blocking.run(_alive(app, name)) for name in queues}
    here = {name: [who for who in sorted(workers) if _is_here(who)] for name, workers in found.items()}
    for name, workers in here.items():
        print(f"queue {name}: {', '.join(workers) or 'no worker of this machine is alive'}", file=sys.stderr)
    return all(here.values())


def _alive(app: Penstock, queue: str) -> Operation[set[str]]:
    """The workers with a lease, however many programs without a worker hold jobs. A round trip for each 500 of them."""
    cursor, names = "0", set()
    while True:
        cursor, some = yield app.queue(queue).bindings.scan_workers(cursor, 500)
        names |= {who.name for who in some if who.lease > 0}
        if cursor == "0":
            return names


def _is_here(worker: str) -> bool:
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname() or is_gone(int(pid)):
        return False
    state = process_state(int(pid))
    return state is None or state.can_run
