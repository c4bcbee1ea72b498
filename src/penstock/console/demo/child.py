"""What the demo's worker process loads: `penstock worker penstock.console.demo.child`."""

from __future__ import annotations

import os
import threading

from penstock.app import Penstock
from penstock.console.demo.tasks import PREFIX, QUEUE, make_tasks


def _end_with_parent() -> None:
    """The parent holds the other end of stdin: when it is gone, however it ended, nobody wants the work."""
    os.read(0, 1)
    os._exit(1)


app = Penstock(prefix=PREFIX)
make_tasks(app, os.environ[QUEUE])
threading.Thread(target=_end_with_parent, name="penstock-demo-parent", daemon=True).start()
