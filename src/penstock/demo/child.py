"""The app that the demo's worker processes load: `penstock worker penstock.demo.child`."""

from __future__ import annotations

import os

from penstock.app import Penstock
from penstock.demo.tasks import PREFIX, QUEUE, make_tasks

app = Penstock(prefix=PREFIX)
make_tasks(app, os.environ[QUEUE])
