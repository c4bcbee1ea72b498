"""What the outbox costs: a commit with a call beside a commit and a plain enqueue, and how many rows a relay moves.

    python benchmarks/outbox.py --postgres postgresql+psycopg://user@host/empty --url valkey://host:6379/0 [--n 1000]

It creates tables in the database, which should be empty, and drops them. With procrastinate installed, its `defer` is
measured in the same run. Each round measures all ways one after another, so that they meet the same machine; the
figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select, update
from sqlalchemy.orm import Session

from penstock import Penstock, Worker, WorkerSettings
from penstock.sql import Outbox, create_tables, drop_tables
from penstock.sql.background import ThreadBell, run_in_thread
from penstock.sql.relay import Relay
from penstock.sql.schema import WAITING
from penstock.sql.schema import outbox as rows

tables = MetaData()
orders = Table("bench_orders", tables, Column("number", Integer, primary_key=True))


def commits(app: Penstock, engine: Engine, n: int, procrastinate: Any) -> dict[str, float]:
    """Milliseconds of one commit with its enqueue, as the program sees it: the median of `n`."""

    @app.task(queue="bench")
    def noop(number: int) -> None: ...

    box = Outbox(app, engine)

    def bare() -> None:
        with Session(engine) as session, session.begin():
            session.execute(insert(orders))

    def plain() -> None:
        bare()
        noop.enqueue(1)

    def with_outbox() -> None:
        with Session(engine) as session, session.begin():
            session.execute(insert(orders))
            box.enqueue(session, noop.call(1))

    def deferred() -> None:
        bare()
        procrastinate.defer(number=1)

    ways: dict[str, Callable[[], None]] = {
        "commit": bare,
        "commit, then enqueue": plain,
        "commit with outbox": with_outbox,
    }
    if procrastinate is not None:
        ways["commit, then procrastinate's defer"] = deferred
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(n + 20):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if round_ >= 20:
                times[name].append(time.perf_counter() - began)
    box.close()
    return {name: statistics.median(some) * 1000 for name, some in times.items()}


async def delays(app: Penstock, engine: Engine, n: int) -> dict[str, float]:
    """Milliseconds from the end of the commit, or the begin of the plain enqueue, to the start of the job: medians."""
    started: dict[int, float] = {}
    arrived = asyncio.Event()

    @app.task(queue="delays")
    async def note(number: int) -> None:
        started[number] = time.perf_counter()
        arrived.set()

    box, worker = Outbox(app, engine), Worker(app, WorkerSettings(queues=("delays",)))
    running = asyncio.create_task(worker.run())
    found: dict[str, list[float]] = {"plain enqueue": [], "outbox": []}

    def commit(number: int) -> float:
        with Session(engine) as session, session.begin():
            box.enqueue(session, note.call(number))
        return time.perf_counter()

    def plain(number: int) -> float:
        began = time.perf_counter()
        note.enqueue(number)
        return began

    for number in range(2 * (n + 5)):
        name, way = ("outbox", commit) if number % 2 else ("plain enqueue", plain)
        arrived.clear()
        began = await asyncio.to_thread(way, number)
        await arrived.wait()
        await asyncio.sleep(0.02)
        if number >= 10:
            found[name].append(started[number] - began)
    worker.stop()
    await running
    await box.aclose()
    return {name: statistics.median(some) * 1000 for name, some in found.items()}


def relay_rate(app: Penstock, engine: Engine, n: int) -> float:
    """Rows per second that one relay leases, sends and marks, from a backlog of `n`."""

    @app.task(queue="backlog", name="backlog")
    def noop(number: int) -> None: ...

    box = Outbox(app, engine)
    box._senders.send = lambda written: None  # type: ignore[method-assign]  # as if the process had died
    with Session(engine) as session, session.begin():
        for start in range(0, n, 5000):
            box.enqueue_many(
                session, [noop.using(tenant=f"t{i % 100}").call(i) for i in range(start, min(n, start + 5000))]
            )
        session.execute(update(rows).values(created=0 + rows.c.created - 3000))
    relay, began = Relay(app), time.perf_counter()
    while True:
        run_in_thread(relay._turn(), engine, ThreadBell())
        with engine.connect() as connection:
            if not connection.execute(select(func.count()).where(rows.c.state == WAITING)).scalar():
                break
    return n / (time.perf_counter() - began)


def open_procrastinate(address: str) -> Any:
    """Procrastinate's task on the same database; None if it is not installed."""
    try:
        import procrastinate
    except ImportError:
        return None
    dsn = address.replace("+psycopg", "")
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=dsn))
    app.open()
    app.schema_manager.apply_schema()

    @app.task(queue="bench")
    def noop(number: int) -> None: ...

    return noop


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--postgres", required=True)
    words.add_argument("--url", required=True)
    words.add_argument("--n", type=int, default=1000)
    words.add_argument("--backlog", type=int, default=20_000)
    given = words.parse_args()
    engine = create_engine(given.postgres)
    with engine.begin() as connection:
        create_tables(connection)
        tables.create_all(connection)
    app = Penstock(given.url, prefix="bench-outbox")
    for name, ms in commits(app, engine, given.n, open_procrastinate(given.postgres)).items():
        print(f"{name:40} {ms:8.3f} ms")
    for name, ms in asyncio.run(delays(app, engine, min(given.n, 300))).items():
        print(f"delay to the start, {name:20} {ms:8.3f} ms")
    print(f"relay                                    {relay_rate(app, engine, given.backlog):8.0f} rows/s")
    app.queue("bench").purge()
    app.queue("backlog").purge()
    with engine.begin() as connection:
        drop_tables(connection)
        tables.drop_all(connection)
    engine.dispose()
    app.close()


if __name__ == "__main__":
    main()
