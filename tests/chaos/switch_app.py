"""The app of the planned fail-overs: `penstock worker tests.chaos.switch_app:app`.

A job stages that it is done, so a completion counts once whatever happens to the run.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from penstock import Penstock, Settings, current


def register(app: Penstock, queue: str) -> Any:
    """The task, for the worker and for the test's own process. It returns its number."""
    done = app.queue(queue).key("done")

    @app.task(queue=queue, name="note")
    async def note(n: int) -> int:
        await asyncio.sleep(0.002)
        current().stage.hincrby(done, str(n))
        return n

    return note


app = Penstock(
    os.environ.get("SWITCH_URL", "unix:///nowhere"),
    prefix=os.environ.get("SWITCH_PREFIX", "switch"),
    settings=Settings(lease=3, give_up_after=60),
)
note = register(app, os.environ.get("SWITCH_QUEUE", "switch"))
