"""The calls that the code under test enqueued."""

import dataclasses
from datetime import UTC, datetime, timedelta

import anyio.to_thread
import pytest

from penstock import BadCall, Concurrency, Penstock
from penstock.testing import MovableClock, assert_enqueued, enqueued, run_jobs


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


async def test_waiting_calls_are_listed_in_order(app: Penstock):
    @app.task(queue="mail")
    async def send(to: str, subject: str = "Hi", *more: int, **tags: str) -> None: ...

    @app.task(queue="raw")
    async def other(n: int) -> None: ...

    await send.enqueue.aio("ada")
    await other.using(tenant="acme", priority=2).enqueue.aio(1)
    await send.using(delay=60).enqueue.aio("bo", "Later", 7, kind="x")
    await app.queue("raw").put.aio([1, "two"])
    calls = enqueued(app)
    assert [(call.task, call.arguments) for call in calls] == [
        ("send", {"to": "ada"}),
        ("other", {"n": 1}),
        ("send", {"to": "bo", "subject": "Later", "*args": [7], "**kwargs": {"kind": "x"}}),
        ("", {"value": [1, "two"]}),
    ]
    assert [call.task for call in enqueued(app.queue("raw"))] == ["other", ""]
    assert [call.arguments["to"] for call in enqueued(send)] == ["ada", "bo"]
    assert str(calls[1]) == "other(n=1)  tenant=acme  priority=2"
    assert str(calls[2]).startswith("send(to='bo', subject='Later', *args=[7], **kwargs={'kind': 'x'})  due=")
    assert calls[0].due is None
    await run_jobs.aio(app, dead=True)
    assert [str(call).split("  ")[0] for call in enqueued(app)] == [
        str(calls[2]).split("  ")[0],
        "put(value=[1, 'two'])",
    ]


async def test_a_call_that_a_limit_parked_waits_too(app: Penstock):
    @app.task(queue="mail", limit=Concurrency(1, key="{to}"))
    async def send(to: str, n: int) -> None: ...

    for n in range(3):
        await send.enqueue.aio("ada", n)
    assert [call.arguments["n"] for call in enqueued(send)] == [0, 1, 2]
    await run_jobs.aio(app)
    assert enqueued(send) == []


async def test_a_waiting_call_is_found_by_its_arguments_positional_or_by_name(app: Penstock):
    @app.task(queue="mail")
    async def deliver(to: Address, when: datetime, *, loud: bool = False) -> int:
        return to.number

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    enqueued_job = await deliver.enqueue.aio(Address("Elm"), when=noon)
    for found in (
        assert_enqueued(deliver, Address("Elm", 1), noon),
        assert_enqueued(deliver, to=Address("Elm"), when=noon, loud=False),
    ):
        assert found == enqueued_job
    await run_jobs.aio(app)
    assert await found.result.aio(0) == 1
    with pytest.raises(AssertionError, match="has waiting:\n  nothing"):
        assert_enqueued(deliver, Address("Elm"), noon)


async def test_the_error_shows_the_calls_that_wait_instead(app: Penstock):
    @app.task(queue="mail")
    async def send(to: str, subject: str = "Hi") -> None: ...

    await send.using(tenant="acme").enqueue.aio("ada")
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(send, "bo", subject="Hi")
    assert str(raised.value) == (
        "no such call waits: send(to='bo', subject='Hi')\nqueue mail has waiting:\n  send(to='ada')  tenant=acme"
    )
    with pytest.raises(BadCall):
        assert_enqueued(send, 7)  # type: ignore[arg-type]


async def test_options_beyond_the_defaults_must_be_equal(app: Penstock, clock: MovableClock):
    @app.task
    async def task(n: int) -> None: ...

    date = datetime.fromtimestamp(clock.now, UTC) + timedelta(hours=1)
    await task.using(tenant="acme", priority=2, id="own").enqueue.aio(1)
    await task.using(delay=60).enqueue.aio(2)
    await task.using(at=date).enqueue.aio(3)
    assert assert_enqueued(task, 1).key == "own"
    assert_enqueued(task.using(tenant="acme", priority=2, id="own"), 1)
    assert_enqueued(task.using(delay=60), 2)
    assert_enqueued(task.using(at=date), 3)
    for other in ({"tenant": "bolt"}, {"priority": 3}, {"id": "other"}, {"delay": 1.0}):
        with pytest.raises(AssertionError):
            assert_enqueued(task.using(**other), 1)
    with pytest.raises(AssertionError):
        assert_enqueued(task.using(delay=70), 2)


async def test_a_delay_by_the_servers_clock_is_compared_to_the_second(app: Penstock):
    @app.task
    async def task() -> None: ...

    await task.using(delay=60).enqueue.aio()
    assert_enqueued(task.using(delay=60))
    await anyio.to_thread.run_sync(assert_enqueued, task.using(delay=60))
    with pytest.raises(AssertionError):
        assert_enqueued(task.using(delay=58))


@pytest.mark.damages
async def test_a_damaged_payload_is_shown_with_the_others(app: Penstock, raw):
    job = await app.queue("default").put.aio("abc")

    @app.task
    async def task() -> None: ...

    key = app.queue("default").first.bindings.keys.base + "jobs"
    raw.hset(key, job.key, raw.hget(key, job.key)[:-1])
    assert [call.arguments for call in enqueued(app)] == [{"damaged": b'"abc'}]
