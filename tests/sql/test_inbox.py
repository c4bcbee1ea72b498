"""The inbox: an effect in a database happens once, however often its job runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from penstock import ConfigurationError, Penstock, Retry
from penstock.errors import JobFailed, MarkForgotten, NoCurrentJob
from penstock.sql import Outbox, inbox, schema
from penstock.testing import run_jobs
from tests.sql.conftest import Shop

effects = Table("effects", MetaData(), Column("number", Integer, primary_key=True), Column("order", Integer))


@pytest.fixture(autouse=True)
def table(engine: Engine) -> None:
    effects.metadata.create_all(engine)


def happened(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        return list(connection.execute(select(effects.c.order)).scalars())


def marks(engine: Engine) -> int:
    with engine.begin() as connection:
        return len(connection.execute(select(schema.inbox)).all())


def run(shop: Shop) -> None:
    run_jobs(shop.app, dead=True)
    while shop.queue.count().delayed:  # until the next attempt
        run_jobs(shop.app, dead=True)


def test_an_effect_happens_once_and_a_rerun_gets_its_result(shop: Shop):
    seen: list[Any] = []

    @shop.app.task(queue="orders", retry=Retry(3, base=0.001))
    def pay(order: int) -> str:
        with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
            if once.first:
                session.execute(insert(effects).values(order=order))
                once.result = {"receipt": f"r{order}"}
            seen.append((once.first, once.result))
        if len(seen) < 3:
            raise OSError("after the commit")
        return str(once.result["receipt"])

    job = pay.enqueue(7)
    run(shop)
    assert job.result(timeout=5) == "r7"
    assert happened(shop.engine) == [7]
    assert seen == [(True, {"receipt": "r7"}), (False, {"receipt": "r7"}), (False, {"receipt": "r7"})]


async def test_a_session_of_asyncio_does_as_a_blocking_one(app: Penstock, async_engine: AsyncEngine, engine: Engine):
    outbox, runs = Outbox(app, async_engine), []

    @app.task(queue="orders", retry=Retry(3, base=0.001))
    async def pay(order: int) -> None:
        async with AsyncSession(async_engine) as session, session.begin(), outbox.once(session) as once:
            runs.append(once.first)
            if once.first:
                await session.execute(insert(effects).values(order=order))
        if len(runs) == 1:
            raise OSError

    job = await pay.enqueue.aio(1)
    await run_jobs.aio(app)
    while (await app.queue("orders").count.aio()).delayed:  # until the next attempt
        await run_jobs.aio(app)
    assert await job.status.aio() == "completed"
    assert (runs, happened(engine)) == ([True, False], [1])


def test_a_transaction_that_is_rolled_back_leaves_no_mark(shop: Shop):
    runs: list[bool] = []

    @shop.app.task(queue="orders", retry=Retry(3, base=0.001))
    def pay(order: int) -> None:
        with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
            runs.append(once.first)
            session.execute(insert(effects).values(order=order))
            if len(runs) == 1:
                raise OSError("before the commit")

    pay.enqueue(1)
    run(shop)
    assert (runs, happened(shop.engine)) == ([True, True], [1])


def test_an_error_that_the_task_catches_leaves_no_mark(shop: Shop):
    @shop.app.task(queue="orders")
    def pay() -> None:
        with shop.session() as session, session.begin():
            try:
                with shop.outbox.once(session):
                    raise OSError
            except OSError:
                pass

    pay.enqueue()
    run(shop)
    assert marks(shop.engine) == 0


def test_several_effects_of_a_job_have_names(shop: Shop):
    @shop.app.task(queue="orders")
    def pay(order: int) -> None:
        for name in ("card", "mail", "card"):
            with shop.session() as session, session.begin(), shop.outbox.once(session, name) as once:
                if once.first:
                    session.execute(insert(effects).values(order=order))

    pay.enqueue(1)
    run(shop)
    assert happened(shop.engine) == [1, 1]


def test_an_id_that_comes_again_is_another_job(shop: Shop):
    @shop.app.task(queue="orders", result_ttl=0)
    def pay(order: int) -> None:
        with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
            if once.first:
                session.execute(insert(effects).values(order=order))

    for n in (1, 2):
        pay.using(id="mine").enqueue(n)
        run(shop)
    assert happened(shop.engine) == [1, 2]


def test_two_runs_at_the_same_time_have_one_effect(shop: Shop):
    @shop.app.task(queue="orders")
    def pay(order: int) -> None:
        import contextvars

        def once() -> None:
            with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
                if once.first:
                    session.execute(insert(effects).values(order=order))

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(once,)) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    pay.enqueue(1)
    run(shop)
    assert happened(shop.engine) == [1]


def test_the_requeue_of_a_dead_letter_finds_the_mark(shop: Shop):
    fails = [True]

    @shop.app.task(queue="orders")
    def pay(order: int) -> None:
        with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
            if once.first:
                session.execute(insert(effects).values(order=order))
        if fails:
            raise OSError(fails.pop())

    job = pay.enqueue(1)
    run(shop)
    assert job.status() == "dead"
    shop.queue.dead.requeue(job.key)
    run(shop)
    assert (job.status(), happened(shop.engine)) == ("completed", [1])


def test_a_job_older_than_the_marks_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    @shop.app.task(queue="orders")
    def pay(order: int) -> None:
        with shop.session() as session, session.begin(), shop.outbox.once(session) as once:
            if once.first:
                session.execute(insert(effects).values(order=order))

    done, job = pay.enqueue(1), None
    run(shop)
    monkeypatch.setattr(inbox, "MARKS_KEPT", 86400 - 1)
    job = pay.enqueue(2)
    run(shop)
    assert (done.status(), job.status()) == ("completed", "dead")
    with pytest.raises(JobFailed, match="enqueue the call again as a new job"):
        job.result(timeout=0)
    assert (happened(shop.engine), marks(shop.engine)) == ([1], 1)
    assert MarkForgotten.__name__ in job.info().reason


def test_marks_are_deleted_when_they_are_old(shop: Shop):
    with shop.engine.begin() as connection:
        connection.execute(insert(schema.inbox), [{"job": f"q:{n}", "enqueued": n, "name": ""} for n in range(3)])
        connection.execute(update(schema.inbox).where(schema.inbox.c.enqueued < 2).values(created=1))
        assert inbox.delete_old_marks(connection) == 2
        assert inbox.delete_old_marks(connection) == 0
    assert marks(shop.engine) == 1


def test_once_outside_of_a_job_or_with_a_bad_name_is_refused(shop: Shop):
    with Session(shop.engine) as session:
        with pytest.raises(NoCurrentJob), shop.outbox.once(session):
            pass
        with pytest.raises(ConfigurationError, match="at most 200 bytes"):
            shop.outbox.once(session, "n" * 201)
