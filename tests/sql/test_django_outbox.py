"""The outbox and the inbox in transactions of Django, in a program of its own with a database of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from sqlalchemy import make_url

from penstock.cli import main
from tests.servers import Server
from tests.speed import scaled
from tests.sql.conftest import Database

START = """
import os, sys, time
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="no", USE_TZ=True, TIME_ZONE="UTC",
    DATABASES={"default": DATABASE},
    INSTALLED_APPS=["penstock.integrations.django_outbox"],
    TASKS={"default": {
        "BACKEND": "penstock.integrations.django.PenstockBackend",
        "OPTIONS": {"URL": os.environ["SHOP_URL"], "PREFIX": os.environ["SHOP_PREFIX"], "OUTBOX": True},
    }},
)
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from penstock import ConfigurationError
from penstock.integrations.django import app_of
from penstock.integrations.django_outbox import DjangoOutbox
from penstock.sql import delivery
from penstock.testing import run_jobs
from tests.servers import eventually

call_command("migrate", verbosity=0)
app = app_of()
outbox, queue = DjangoOutbox(app), app.queue("orders")

@app.task(queue="orders")
def ship(order: int) -> int:
    return order

def rows():
    with connection.cursor() as cursor:
        cursor.execute("select state from penstock_outbox order by number")
        return [state for (state,) in cursor.fetchall()]

"""


def django_database(address: str) -> dict[str, Any]:
    url = make_url(address)
    if url.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username,
        "HOST": url.query["host"],
    }


class Django:
    def __init__(self, server: Server, database: Database, prefix: str) -> None:
        self._start = START.replace("DATABASE}", f"{django_database(database[0])!r}}}", 1)
        self._environment = os.environ | {"SHOP_URL": server.address, "SHOP_PREFIX": prefix}

    def run(self, code: str) -> None:
        """Run code in a project of Django; it fails the test if it raises."""
        body = "try:\n" + indent(dedent(code).strip(), "    ") + "\nfinally:\n    outbox.close()\n    app.close()\n"
        done = subprocess.run(
            [sys.executable, "-c", self._start + body],
            env=self._environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=scaled(90),
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def project(server: Server, database: Database, tmp_path: Path) -> Django:
    return Django(server, database, f"django-{tmp_path.name[-20:]}".replace("_", "-"))


def test_a_call_is_enqueued_if_the_transaction_commits(project: Django):
    project.run("""
    with transaction.atomic():
        job = outbox.enqueue(ship.call(1))
        try:
            with transaction.atomic():
                outbox.enqueue(ship.call(2))
                raise KeyError
        except KeyError:
            pass
        many = outbox.enqueue_many(ship.call(n) for n in (3, 4))
        assert queue.count().ready == 0
    try:
        with transaction.atomic():
            outbox.enqueue(ship.call(5))
            raise KeyError
    except KeyError:
        pass
    eventually(lambda: queue.count().ready == 3)
    assert [item.body[1]["order"] for item in queue.claim(10)] == [1, 3, 4]
    eventually(lambda: rows() == [2, 2, 2])
    try:
        outbox.enqueue(ship.call(6))
    except ConfigurationError as error:
        assert "is not in a transaction" in str(error)
    else:
        raise AssertionError
    """)


def test_the_relay_sends_what_a_process_of_django_left_behind(
    project: Django, server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
):
    project.run("""
    outbox._senders = type("Nobody", (), {"send": lambda self, rows: None, "close": lambda self: None})()
    with transaction.atomic():
        outbox.enqueue(ship.using(tenant="acme").call(1))
    assert rows() == [0]
    """)
    assert main(["outbox", "ls", "--database", database[0]]) == 0


def test_tasks_of_django_go_through_the_outbox(project: Django):
    project.run("""
    import importlib.util
    tasks = importlib.import_module("django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks")
    sys.modules["shop"] = module = type(sys)("shop")

    def greet(name):
        return f"hi {name}"
    greet.__module__, greet.__qualname__ = "shop", "greet"
    module.greet = greet = tasks.task(greet)
    with transaction.atomic():
        result = greet.enqueue("ada")
        assert rows() == [0]
    eventually(lambda: app.queue("default").count().ready == 1)
    run_jobs(app)
    result.refresh()
    assert result.return_value == "hi ada"
    """)


def test_an_effect_happens_once(project: Django):
    project.run("""
    from penstock import Retry
    with connection.cursor() as cursor:
        cursor.execute("create table effects (number integer)")
    seen = []

    @app.task(queue="orders", retry=Retry(3, base=0.001))
    def pay(order: int) -> str:
        with transaction.atomic(), outbox.once() as once:
            seen.append((once.first, once.result))
            if once.first:
                with connection.cursor() as cursor:
                    cursor.execute("insert into effects values (%s)", [order])
                once.result = "paid"
            if len(seen) == 1:
                raise OSError("before the commit")
        if len(seen) == 2:
            raise OSError("after the commit")
        connection.close()
        return once.result

    job = pay.enqueue(7)
    while queue.count().waiting:
        run_jobs(app)
    assert job.result(timeout=5) == "paid"
    assert seen == [(True, None), (True, None), (False, "paid")]
    with connection.cursor() as cursor:
        cursor.execute("select number from effects")
        assert cursor.fetchall() == [(7,)]
    """)
