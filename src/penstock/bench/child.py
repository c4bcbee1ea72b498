"""What a worker process of the bench loads: `penstock worker penstock.bench.child`."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.bench.tasks import make_tasks

app = Penstock()
make_tasks(app)
