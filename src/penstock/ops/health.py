"""Finds the workers that are alive on this machine, for `penstock worker --check`, the health check of a container."""

from __future__ import annotations

import socket

from penstock.app import Penstock
from penstock.core.ids import is_gone
from penstock.core.operations import Operation
from penstock.worker.processes import process_state

_PER_ROUND_TRIP = 500


def workers_here(app: Penstock, queue: str) -> Operation[list[str]]:
    """The workers of a queue that run on this machine, as `host:pid`, sorted.

    A worker counts if it has a lease and its process can run, so neither a stopped process nor a zombie counts. One
    round trip for each 500 programs that hold a lease on jobs of the queue.
    """
    found: set[str] = set()
    cursor = "0"
    while True:
        cursor, some = yield app.queue(queue).first.bindings.scan_workers(cursor, _PER_ROUND_TRIP)
        found |= {worker.name for worker in some if worker.lease > 0}
        if cursor == "0":
            return sorted(name for name in found if _runs_here(name))


def _runs_here(worker: str) -> bool:
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname() or is_gone(int(pid)):
        return False
    state = process_state(int(pid))
    return state is None or state.can_run
