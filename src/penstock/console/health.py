"""`penstock worker --check`: is a worker of this machine alive? For a container's health check."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable

from penstock.app import Penstock
from penstock.console.exits import Exit


def check(app: Penstock, queues: Iterable[str]) -> Exit:
    """One line about each queue; OK if each has a worker here. Raises ServerError."""
    with app:
        found = {name: [who.name for who in app.queue(name).workers() if who.lease > 0] for name in queues}
    here = {name: [who for who in workers if _is_here(who)] for name, workers in found.items()}
    for name, workers in here.items():
        print(f"queue {name}: {', '.join(workers) or 'no worker of this machine is alive'}", file=sys.stderr)
    return Exit.OK if all(here.values()) else Exit.FAILED


def _is_here(worker: str) -> bool:
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
