"""A ledger of orders while producers, relays, workers and both servers are killed: none is lost, none is doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select

from penstock import Penstock
from penstock.sql import create_tables
from penstock.testing import History, outbox_violations
from penstock.testing.history import CallStored, CallWritten, EffectFound, FinalState, read
from tests.leftovers import tree
from tests.servers import Server
from tests.speed import Deadline
from tests.sql import ledger_app
from tests.sql.postgres import PROGRAMS, Postgres

ORDERS = int(os.environ.get("PENSTOCK_ORDERS", "2000" if PROGRAMS else "200"))
PRODUCERS = 2
SEED = int(os.environ.get("PENSTOCK_STORM_SEED") or 7)


class Programs:
    """Programs that are started again when they were killed."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self.running: dict[str, tuple[list[str], subprocess.Popen[bytes]]] = {}

    def start(self, name: str, *command: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=self._environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running[name] = [*command], process

    def kill(self, name: str) -> None:
        """Kill a program with the processes that it has started: those of a worker would finish their jobs first."""
        _, process = self.running[name]
        for pid in tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def shock(self, name: str) -> None:
        command, process = self.running[name]
        if process.poll() is None:
            self.kill(name)
            self.start(name, *command)

    def tend(self) -> None:
        """Start what has ended by itself, such as a relay that met a database in recovery."""
        for name, (command, process) in list(self.running.items()):
            if process.poll() not in {None, 0}:
                self.start(name, *command)

    def close(self) -> None:
        for name in self.running:
            self.kill(name)


@contextlib.contextmanager
def database(tmp_path: Path) -> Iterator[tuple[str, Postgres | None]]:
    if PROGRAMS:
        with Postgres(durable=True) as postgres:
            yield postgres.url(postgres.create()), postgres
    else:
        yield f"sqlite:///{tmp_path}/shop.db?timeout=30", None


def test_every_committed_order_has_one_job_and_one_effect_whatever_is_killed(tmp_path: Path):
    draw, folder = random.Random(SEED), tmp_path / "history"
    folder.mkdir()
    with Server("--appendonly", "yes", "--appendfsync", "everysec") as server, database(tmp_path) as (url, postgres):
        engine = create_engine(url, pool_pre_ping=True)
        with engine.begin() as connection:
            create_tables(connection)
            ledger_app.tables.create_all(connection)
        programs = Programs(os.environ | {"LEDGER_URL": server.address, "LEDGER_DATABASE": url})
        with contextlib.closing(programs), contextlib.closing(Penstock(server.address, prefix="ledger")) as app:
            share = ORDERS // PRODUCERS
            for n in range(PRODUCERS):
                programs.start(
                    f"producer-{n}",
                    "tests.sql.ledger_app",
                    "produce",
                    str(folder),
                    str(n * share),
                    str((n + 1) * share),
                )
            for n in range(2):
                programs.start(
                    f"relay-{n}", "penstock", "outbox", "relay", "--database", url, "--app", "tests.sql.ledger_app:app"
                )
                programs.start(f"worker-{n}", "penstock", "worker", "tests.sql.ledger_app:app", "-c", "5")
            shocks, deadline = storm(draw, programs, server, postgres, folder), Deadline(120 + ORDERS / 10)
            while not is_done(engine, folder):
                assert not deadline.passed(), f"not done after {shocks} shocks: {left(engine, app, folder)}"
                programs.tend()
                time.sleep(0.3)
            judge(engine, app, folder)
            assert {"producer", "relay", "worker", "server"} <= set(shocks)
        engine.dispose()


def storm(
    draw: random.Random, programs: Programs, server: Server, postgres: Postgres | None, folder: Path
) -> Counter[str]:
    """Kill something again and again, until the producers are done and everything was killed."""
    shocks = Counter[str]()
    until = time.monotonic() + 10 + ORDERS / 100
    wanted = {"producer", "relay", "worker", "server", *(["database"] if postgres else [])}
    while time.monotonic() < until or not wanted <= set(shocks):
        time.sleep(draw.uniform(0.3, 1.2))
        what = draw.choice(["producer", "producer", "relay", "worker", "worker", "server", "database"])
        if what == "server":
            server.restart(away=draw.choice([0, 0, 1.5]))
        elif what == "database":
            if postgres is None:
                continue
            postgres.kill()
            postgres.start()
        else:
            programs.shock(f"{what}-{draw.randrange(2)}")
        shocks[what] += 1
        programs.tend()
        if len(list(folder.glob("done-*"))) == PRODUCERS and wanted <= set(shocks):
            break
    return shocks


def is_done(engine: Any, folder: Path) -> bool:
    """All producers have ended, and each order in the database has its effect."""
    if len(list(folder.glob("done-*"))) < PRODUCERS:
        return False
    with contextlib.suppress(Exception), engine.connect() as connection:
        wanted = {f"n{number}" for number in connection.execute(select(ledger_app.orders.c.number)).scalars()}
        outbox_is_empty = connection.exec_driver_sql("select count(*) from penstock_outbox").scalar() == 0
        return outbox_is_empty and wanted <= set(connection.execute(select(ledger_app.effects.c.job)).scalars())
    return False


def left(engine: Any, app: Penstock, folder: Path) -> str:
    ended = sorted(one.name for one in folder.glob("done-*"))
    with engine.connect() as connection:
        states = connection.exec_driver_sql("select state, count(*) from penstock_outbox group by state").all()
        n = connection.exec_driver_sql("select count(*) from effects").scalar()
        reasons = connection.exec_driver_sql("select distinct reason from penstock_outbox").all()
    return f"producers {ended}, outbox {states} {reasons}, {n} effects, {app.queue('orders').count()}"


def judge(engine: Any, app: Penstock, folder: Path) -> None:
    """Add what is in the database and in the queue to the history, and check it."""
    history = History(folder)
    with engine.connect() as connection:
        numbers = {
            f"n{number}": job
            for number, job in connection.execute(select(ledger_app.orders.c.number, ledger_app.orders.c.job))
        }
        found = Counter(connection.execute(select(ledger_app.effects.c.job)).scalars())
    deadline = Deadline(60)
    while (counts := app.queue("orders").count()).ready + counts.running + counts.delayed and not deadline.passed():
        time.sleep(0.2)
    written = {event.job for event in read(folder) if isinstance(event, CallWritten)}
    for job in numbers.values():
        history.note(CallStored(job=job))
    for name, times in found.items():
        history.note(EffectFound(job=numbers.get(name, f"orders:{name}"), times=times))
    for job in written | set(numbers.values()):
        state = app.job(job).status()
        if state != "unknown":
            history.note(FinalState(job=job, state=state.value))  # type: ignore[arg-type]
    assert len(numbers) >= ORDERS // 2, "most orders were committed"
    assert app.queue("orders").count().dead == 0
    assert outbox_violations(read(folder)) == []
