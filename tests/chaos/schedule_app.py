"""The two releases of the storm of schedules. Each job counts itself in a ledger, in the script that completes it."""

from __future__ import annotations

import asyncio
import os

from penstock import Penstock, Settings, Task, current

QUEUE = "q"


def make_app(address: str, *, newer: bool) -> tuple[Penstock, Task[[], None], Task[[], None]]:
    """The app of a release, a task for plain jobs, and one for the schedules that are added at run time."""
    app = Penstock(address, prefix="ticks", settings=Settings(lease=1, sleep=1))
    ledger = app.queue(QUEUE).key("ledger")

    async def record() -> None:
        current().stage.hincrby(ledger, current().id.partition(":")[2])

    app.task(queue=QUEUE, name="declared", every=1, missed="all")(record)
    app.task(queue=QUEUE, name="changed", every=1 if newer else 2, missed="all")(record)
    # The older release has the task without the schedule. A job of an unknown task would wait for another attempt.
    app.task(queue=QUEUE, name="extra", every=1 if newer else None, missed="skip" if newer else "one")(record)

    @app.task(queue=QUEUE)
    async def plain() -> None:
        await asyncio.sleep(0.01)
        await record()

    return app, plain, app.task(queue=QUEUE, name="added")(record)


url = os.environ.get("STORM_URL", "unix:///nowhere")
older, newer = make_app(url, newer=False)[0], make_app(url, newer=True)[0]
