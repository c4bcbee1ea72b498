"""Receipts: a queue accepts once what its sender keeps and may send several times."""

from __future__ import annotations

import pytest

from penstock import ConfigurationError, Penstock
from penstock.jobs.receipts import ACCEPTED, KNOWN, TOO_OLD, KeptCall, Receipts
from tests.conftest import Do, MakeApp, Time

WEEK = 7 * 86400


def kept(app: Penstock, number: int, *, age: float = 0, id: str | None = None) -> KeptCall:
    @app.task(queue="q", name=f"task{number}")
    def task(n: int) -> None: ...

    key, record = task.using(id=id).call(number).draft()
    return KeptCall(number, int(age * 1000), key, record)


async def test_a_call_is_accepted_once_however_often_it_is_sent(app: Penstock, do: Do):
    queue = app.queue("q")
    mine, one, two = Receipts(queue), kept(app, 1), kept(app, 2)
    assert await do(mine.accept, [one, two, one]) == [ACCEPTED, ACCEPTED, KNOWN]
    for item in await do(queue.claim, 10):
        await do(item.complete)
    assert await do(mine.accept, [one, two]) == [KNOWN, KNOWN]
    assert (await do(queue.count)).ready == 0
    assert len(await do(mine.run_id)) == 40


async def test_a_receipt_is_kept_for_a_minute_after_the_sender_has_deleted_the_call(app: Penstock, do: Do, clock: Time):
    mine, one = Receipts(app.queue("q")), kept(app, 1, id="mine")
    await do(mine.accept, [one])
    await do(mine.forget, [1, 5])
    assert await do(mine.accept, [one]) == [KNOWN]
    clock.advance(61)
    assert await do(mine.accept, [kept(app, 2)]) == [ACCEPTED]  # drops what is over
    assert await do(mine.accept, [one]) == [ACCEPTED]  # and the id of its own is known: the job is not doubled
    assert (await do(app.queue("q").count)).ready == 2


async def test_a_call_is_refused_when_its_receipt_may_have_been_dropped(app: Penstock, do: Do):
    mine = Receipts(app.queue("q"))
    calls = [kept(app, 1, age=WEEK + 1), kept(app, 2, age=WEEK - 60)]
    assert await do(mine.accept, calls) == [TOO_OLD, ACCEPTED]
    assert (await do(app.queue("q").count)).ready == 1


async def test_a_queue_with_shards_takes_no_such_calls(make_app: MakeApp, do: Do):
    app = make_app()
    await do(app.queue("q", shards=2).put, 1)
    plain = make_app(prefix=app.settings.prefix)
    with pytest.raises(ConfigurationError, match="queue q has shards"):
        await do(Receipts(plain.queue("q")).accept, [kept(plain, 1)])
