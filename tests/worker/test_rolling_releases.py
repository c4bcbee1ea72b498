"""Calls of a newer release in a queue that workers of an older one serve as well."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from penstock import Batch, JobFailed, Penstock, ResultTimeout, Retry, Status, Task, step, wait_for
from penstock.jobs.claims import Registration
from penstock.jobs.release import Release
from tests.conftest import Do, MakeApp, Time
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


@dataclass
class OldOrder:
    number: int


@dataclass
class NewOrder:
    number: int
    currency: str = "EUR"


class OldModel(pydantic.BaseModel):
    number: int


class NewModel(OldModel):
    currency: str = "EUR"


class OldStruct(msgspec.Struct):
    number: int


class NewStruct(OldStruct):
    currency: str = "EUR"


def _parameter(app: Penstock, *, newer: bool) -> Task[Any, Any]:
    if newer:

        @app.task(queue="q", name="ship", retry=Retry(5))
        async def new(number: int, currency: str = "EUR") -> str:
            return currency

        return new

    @app.task(queue="q", name="ship", retry=Retry(5))
    async def old(number: int) -> str:
        return "old"

    return old


def _field(old: Any, new: Any, **options: Any) -> Callable[..., Task[Any, Any]]:
    """Tasks that take an object, a list of them, and a map of them."""

    def define(app: Penstock, *, newer: bool) -> Task[Any, Any]:
        def ship(order: Any, others: Any = (), by_name: Any = None) -> str:
            return str(getattr(order, "currency", "old"))

        kind: Any = new if newer else old
        ship.__annotations__ = {
            "order": kind,
            "others": list.__class_getitem__(kind),
            "by_name": dict.__class_getitem__((str, kind)),
            "return": str,
        }
        task: Task[Any, Any] = app.task(queue="q", retry=Retry(5), **options)(ship)
        return task

    return define


def _batch(app: Penstock, *, newer: bool) -> Task[Any, Any]:
    def ship(orders: Any) -> list[str]:
        return [getattr(order, "currency", "old") for order in orders]

    ship.__annotations__ = {"orders": list.__class_getitem__(NewOrder if newer else OldOrder), "return": list[str]}
    task: Task[Any, Any] = app.task(queue="q", retry=Retry(5), batch=Batch(10, linger=0.01))(ship)
    return task


KINDS: dict[str, tuple[Callable[..., Task[Any, Any]], tuple[Any, ...], str]] = {
    "a parameter": (_parameter, (1, "USD"), "unknown field `currency`"),
    "a dataclass": (_field(OldOrder, NewOrder), (NewOrder(1, "USD"),), "order.currency is unknown"),
    "a model": (_field(OldModel, NewModel), (NewModel(number=1, currency="USD"),), "order.currency is unknown"),
    "a struct": (_field(OldStruct, NewStruct), (NewStruct(1, "USD"),), "order.currency is unknown"),
    "an item of a list": (
        _field(OldOrder, NewOrder),
        (NewOrder(1, "USD"), [NewOrder(2)]),
        "order.currency is unknown",
    ),
    "a batch": (_batch, (NewOrder(1, "USD"),), "currency is unknown"),
}

OLD: dict[str, Any] = {"release": "v1", "unknown_backoff": 0.05}
HANDED_BACK = {Status.DELAYED, Status.READY}  # a slow machine looks after the delay


@pytest.fixture
def newer(app: Penstock, make_app: MakeApp) -> Penstock:
    return make_app(prefix=app.settings.prefix)


@asynccontextmanager
async def registered(app: Penstock, release: str) -> AsyncIterator[None]:
    """A worker of this release that claims nothing is alive during the block."""
    turn, run = app.queue("q").first.bindings.turn, app._driver.aio.run
    registration = Registration("host:7", 1, release=Release(release, release))
    assert (await run(turn("other", 1, lease=60, want=0, registration=registration))).alive
    yield
    assert (await run(turn("other", 2, lease=60, want=0, once=True))).alive


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_of_a_newer_release_waits_for_its_worker(app: Penstock, newer: Penstock, kind: str):
    define, arguments, why = KINDS[kind]
    define(app, newer=False)
    job = await define(newer, newer=True).enqueue.aio(*arguments)
    async with registered(newer, "v2"):
        await run_burst(app, **OLD)
    info = await job.info.aio()
    assert (info.status in HANDED_BACK, info.attempts, why in info.reason) == (True, 0, True)
    assert info.reason.endswith("(release v1); it was handed back for a worker of release v2")
    with pytest.raises(ResultTimeout, match="waits for a worker that can read it"):
        await job.result.aio(0)
    async with running_worker(newer):
        assert await job.result.aio(scaled(10)) == "USD"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_producer_may_be_deployed_before_the_first_worker_of_its_release(
    app: Penstock, newer: Penstock, kind: str
):
    define, arguments, why = KINDS[kind]
    define(app, newer=False)
    job = await define(newer, newer=True).enqueue.aio(*arguments)
    await run_burst(app, **OLD)
    info = await job.info.aio()
    assert (info.status in HANDED_BACK, info.attempts, why in info.reason) == (True, 0, True)
    assert info.reason.endswith("(release v1)")
    async with running_worker(newer):
        assert await job.result.aio(scaled(10)) == "USD"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_no_release_can_read_is_a_dead_letter_in_the_end(
    app: Penstock, newer: Penstock, clock: Time, kind: str
):
    define, arguments, why = KINDS[kind]
    define(app, newer=False)
    job = await define(newer, newer=True).enqueue.aio(*arguments)
    await run_burst(app, **OLD)
    clock.advance(3601)
    await run_burst(app, **OLD)
    with pytest.raises(JobFailed, match=r"\(release v1\)") as failed:
        await job.result.aio(0)
    assert why in failed.value.reason
    (attempt,) = (await job.info.aio()).failures
    assert (attempt.number, attempt.outcome, attempt.release) == (1, "handed back", "v1")


async def test_without_a_worker_of_another_release_a_wrong_value_is_a_dead_letter_at_once(
    app: Penstock, newer: Penstock
):
    """An older release may have sent it, and its workers are gone."""

    @newer.task(queue="q", name="ship")
    async def new(number: str) -> None: ...

    _parameter(app, newer=False)
    job = await new.enqueue.aio("one")
    await run_burst(app, **OLD)
    with pytest.raises(JobFailed, match=r"Expected `int`.*\(release v1\)"):
        await job.result.aio(0)


async def test_a_durable_job_continues_in_the_newer_release(app: Penstock, newer: Penstock):
    def define(one: Penstock, kind: type) -> Task[Any, Any]:
        async def ship(order: Any) -> list[str]:
            return [await step(str, getattr(order, "currency", "old")), await wait_for("go", timeout=60)]

        ship.__annotations__ = {"order": kind, "return": list[str]}
        task: Task[Any, Any] = one.task(queue="q")(ship)
        return task

    define(app, OldOrder)
    job = await define(newer, NewOrder).enqueue.aio(NewOrder(1, "USD"))
    await run_burst(newer)
    await job.signal.aio("go", "on")
    async with registered(newer, "v2"):
        await run_burst(app, **OLD)
    assert await job.status.aio() in HANDED_BACK
    async with running_worker(newer):
        assert await job.result.aio(scaled(10)) == ["USD", "on"]


async def test_a_dead_letter_has_the_attempts_of_its_job(app: Penstock, newer: Penstock, do: Do, clock: Time):
    _parameter(app, newer=False)
    job = await _parameter(newer, newer=True).enqueue.aio(1, "USD")
    await run_burst(app, **OLD)
    clock.advance(3601)
    await run_burst(app, **OLD)
    (letter,) = await do(app.queue("q").dead.list)
    assert letter.failures == (await do(job.info)).failures
    assert [(one.outcome, one.release) for one in letter.failures] == [("handed back", "v1")]


async def test_old_calls_run_in_the_newer_release(app: Penstock, newer: Penstock):
    old = _parameter(app, newer=False)
    _parameter(newer, newer=True)
    job = await old.enqueue.aio(1)
    await run_burst(newer)
    assert await job.result.aio(0) == "EUR"
