"""`penstock outbox …`, `penstock sql schema`, the doctor and the metrics of an outbox."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import create_engine, text, update

from penstock.integrations.prometheus import OutboxMetrics
from penstock.sql import schema
from tests.command_line import Command, Start
from tests.servers import Server, eventually
from tests.sql.conftest import Database, Shop
from tests.sql.test_relay import leave, turn


def held(shop: Shop, *numbers: int) -> None:
    with shop.engine.begin() as connection:
        table = schema.outbox
        connection.execute(
            update(table).where(table.c.number.in_(numbers)).values(state=schema.HELD, reason="too old: look")
        )


def test_outbox_ls_shows_the_backlog_and_its_age(penstock: Command, away: Shop, database: Database):
    leave(away, 1, 2, tenant="acme")
    held(away, 2)
    code, out, _ = penstock("outbox", "ls", "--database", database[0])
    assert code == 0
    (age,) = re.findall(r"^1 call waits, the oldest for ([0-9.]+) s;", out)
    assert 3 <= float(age) < 60
    assert "1 held" in out
    assert "ship" in out
    assert "acme" in out
    assert "held: too old: look" in out
    code, out, _ = penstock("outbox", "ls", "--database", database[0], "--state", "held", "--json")
    document = json.loads(out)
    assert (document["backlog"]["waiting"], document["backlog"]["held"]) == (1, 1)
    (call,) = document["calls"]
    assert (call["number"], call["state"], call["task"], call["tenant"]) == (2, "held", "ship", "acme")


def test_an_asyncio_driver_serves_the_commands_as_well(penstock: Command, away: Shop, database: Database):
    leave(away, 1)
    code, out, _ = penstock("outbox", "ls", "--database", database[1])
    assert (code, out.splitlines()[0][:13]) == (0, "1 call waits,")


def test_held_calls_are_sent_again_or_deleted(penstock: Command, shop: Shop, away: Shop, database: Database):
    leave(away, 1, 2, 3)
    held(away, 1, 2, 3)
    assert penstock("outbox", "retry", "1", "--database", database[0])[0] == 0
    assert penstock("outbox", "rm", "2", "--database", database[0])[0] == 2  # it asks first
    assert penstock("outbox", "rm", "2", "--yes", "--database", database[0])[0] == 0
    assert penstock("outbox", "rm", "2", "--yes", "--database", database[0])[0] == 1
    assert penstock("outbox", "retry", "--database", database[0])[0] == 2
    assert penstock("outbox", "retry", "--all", "--database", database[0])[0] == 0
    away.make_older(3)
    turn(shop)
    assert shop.orders() == [1, 3]


def test_the_relay_command_sends_what_was_left_and_ends_on_sigterm(
    start: Start, server: Server, away: Shop, database: Database, apps: Any
):
    shop = Shop(apps.make(), away.engine)
    leave(away, 1)
    prefix = shop.app.settings.prefix
    process = start("outbox", "relay", "--database", database[0], "--url", server.address, "--prefix", prefix)
    eventually(lambda: shop.queue.count().ready == 1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "relays the outbox of" in err
    assert "Traceback" not in err
    shop.outbox.close()
    shop.app.close()


def test_a_database_that_cannot_be_used_is_one_clear_error(penstock: Command, tmp_path: Any):
    for address, exit, words in [
        ("nonsense", 2, "give an address of SQLAlchemy"),
        ("mysql://u@h/d", 2, "the outbox works with postgresql and sqlite"),
        (f"sqlite:///{tmp_path}/empty.db", 2, "create them with `penstock sql schema --dialect sqlite`"),
        (f"sqlite:///{tmp_path}/no/such/folder.db", 3, "unable to open database file"),
    ]:
        code, _, err = penstock("outbox", "ls", "--database", address)
        assert (code, words in err) == (exit, True), err
    code, _, err = penstock("outbox", "ls")
    assert code == 2
    assert "name the database: --database" in err


def test_sql_schema_prints_what_creates_the_tables(penstock: Command, database: Database):
    dialect = database[0].partition(":")[0].partition("+")[0]
    code, out, _ = penstock("sql", "schema", "--dialect", dialect)
    assert code == 0
    engine = create_engine(database[0])
    with engine.begin() as connection:
        for statement in out.split(";\n"):
            connection.execute(text(statement.removesuffix(";\n")))
        schema.check(connection)
        schema.create(connection)  # changes nothing
        assert len(connection.execute(schema.schema.select()).all()) == 1
    engine.dispose()


def test_the_doctor_reports_an_outbox_without_a_relay(penstock: Command, away: Shop, database: Database):
    leave(away, 1, 2)
    code, out, _ = penstock("doctor", "outbox", "--database", database[0], "--json")
    assert (code, [one["level"] for one in json.loads(out)["results"]]) == (0, ["ok"])
    away.make_older(3600)
    held(away, 1)
    code, out, _ = penstock("doctor", "outbox", "--database", database[0], "--json")
    results = json.loads(out)["results"]
    assert [one["level"] for one in results] == ["warn", "warn"]
    assert "1 call is held" in results[0]["message"]
    assert "1 call waits, the oldest for 60 min" in results[1]["message"]
    with away.engine.begin() as connection:
        schema.tables.drop_all(connection)
    code, out, _ = penstock("doctor", "outbox", "--database", database[0])
    assert code == 1


def test_metrics_show_what_waits(away: Shop):
    leave(away, 1, 2)
    held(away, 2)
    registry = CollectorRegistry()
    registry.register(OutboxMetrics(away.outbox))
    found = generate_latest(registry).decode()
    assert "penstock_outbox_up 1.0" in found
    assert 'penstock_outbox_calls{state="waiting"} 1.0' in found
    assert 'penstock_outbox_calls{state="held"} 1.0' in found
    (age,) = re.findall(r"^penstock_outbox_oldest_seconds ([0-9.]+)$", found, re.MULTILINE)
    assert 3 <= float(age) < 60
    with away.engine.begin() as connection:
        schema.tables.drop_all(connection)
    assert "penstock_outbox_up 0.0" in generate_latest(registry).decode()
