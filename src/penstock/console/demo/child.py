"""What the demo's worker process loads: `penstock worker penstock.console.demo.child`."""

from __future__ import annotations

import os

from penstock.app import Penstock
from penstock.console.demo.tasks import PREFIX, QUEUE, make_tasks
from penstock.console.temporary import end_with_parent

app = Penstock(prefix=PREFIX)
make_tasks(app, os.environ[QUEUE])
end_with_parent()
