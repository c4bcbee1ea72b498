"""The app that the bench's worker processes load: `penstock worker penstock.bench.child`."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.bench.tasks import make_tasks

app = Penstock()
make_tasks(app)
