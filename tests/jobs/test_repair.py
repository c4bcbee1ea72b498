"""The arguments of a dead letter are changed, and it runs again."""

from typing import Any

import pytest

from penstock import BadCall, Concurrency, Drop, Penstock, Rate, Status, Task, Unique, step
from penstock.core.operations import RoundTrip
from penstock.errors import UniqueKeyHeld
from penstock.jobs.editing import requeue_with
from tests.conftest import Do
from tests.jobs.stand import DEAD, FakeWorker, Stand, record
from tests.worker.in_process import run_burst

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unique": {"unique": Unique("{account}")},
    "limited": {"limit": [Concurrency(1, key="{account}"), Rate(100, per=1, key="{account}")]},
    "throttled": {"unique": Unique("{account}", throttle=60)},
}


def define(app: Penstock, **options: Any) -> Task[Any, int]:
    @app.task(queue="q", **options)
    async def charge(account: str, amount: int) -> int:
        if amount < 0:
            raise ValueError(f"{amount} is negative")
        return amount

    return charge


@pytest.mark.parametrize("kind", OPTIONS)
async def test_a_dead_letter_runs_with_other_arguments(app: Penstock, do: Do, kind: str):
    charge, dead = define(app, **OPTIONS[kind]), app.queue("q").dead
    job = await charge.using(priority=2, tenant="acme").enqueue.aio("ada", -5)
    await run_burst(app)
    assert await job.status.aio() is Status.DEAD
    assert await do(dead.requeue, job.id, call=charge.call("bo", 5)) == 1
    info = await job.info.aio()
    assert (info.status, info.priority, info.tenant, info.attempts) == (Status.READY, 2, "acme", 0)
    assert info.body == ["charge", {"account": "bo", "amount": 5}]
    edited, failed = info.failures
    assert (edited.outcome, edited.arguments) == ("edited", {"account": "ada", "amount": -5})
    assert (failed.outcome, info.reason) == ("failed", "ValueError: -5 is negative")
    await run_burst(app)
    assert await job.result.aio(0) == 5
    assert await do(dead.requeue, job.id, call=charge.call("bo", 5)) == 0


async def test_the_unique_key_follows_from_the_new_arguments(app: Penstock, do: Do):
    charge, dead = define(app, unique=Unique("{account}")), app.queue("q").dead
    job = await charge.enqueue.aio("ada", -5)
    await run_burst(app)
    holder = await charge.enqueue.aio("bo", 1)
    with pytest.raises(UniqueKeyHeld, match="holds the unique key of the new arguments") as held:
        await do(dead.requeue, job.id, call=charge.call("bo", 5))
    assert held.value.holder == holder.id
    info = await job.info.aio()
    assert (info.status, info.body) == (Status.DEAD, ["charge", {"account": "ada", "amount": -5}])
    assert len(info.failures) == 1
    assert await do(dead.requeue, job.id, call=charge.call("cy", 5)) == 1
    double = await charge.enqueue.aio("cy", 9)
    assert double.id == job.id
    assert (await charge.enqueue.aio("ada", 2)).id != job.id
    await run_burst(app)
    assert await job.result.aio(0) == 5


async def test_limits_hold_for_the_new_key(app: Penstock, do: Do):
    charge, dead = define(app, limit=Concurrency(1, key="{account}")), app.queue("q").dead
    job = await charge.enqueue.aio("ada", -5)
    await run_burst(app)
    first = await charge.enqueue.aio("bo", 1)
    (item,) = await app.queue("q").claim.aio()
    assert item.id == first.id
    await do(dead.requeue, job.id, call=charge.call("bo", 5))
    assert await job.status.aio() is Status.PARKED
    await item.complete.aio()
    await run_burst(app)
    assert await job.result.aio(0) == 5


async def test_arguments_that_do_not_fit_change_nothing(app: Penstock, do: Do):
    charge, dead = define(app), app.queue("q").dead

    @app.task(queue="q")
    async def other(account: str) -> None:
        raise Drop

    job = await charge.enqueue.aio("ada", -5)
    waiting = await other.using(delay=60).enqueue.aio("ada")
    await run_burst(app)
    before = await job.info.aio()
    with pytest.raises(BadCall, match="Expected `int`"):
        charge.call("bo", "five")
    with pytest.raises(BadCall, match="is not of task 'other'"):
        await do(dead.requeue, job.id, call=other.call("ada"))
    with pytest.raises(BadCall, match="give a call"):
        await do(dead.requeue, job.id, call={"account": "bo"})
    for ids in ((), (job.id, waiting.id)):
        with pytest.raises(ValueError, match="each job has arguments of its own"):
            await do(dead.requeue, *ids, call=charge.call("bo", 5))
    assert await do(dead.requeue, waiting.id, call=other.call("bo")) == 0
    assert await do(dead.requeue, "q:none", call=other.call("bo")) == 0
    assert await job.info.aio() == before
    await waiting.cancel.aio()
    await dead.remove.aio(job.id)


async def test_results_of_other_jobs_cannot_be_changed(app: Penstock, do: Do):
    charge = define(app)
    first = await charge.enqueue.aio("ada", 1)
    job = await charge.using(after=first).enqueue.aio("ada", -5)
    await run_burst(app)
    with pytest.raises(BadCall, match="results of other jobs"):
        await do(app.queue("q").dead.requeue, job.id, call=charge.call("bo", 5))
    await app.queue("q").dead.remove.aio(job.id)


def test_an_edit_whose_reply_was_lost_counts_once(stand: Stand):
    stand.put("j", payload=b'{"n":1}')
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="boom")
    edit = requeue_with(stand.bindings, "j", record("ada", payload=b'{"n":2}'))
    assert stand.run(edit) == "requeued"
    before = stand.dump()
    again = requeue_with(stand.bindings, "j", record("ada", payload=b'{"n":2}'))
    assert stand.run(again) == "alive"
    assert stand.dump()["failures"] == before["failures"]
    (claim,) = worker.claim()
    assert claim.record.payload == b'{"n":2}'
    worker.settle(claim)
    assert "failures" not in stand.dump()


def test_a_copy_of_a_requeue_that_arrives_after_the_next_death_changes_nothing(stand: Stand):
    """The reply was lost, and the job failed again before the call was repeated."""
    stand.put("j")
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="boom")
    call = stand.bindings.requeue(["j"])
    call = RoundTrip(call.script, call.keys, ("caller", 1, *call.args[2:]), call.read)
    assert stand.run(call) == 1
    worker.settle(*worker.claim(), ending="bury", text="again")
    assert stand.run(call) == 1
    assert stand.state("j") == DEAD


def test_a_copy_of_an_edit_that_arrives_after_the_next_death_changes_nothing(stand: Stand):
    stand.put("j", payload=b'{"n":1}')
    worker = FakeWorker(stand, "w")
    worker.settle(*worker.claim(), ending="bury", text="boom")
    call = requeue_with(stand.bindings, "j", record("ada", payload=b'{"n":2}'))
    call = RoundTrip(call.script, call.keys, ("caller", 1, *call.args[2:]), call.read)
    assert stand.run(call) == "requeued"
    worker.settle(*worker.claim(), ending="bury", text="again")
    before = stand.dump()
    assert stand.run(call) == "requeued"
    assert stand.dump() == before


async def test_tags_of_the_dead_letter_stay_unless_the_call_has_its_own(app: Penstock, do: Do):
    charge, dead = define(app), app.queue("q").dead
    job = await charge.using(tags=["order:7"]).enqueue.aio("ada", -5)
    await run_burst(app)
    await do(dead.requeue, job.id, call=charge.call("ada", -6))
    assert (await job.info.aio()).tags == ("order:7",)
    await run_burst(app)
    await do(dead.requeue, job.id, call=charge.using(tags=["order:8"]).call("ada", 5))
    assert (await job.info.aio()).tags == ("order:8",)
    await run_burst(app)


async def test_keys_and_tags_contain_the_tenant_of_the_dead_letter(app: Penstock, do: Do):
    """And not that of the call, which names none."""
    limit = Concurrency(1, key="{tenant}")
    charge = define(app, limit=limit, unique=Unique("{tenant}/{account}"), tags=["{tenant}:{account}"])
    job = await charge.using(tenant="acme").enqueue.aio("ada", -5)
    await run_burst(app)
    assert await do(app.queue("q").dead.requeue, job.id, call=charge.call("bo", 5)) == 1
    assert (await job.info.aio()).tags == ("acme:bo",)
    assert (await charge.using(tenant="acme").enqueue.aio("bo", 1)).id == job.id
    (item,) = await app.queue("q").claim.aio()
    later = await charge.using(tenant="acme").enqueue.aio("cy", 1)
    assert await later.status.aio() is Status.PARKED
    await item.complete.aio()
    await run_burst(app)


async def test_the_steps_of_a_durable_job_stay(app: Penstock, do: Do):
    @app.task(queue="q")
    async def ship(order: str) -> list[str]:
        packed = await step(str.upper, "packed")
        if order == "bad":
            raise ValueError(order)
        return [packed, order]

    job = await ship.enqueue.aio("bad")
    await run_burst(app)
    before = await job.steps.aio()
    assert await do(app.queue("q").dead.requeue, job.id, call=ship.call("good")) == 1
    assert await job.steps.aio() == before
    await run_burst(app)
    assert await job.result.aio(0) == ["PACKED", "good"]
