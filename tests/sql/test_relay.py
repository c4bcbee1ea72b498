"""The relay: it sends what was left behind, in order, once, and deletes it when that is safe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from penstock import ConfigurationError, Penstock
from penstock.errors import FormatTooNew
from penstock.jobs.constants import LIMITED, LIMITS, UNIQUE, UNIQUE_KEY
from penstock.jobs.record import FLAGS_AT, HEADER_SIZE, POWERS_AT
from penstock.sql import Outbox, delivery, relay, rows, schema
from penstock.sql.background import ThreadBell, run_in_thread
from penstock.sql.relay import Relay
from penstock.testing import MovableClock
from tests.conftest import commands, until
from tests.servers import Server, eventually
from tests.sql.conftest import Shop


def leave(shop: Shop, *orders: int, tenant: str = "") -> None:
    """Commit calls that nobody sends, and let them become old enough for a relay."""
    with shop.session() as session, session.begin():
        shop.outbox.enqueue_many(session, [shop.ship.using(tenant=tenant).call(n) for n in orders])
    shop.make_older(3)


def turn(shop: Shop, one: Relay | None = None) -> Relay:
    """One turn of a relay."""
    one = one or Relay(shop.app)
    run_in_thread(one._round(), shop.engine, ThreadBell())
    return one


@contextlib.asynccontextmanager
async def relaying(outbox: Outbox) -> AsyncIterator[None]:
    task = asyncio.create_task(outbox.relay())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_relay_sends_what_was_left_behind_and_deletes_it(
    app: Penstock, away: Shop, async_engine: AsyncEngine, quick: None
):
    leave(away, 1, 2, 3)
    for engine in (async_engine, away.engine):
        async with relaying(Outbox(app, engine)):
            await until(lambda: away.rows() == [])
        items = await app.queue("orders").claim.aio(10)
        assert [item.body[1]["order"] for item in items] == [1, 2, 3]
        for item in items:
            await item.complete.aio()
        leave(away, 1, 2, 3)


def test_rows_of_a_tenant_keep_their_order_and_all_tenants_have_their_turn(shop: Shop, away: Shop):
    for n in range(12):
        leave(away, n, tenant=f"t{n % 3}")
    turn(shop)
    orders = shop.orders()
    assert sorted(orders) == list(range(12))
    for tenant in range(3):
        assert [n for n in orders if n % 3 == tenant] == list(range(tenant, 12, 3))


def test_a_relay_leaves_young_rows_to_the_program_that_wrote_them(shop: Shop, away: Shop):
    with away.session() as session, session.begin():
        away.outbox.enqueue(session, away.ship.call(1))
    turn(shop)
    assert away.states() == [schema.WAITING]
    away.make_older(2)
    turn(shop)
    assert away.states() == [schema.SENT]


def test_the_sender_lets_older_rows_of_the_tenant_go_first(shop: Shop, away: Shop):
    leave(away, 1, tenant="acme")
    for tenant, order in (("acme", 2), ("other", 3)):
        with shop.session() as session, session.begin():
            shop.outbox.enqueue(session, shop.ship.using(tenant=tenant).call(order))
    eventually(lambda: shop.queue.count().ready == 1)
    assert shop.orders() == [3]
    shop.make_older(3)
    turn(shop)
    assert shop.orders() == [1, 2]


def test_a_relay_that_dies_between_the_answer_and_the_deletion_doubles_nothing(
    shop: Shop, away: Shop, monkeypatch: pytest.MonkeyPatch
):
    leave(away, 1, 2)
    turn(shop)  # and it is gone
    assert away.states() == [schema.SENT] * 2
    (item, other) = shop.queue.claim(10)
    item.complete()
    other.complete()  # the jobs are done, and their ids are free
    turn(shop)
    assert away.states() == [schema.SENT] * 2  # the first relay may be alive
    with away.engine.begin() as connection:
        connection.execute(update(schema.outbox).values(until=1))
    second = turn(shop)
    monkeypatch.setattr(delivery, "SAFE_AFTER", 0.0)
    assert shop.queue.count().ready == 0
    eventually(lambda: turn(shop, second) is second and away.rows() == [])
    assert shop.queue.count().completed == 2


def test_a_relay_that_dies_with_leased_rows_is_replaced(shop: Shop, away: Shop):
    leave(away, 1)
    with away.engine.begin() as connection:
        assert [row.job for row in rows.lease(connection, "dead", 0, 10)]
    leave(away, 2)
    turn(shop)
    assert shop.queue.count().ready == 0  # the lane belongs to the other relay: 2 would overtake 1
    with away.engine.begin() as connection:
        connection.execute(update(schema.outbox).values(until=1))
    turn(shop)
    assert shop.orders() == [1, 2]


def test_two_relays_never_send_one_lane_at_a_time(away: Shop):
    for n in range(20):
        leave(away, n, tenant=f"t{n % 10}")
    with away.engine.begin() as connection:
        first = rows.lease(connection, "a", 0, 7)
    with away.engine.begin() as connection:
        second = rows.lease(connection, "b", 0, 100)
    assert len(first) == 7
    assert second
    assert not {row.lane for row in first} & {row.lane for row in second}


def test_a_relay_begins_at_the_next_lane_so_that_a_large_one_holds_up_nobody(away: Shop):
    leave(away, *range(30), tenant="large")
    leave(away, 99, tenant="small")
    lanes = {row.lane for row in away.rows()}
    with away.engine.begin() as connection:
        first = rows.lease(connection, "a", 0, 10)
        rows.mark_sent(connection, first, "a")
        second = rows.lease(connection, "a", first[-1].lane + 1, 10)
    assert {row.lane for row in [*first, *second]} == lanes


async def test_several_relays_and_programs_at_work_double_nothing_and_lose_nothing(
    make_app: Callable[..., Penstock], engine: Engine, quick: None
):
    shops = [Shop(make_app(prefix="several"), engine) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for shop in shops:
            await stack.enter_async_context(relaying(shop.outbox))

        def order(shop: Shop, numbers: range) -> None:
            for n in numbers:
                with shop.session() as session:
                    shop.outbox.enqueue(session, shop.ship.using(tenant=str(n % 7)).call(n))
                    session.rollback() if n % 5 == 0 else session.commit()

        await asyncio.gather(
            *(asyncio.to_thread(order, shop, range(k * 40, k * 40 + 40)) for k, shop in enumerate(shops))
        )
        await until(lambda: shops[0].rows() == [], within=60)
        items = await shops[0].queue.claim.aio(1000)
        assert sorted(item.body[1]["order"] for item in items) == [n for n in range(120) if n % 5]
    for shop in shops:
        await shop.outbox.aclose()


# --- the server ---


def test_a_server_that_forgot_its_last_second_gets_the_calls_again(engine: Engine):
    with Server("--appendonly", "yes", "--appendfsync", "everysec") as server, Penstock(server.address) as app:
        shop = Shop(app, engine)
        leave(shop, 1, 2)
        one = turn(shop)
        shop.outbox.close()
        server.client.flushall()  # as if it had been killed before it wrote them
        server.restart()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("penstock.sql.delivery.SAFE_AFTER", 0.0)
            turn(shop, one)  # sees another run_id, and leaves the rows for the next turn
            assert shop.states() == [schema.WAITING] * 2
            turn(shop, one)
            assert shop.orders() == [1, 2]
            turn(shop, one)
        assert shop.rows() == []


def test_a_server_whose_clock_is_days_off_changes_nothing(shop: Shop, away: Shop):
    leave(away, 1)
    MovableClock(shop.app).advance(100 * 3600)
    turn(shop)
    assert shop.orders() == [1]
    assert away.states() == [schema.SENT]


def test_rows_wait_while_the_server_is_away(away: Shop, shop: Shop):
    leave(away, 1)
    with pytest.raises(Exception, match=r"nothing\.sock"):
        turn(away)
    assert away.states() == [schema.WAITING]
    turn(shop)
    assert shop.orders() == [1]


# --- what a queue refuses ---


def test_a_call_that_is_older_than_the_queues_memory_is_held(shop: Shop, away: Shop, caplog: pytest.LogCaptureFixture):
    leave(away, 1)
    away.make_older(8 * 86400)
    leave(away, 2)
    with caplog.at_level(logging.ERROR):
        turn(shop)
    (old, new) = away.rows()
    assert (old.state, new.state) == (schema.HELD, schema.SENT)
    assert "older than the queue's memory" in old.reason
    assert "holds 1 calls for queue orders" in caplog.text
    assert shop.orders() == [2]


def test_a_call_that_cannot_be_read_is_held_and_holds_up_nobody(shop: Shop, away: Shop):
    leave(away, 1, 2, 3, 4, 5)
    with away.engine.begin() as connection:
        table = schema.outbox
        connection.execute(update(table).where(table.c.number == 1).values(record=b"x"))
        connection.execute(update(table).where(table.c.number == 2).values(record=b"\x63" + bytes(100)))
        connection.execute(update(table).where(table.c.number == 3).values(queue="no such/queue"))
        cut = bytearray(connection.execute(select(table.c.record).where(table.c.number == 4)).scalar_one())
        cut[FLAGS_AT], cut[POWERS_AT] = LIMITED | UNIQUE, LIMITS | UNIQUE_KEY
        connection.execute(update(table).where(table.c.number == 4).values(record=bytes(cut[: HEADER_SIZE + 1])))
    turn(shop)
    assert away.states() == [schema.HELD] * 4 + [schema.SENT]
    reasons = [row.reason for row in away.rows()]
    assert "damaged" in reasons[0]
    assert "another release of Penstock (format 99" in reasons[1]
    assert "queue name" in reasons[2]
    assert "damaged" in reasons[3]
    assert shop.orders() == [5]


def test_calls_for_a_queue_that_got_shards_are_held(apps: Any, shop: Shop, away: Shop):
    leave(away, 1)
    split = apps.make(prefix=shop.app.settings.prefix)
    split.queue("orders", shards=2).put(0)
    turn(shop)
    assert away.states() == [schema.HELD]
    assert "queue orders has shards" in away.rows()[0].reason
    split.close()


# --- the tables ---


async def test_a_relay_refuses_a_database_without_tables_or_with_newer_ones(app: Penstock, shop: Shop):
    with shop.engine.begin() as connection:
        connection.execute(update(schema.schema).values(version=99))
    with pytest.raises(FormatTooNew, match="have version 99, and this Penstock knows 1"):
        await Outbox(app, shop.engine).relay()
    with shop.engine.begin() as connection:
        schema.tables.drop_all(connection)
    with pytest.raises(ConfigurationError, match="create them with `penstock sql schema"):
        await Outbox(app, shop.engine).relay()


async def test_an_idle_relay_asks_the_server_once_in_ten_seconds(
    shop: Shop, app: Penstock, raw: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "IDLE_LOOK", 0.05)
    async with relaying(Outbox(app, shop.engine)):
        await asyncio.sleep(0.5)
        before = commands(raw)
        await asyncio.sleep(0.5)
        assert commands(raw) == before


# --- restores ---


def test_a_database_that_was_restored_to_an_earlier_state_sends_nothing_by_itself(shop: Shop, away: Shop):
    leave(away, 1, 2)
    first = Relay(shop.app)
    run_in_thread(first._restores.check(), shop.engine, ThreadBell())
    with away.engine.begin() as connection:
        backup = connection.execute(select(schema.schema)).one()
    for _ in range(2):  # the relays of the time between
        with away.engine.begin() as connection:
            connection.execute(update(schema.schema).values(beaten=1))
        turn(shop)
    with away.engine.begin() as connection:
        connection.execute(update(schema.schema).values(beat=backup.beat, beaten=backup.beaten))
        connection.execute(update(schema.outbox).values(state=schema.WAITING))
    turn(shop)
    assert away.states() == [schema.HELD] * 2
    assert "restored to an earlier state" in away.rows()[0].reason
    leave(away, 3)
    turn(shop)  # what was written since then is sent
    assert away.states() == [schema.HELD, schema.HELD, schema.SENT]


def test_relays_that_beat_at_the_same_time_are_no_restore(shop: Shop, away: Shop):
    leave(away, 1)
    relays = [Relay(shop.app) for _ in range(3)]
    for _ in range(3):
        for one in relays:
            with away.engine.begin() as connection:
                connection.execute(update(schema.schema).values(beaten=1))
            one._restores._next = 0.0
            turn(shop, one)
    assert schema.HELD not in away.states()
