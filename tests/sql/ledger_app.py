"""The program of the ledger: an app and its database, for producers and workers that are killed.

python -m tests.sql.ledger_app produce FOLDER FIRST LAST       writes the orders of this range
penstock worker tests.sql.ledger_app:app                       runs their jobs
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from penstock import Penstock, Retry
from penstock.sql import Outbox
from penstock.testing import History
from penstock.testing.history import CallWritten

tables = MetaData()
orders = Table("orders", tables, Column("number", Integer, primary_key=True), Column("job", String(200)))
effects = Table("effects", tables, Column("number", Integer, primary_key=True), Column("job", String(200)))
"""Without a unique column, so that a double shows."""

app = Penstock(os.environ.get("LEDGER_URL", "unix:///nothing.sock"), prefix="ledger")
engine = create_engine(os.environ.get("LEDGER_DATABASE", "sqlite:///nothing.db"), pool_pre_ping=True)
outbox = Outbox(app, engine)


@app.task(queue="orders", retry=Retry(1000, base=0.1, factor=1.2, cap=1.0), result_ttl=3600)
def ship(number: int, job: str) -> None:
    with Session(engine) as session, session.begin(), outbox.once(session) as once:
        if once.first:
            session.execute(insert(effects).values(job=job))


def produce(folder: Path, first: int, last: int) -> None:
    """Write the orders of a range, each in a transaction with its call. Every fifth is rolled back.

    A producer that replaces a killed one begins behind the last order that was asked for.
    """
    history, mark = History(folder), folder / f"producer-{first}"
    begin = int(mark.read_text()) + 1 if mark.exists() else first
    for number in range(begin, last):
        _replace(mark, str(number))
        _order(history, number)
    outbox.close()
    (folder / f"done-{first}").touch()


def _replace(file: Path, text: str) -> None:
    """Write a file so that a kill leaves the old text or the new one: no producer could begin from half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _order(history: History, number: int) -> None:
    job = ""
    try:
        with Session(engine) as session:
            key = f"order-{number}"
            call = ship.using(tenant=f"t{number % 11}", id=key if number % 3 == 0 else None)
            written = outbox.enqueue(session, call.call(number, job=f"n{number}"))
            job = written.id
            session.execute(insert(orders).values(number=number, job=job))
            history.note(CallWritten(job=job, answer="asked"))
            if number % 5 == 0:
                session.rollback()
            else:
                session.commit()
        history.note(CallWritten(job=job, answer="rolled back" if number % 5 == 0 else "committed"))
    except DBAPIError:  # the database was killed: what was asked for may have been committed
        if job:
            history.note(CallWritten(job=job, answer="unknown"))
        with contextlib.suppress(Exception):
            engine.dispose()
        time.sleep(0.2)


def committed() -> dict[str, str]:
    """Job -> the name under which its effect is stored, of all orders in the database."""
    with engine.connect() as connection:
        return {job: f"n{number}" for number, job in connection.execute(select(orders.c.number, orders.c.job))}


if __name__ == "__main__":
    produce(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
