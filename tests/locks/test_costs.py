"""What acquiring and releasing costs: commands in the server, round trips, and work of the renewer."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import Penstock
from penstock.core.renewal import Renewer
from tests.conftest import until
from tests.locks.test_lock import waiting

one_place = pytest.mark.parametrize("place", ["valkey"])

MAY_HAPPEN_BESIDE = {"info", "ping", "zcard", "script|load", "eval"}
"""Commands that the tests themselves send, or a connection that is open."""


def executed(client: Any) -> Counter[str]:
    """How often the server has executed each command so far, those of scripts included."""
    stats = {name.removeprefix("cmdstat_"): one["calls"] for name, one in client.info("commandstats").items()}
    return Counter({name: calls for name, calls in stats.items() if name not in MAY_HAPPEN_BESIDE})


async def cost(client: Any, leased: Any) -> Counter[str]:
    """The commands of one acquisition and release that nothing else runs beside."""
    for _ in range(2):  # the first call of a script loads it
        await (await leased.acquire.aio()).release.aio()
    before = executed(client)
    held = await leased.acquire.aio()
    await held.release.aio()
    return executed(client) - before


@one_place
async def test_a_free_lock_costs_seven_commands_in_two_scripts(app: Penstock, raw: Any):
    spent = await cost(raw, app.lock("cheap", lease=30))
    assert spent == Counter({"evalsha": 2, "exists": 2, "set": 2, "time": 1, "get": 1, "del": 1})


@one_place
async def test_a_free_permit_costs_at_most_thirteen_commands_in_two_scripts(app: Penstock, raw: Any):
    spent = await cost(raw, app.semaphore("cheap", limit=3, lease=30))
    assert spent["evalsha"] == 2
    assert spent.total() - 2 <= 13


@one_place
async def test_a_lock_that_another_holds_costs_three_commands_to_be_refused(app: Penstock, raw: Any):
    held = await app.lock("taken", lease=30).acquire.aio()
    other = app.lock("taken", lease=30, wait=0)
    before = executed(raw)
    with pytest.raises(TimeoutError):
        await asyncio.create_task(other.acquire.aio())
    assert executed(raw) - before == Counter({"evalsha": 1, "time": 1, "exists": 1, "set": 1})
    await held.release.aio()


@one_place
async def test_a_process_that_waited_lately_joins_in_its_first_attempt(app: Penstock, make_app: Any, raw: Any):
    """The first wait needs two attempts: most locks are free, and a place among the waiters costs more."""
    holder, waiter = app.lock("wanted", lease=30), make_app().lock("wanted", lease=30)
    spent = []
    for _ in range(3):
        held = await holder.acquire.aio()
        before = executed(raw)
        waits = asyncio.create_task(waiter.acquire.aio())
        await until(lambda: raw.zcard(holder.bindings.declared[0] + "waiters"))
        spent.append((executed(raw) - before)["evalsha"])
        await held.release.aio()
        await (await waits).release.aio()
    assert spent[1:] == [1, 1]


@one_place
async def test_a_hand_over_costs_at_most_eighteen_commands(app: Penstock, make_app: Any, raw: Any):
    holder, waiter = app.lock("wanted", lease=30), make_app().lock("wanted", lease=30)
    for _ in range(2):
        held = await holder.acquire.aio()
        waits = asyncio.create_task(waiter.acquire.aio())
        await waiting(holder)
        before = executed(raw)
        await held.release.aio()
        spent = executed(raw) - before
        await (await waits).release.aio()
    assert spent["evalsha"] == 1
    assert spent.total() - 1 <= 18


@one_place
async def test_released_locks_do_not_fill_the_renewers_heap(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    wakes = 0
    take_due = Renewer._take_due

    def counted(renewer: Renewer) -> Any:
        nonlocal wakes
        wakes += 1
        return take_due(renewer)

    monkeypatch.setattr(Renewer, "_take_due", counted)
    lock = app.lock("often", lease=30)
    for _ in range(300):
        await (await lock.acquire.aio()).release.aio()
    await until(lambda: wakes > 0)
    assert len(app._renewer._due) <= 1
