"""The outbox: what a transaction enqueues if it commits, and never if it does not."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from penstock import BadCall, ConfigurationError, EnqueueContext, JobDraft, Middleware, Penstock, Unique
from penstock.sql import Outbox, schema
from tests.conftest import Apps, until
from tests.seals import MARKER, TestSeal
from tests.servers import eventually
from tests.sql.conftest import Shop


def test_a_call_is_enqueued_when_the_transaction_commits(shop: Shop):
    with shop.session() as session, session.begin():
        job = shop.outbox.enqueue(session, shop.ship.call(7))
        assert job.id.startswith("orders:")
        assert job.status() == "unknown"
    eventually(lambda: job.status() == "ready")
    assert shop.orders() == [7]


def test_a_call_is_not_enqueued_when_the_transaction_is_rolled_back(shop: Shop):
    with shop.session() as session:
        shop.outbox.enqueue(session, shop.ship.call(1))
        session.rollback()
        shop.outbox.enqueue(session, shop.ship.call(2))
        session.commit()
    eventually(lambda: shop.queue.count().ready)
    assert shop.orders() == [2]


def test_a_savepoint_that_is_rolled_back_takes_its_calls_along(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
        with session.begin_nested() as savepoint:
            shop.outbox.enqueue(session, shop.ship.call(2))
            savepoint.rollback()
        with session.begin_nested():
            shop.outbox.enqueue(session, shop.ship.call(3))
        assert shop.queue.count().ready == 0
    eventually(lambda: shop.queue.count().ready == 2)
    assert shop.orders() == [1, 3]


def test_a_savepoint_in_plain_sql_takes_its_calls_along(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
        session.execute(text("SAVEPOINT mine"))
        shop.outbox.enqueue(session, shop.ship.call(2))
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
    eventually(lambda: shop.queue.count().ready)
    assert shop.orders() == [1]


def test_a_transaction_around_the_session_decides(shop: Shop):
    with shop.engine.connect() as connection:
        outer = connection.begin()
        connection.execute(update(schema.schema).values(beat=0))  # SQLite begins here
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            shop.outbox.enqueue(session, shop.ship.call(1))
            session.commit()
        outer.rollback()
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(2))
    eventually(lambda: shop.queue.count().ready)
    assert shop.orders() == [2]


def test_a_transaction_that_takes_long_is_sent_at_once_all_the_same(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
        session.execute(update(schema.outbox).values(created=schema.outbox.c.created - 60_000))
    eventually(lambda: shop.queue.count().ready)
    assert shop.orders() == [1]


def test_a_connection_that_is_lost_before_the_commit_enqueues_nothing(shop: Shop):
    if shop.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no connection to lose")
    with shop.session() as session:
        shop.outbox.enqueue(session, shop.ship.call(1))
        pid = session.execute(text("select pg_backend_pid()")).scalar()
        with shop.engine.connect() as other:
            other.execute(text(f"select pg_terminate_backend({pid})"))
        with pytest.raises(OperationalError):
            session.commit()
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(2))
    eventually(lambda: shop.queue.count().ready)
    assert shop.orders() == [2]


async def test_a_session_of_asyncio_enqueues_as_a_blocking_one_does(app: Penstock, async_engine: AsyncEngine):
    outbox, queue = Outbox(app, async_engine), app.queue("orders")

    @app.task(queue="orders")
    async def ship(order: int) -> None: ...

    async with AsyncSession(async_engine) as session:
        await outbox.enqueue.aio(session, ship.call(1))
        await session.rollback()
        job = await outbox.enqueue.aio(session, ship.call(2))
        jobs = await outbox.enqueue_many.aio(session, [ship.call(3), ship.call(4)])
        await session.commit()
    while (await queue.count.aio()).ready < 3:
        await until(lambda: True)
    assert await job.status.aio() == "ready"
    assert [await one.status.aio() for one in jobs] == ["ready", "ready"]
    await outbox.aclose()


def test_many_calls_are_one_insert_and_keep_their_order(shop: Shop):
    with shop.session() as session, session.begin():
        jobs = shop.outbox.enqueue_many(session, (shop.ship.call(n) for n in range(700)))
        assert shop.outbox.enqueue_many(session, []) == []
    assert len({job.id for job in jobs}) == 700
    eventually(lambda: shop.queue.count().ready == 700)
    assert shop.orders() == list(range(700))


def test_a_sealed_call_is_sealed_in_the_database_too(apps: Apps, engine: Engine):
    shop = Shop(apps.make(seal=TestSeal("k1")), engine)

    @shop.app.task(queue="orders")
    def mail(text: str) -> None: ...

    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, mail.call(MARKER))
        record = session.execute(select(schema.outbox.c.record)).scalar_one()
        assert MARKER.encode() not in record
    eventually(lambda: shop.queue.count().ready)
    (item,) = shop.queue.claim()
    assert item.body == ["mail", {"text": MARKER}]
    item.complete()
    shop.outbox.close()
    shop.app.close()


def test_the_options_of_a_call_travel_with_it(shop: Shop):
    with shop.session() as session, session.begin():
        call = shop.ship.using(tenant="acme", priority=1, delay=60, id="order-1").call(1)
        job = shop.outbox.enqueue(session, call)
    assert job.id == "orders:order-1"
    eventually(lambda: job.status() == "delayed")
    info = job.info()
    assert (info.tenant, info.priority) == ("acme", 1)


def test_a_row_is_deleted_when_the_server_will_remember_the_call(shop: Shop, quick: None):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
    assert len(shop.rows()) == 1
    eventually(lambda: shop.rows() == [])
    assert shop.orders() == [1]


def test_a_row_that_was_sent_says_so_until_it_is_deleted(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
    eventually(lambda: shop.states() == [schema.SENT])


def test_commits_go_on_while_the_server_is_away(away: Shop):
    for n in range(3):
        with away.session() as session, session.begin():
            away.outbox.enqueue(session, away.ship.call(n))
    assert away.states() == [schema.WAITING] * 3


def test_closing_the_outbox_sends_what_was_committed(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
    shop.outbox.close()
    assert shop.states() == [schema.SENT]
    assert shop.orders() == [1]


def test_a_forked_child_has_a_sender_of_its_own(shop: Shop):
    with shop.session() as session, session.begin():
        shop.outbox.enqueue(session, shop.ship.call(1))
    eventually(lambda: shop.queue.count().ready == 1)
    shop.outbox.close()  # else the child would be forked from a process with threads
    shop.engine.dispose()
    pid = os.fork()
    if pid == 0:
        try:
            with shop.session() as session, session.begin():
                shop.outbox.enqueue(session, shop.ship.call(2))
            shop.outbox.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert shop.orders() == [1, 2]


def test_threads_share_an_outbox(shop: Shop):
    def order(n: int) -> None:
        with shop.session() as session, session.begin():
            shop.outbox.enqueue(session, shop.ship.using(tenant=str(n)).call(n))

    threads = [threading.Thread(target=order, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    eventually(lambda: shop.queue.count().ready == 8)
    assert sorted(shop.orders()) == list(range(8))


def test_the_hooks_around_an_enqueue_run_in_the_transaction(apps: Any, engine: Engine):
    class Trace(Middleware):
        def enqueue(self, context: EnqueueContext) -> Any:
            for job in context.jobs:
                assert isinstance(job, JobDraft)
                job.trace = "caller"
            yield

    app = apps.make()
    app.middleware.add(Trace())
    shop = Shop(app, engine)
    with shop.session() as session, session.begin():
        job = shop.outbox.enqueue(session, shop.ship.call(1))
    eventually(lambda: job.status() == "ready")
    assert len(shop.rows()) == 1
    assert shop.orders() == [1]
    shop.outbox.close()
    app.close()


# --- bad input ---


def test_what_the_outbox_cannot_take_is_refused_where_it_is_written(shop: Shop):
    unique = shop.ship.using(unique=Unique("{order}"))
    shop.app.queue("split", shards=2)

    @shop.app.task(queue="split")
    def elsewhere() -> None: ...

    with shop.session() as session, session.begin():
        with pytest.raises(BadCall, match="is unique, and the outbox takes no unique calls"):
            shop.outbox.enqueue(session, unique.call(1))
        with pytest.raises(ConfigurationError, match="queue split has shards"):
            shop.outbox.enqueue(session, elsewhere.call())
        with pytest.raises(BadCall, match="takes calls, as in"):
            shop.outbox.enqueue(session, shop.ship)  # type: ignore[arg-type]
        with pytest.raises(BadCall, match="has to wait for other jobs"):
            shop.outbox.enqueue(session, shop.ship.using(after=shop.app.job("orders:x")).call(1))
        with pytest.raises(BadCall, match="order"):
            shop.outbox.enqueue(session, shop.ship.call("seven"))  # type: ignore[arg-type]
    assert shop.rows() == []


def test_a_session_of_the_wrong_kind_is_refused(shop: Shop):
    with pytest.raises(TypeError, match=r"write `await ….enqueue.aio\(session, …\)`"):
        shop.outbox.enqueue(AsyncSession(), shop.ship.call(1))  # type: ignore[arg-type]
    with shop.engine.connect() as connection, pytest.raises(TypeError, match="takes a Session of SQLAlchemy"):
        shop.outbox.enqueue(connection, shop.ship.call(1))  # type: ignore[arg-type]


def test_a_session_without_a_transaction_is_refused(shop: Shop):
    with Session(shop.engine, autobegin=False) as session:
        with pytest.raises(ConfigurationError, match="has no transaction"):
            shop.outbox.enqueue(session, shop.ship.call(1))
        with session.begin():
            shop.outbox.enqueue(session, shop.ship.call(2))
    assert len(shop.rows()) == 1


def test_a_session_in_autocommit_is_refused(shop: Shop):
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(ConfigurationError, match="is in autocommit"):
        shop.outbox.enqueue(session, shop.ship.call(1))
    assert shop.rows() == []


def test_a_session_of_another_database_is_refused(shop: Shop, tmp_path: Any):
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with Session(other) as session, pytest.raises(ConfigurationError, match="no relay would see its calls"):
        shop.outbox.enqueue(session, shop.ship.call(1))
    with Session() as unbound, pytest.raises(ConfigurationError, match="has no engine for the table"):
        shop.outbox.enqueue(unbound, shop.ship.call(1))
    other.dispose()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "a database in memory is gone with its process"),
        ("sqlite:///:memory:", "a database in memory is gone with its process"),
    ],
)
def test_a_database_that_cannot_hold_an_outbox_is_refused(shop: Shop, url: str, words: str):
    with pytest.raises(ConfigurationError, match=words):
        Outbox(shop.app, create_engine(url))
    with pytest.raises(ConfigurationError, match="the engine is one of SQLAlchemy"):
        Outbox(shop.app, url)  # type: ignore[arg-type]


def test_a_missing_table_is_reported_with_the_command_that_creates_it(apps: Any, database: Any):
    engine = create_engine(database[0])
    shop = Shop(apps.make(), engine)
    with shop.session() as session, pytest.raises(ConfigurationError, match="create them with `penstock sql schema"):
        shop.outbox.enqueue(session, shop.ship.call(1))
    engine.dispose()
    shop.app.close()
