"""Schedules with real workers: declared by tasks, or added at run time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import BadCall, Concurrency, ConfigurationError, Job, Middleware, Penstock, Retry, Status, Unique
from penstock.errors import ScheduleNotFound
from penstock.jobs.middleware import EnqueueContext
from penstock.jobs.release import release_time
from tests.conftest import Do, MakeApp, Time, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def workers(*apps: Penstock, **settings: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as running:
        for app in apps:
            await running.enter_async_context(running_worker(app, **settings))
        yield


async def test_each_tick_runs_once_with_any_number_of_workers_of_two_releases(make_app: MakeApp, monkeypatch: Any):
    first = make_app()
    ran: list[str] = []
    apps = [first] + [make_app(first.settings.prefix) for _ in range(3)]
    for number, app in enumerate(apps):
        monkeypatch.setenv("PENSTOCK_RELEASE", "2026-11-01" if number % 2 else "2026-11-02")

        def report(release: str = "old" if number % 2 else "new") -> None:
            ran.append(release)

        app.task(queue="q", every=5 if number % 2 else 1, name="report")(report)
        async with running_worker(app, burst=True):
            pass
    (before,) = await first.schedules.list.aio()
    assert before.every == 1
    async with workers(*apps):
        await until(lambda: len(ran) >= 3)
        (info,) = await first.schedules.list.aio()
    assert info.last is not None
    ticks = round(info.last - before.next) + 1 if before.next else 0
    assert info.count == ticks
    assert len(ran) in (ticks, ticks + 1)


async def test_a_tick_is_enqueued_on_time_behind_a_backlog(app: Penstock):
    enqueued: list[float] = []

    class Watch(Middleware):
        def enqueue(self, context: EnqueueContext) -> Any:
            enqueued.extend(time.time() for job in context.jobs if job.task == "tick")
            yield

    app.add_middleware(Watch())

    @app.task(queue="q", every=1)
    async def tick() -> None: ...

    @app.task(queue="q")
    async def slow() -> None:
        await asyncio.sleep(0.02)

    await app.enqueue_many.aio(slow.call() for _ in range(600))
    async with running_worker(app, concurrency=2):
        while not (found := await app.schedules.list.aio()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await until(lambda: len(enqueued) >= 2)
        assert (await app.queue("q").count.aio()).ready > 100, "the backlog is still there"
        await app.queue("q").tenant("").purge.aio()
    assert found[0].next is not None
    assert enqueued[0] - found[0].next < 0.9


async def test_a_tick_is_enqueued_while_all_runners_are_busy(app: Penstock):
    @app.task(queue="q", every=1)
    async def tick() -> None: ...

    busy = asyncio.Event()

    @app.task(queue="q")
    async def long() -> None:
        await busy.wait()

    job = await long.enqueue.aio()
    async with running_worker(app, concurrency=1):
        while await job.status.aio() != Status.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(scaled(20)):
                while (await app.queue("q").count.aio()).ready < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            busy.set()


async def test_a_schedule_is_added_listed_paused_triggered_and_removed_at_run_time(app: Penstock, do: Do):
    got: list[str] = []

    @app.task(queue="q")
    async def greet(name: str) -> None:
        got.append(name)

    made = await do(app.schedules.add, "morning", greet.call("ada"), schedule="0 7 * * *", timezone="Europe/Berlin")
    assert (made.id, made.state, made.cron, made.declared) == ("q:morning", "active", "0 7 * * *", False)
    assert made.body == ["greet", {"name": "ada"}]
    assert await do(app.schedules.list) == [made] == [await do(app.schedules.get, "q:morning")]
    await do(app.schedules.pause, "morning")
    assert [one.state for one in await do(app.schedules.list)] == ["paused"]
    job: Job[None] = await do(app.schedules.trigger, "morning")
    assert job.id.startswith("q:schedule:morning:")
    async with running_worker(app):
        await job.result.aio(30)
    await do(app.schedules.resume, "morning")
    assert (await do(app.schedules.get, "morning")).state == "active"
    await do(app.schedules.remove, "morning")
    assert await do(app.schedules.list) == []
    assert got == ["ada"]


@pytest.mark.parametrize("powers", [{"unique": Unique()}, {"limit": Concurrency(1)}, {"unique": Unique(exact="k")}])
async def test_the_jobs_of_a_declared_schedule_have_what_the_task_declares(app: Penstock, clock: Time, powers: Any):
    @app.task(queue="q", every=60, **powers)
    async def sync(source: str = "all") -> None: ...

    await app.queue("q").pause.aio()
    for _ in range(3):
        await run_burst(app)
        clock.advance(60)
    await run_burst(app)
    counts = await app.queue("q").count.aio()
    assert (counts.ready, counts.parked) == ((1, 0) if "unique" in powers else (1, 2))
    await app.queue("q").purge.aio()


@pytest.mark.parametrize("put", [False, True], ids=["declared", "put"])
async def test_the_ticks_of_a_task_that_left_the_code_wait_for_a_worker_that_has_it(
    app: Penstock, clock: Time, make_app: MakeApp, put: bool
):
    options: Any = {} if put else {"every": 60}

    @app.task(queue="q", **options)
    async def sync() -> None: ...

    @app.task(queue="q")
    async def other() -> None: ...

    without = make_app(prefix=app.settings.prefix)
    without.clock.now_ms = app.clock.now_ms
    without.task(queue="q", name="other")(other.definition.function)
    await app.queue("q").pause.aio()
    await run_burst(app, queues=("q",))
    if put:
        await app.schedules.add.aio("sync", sync.call(), every=60)
    for _ in range(5):
        clock.advance(61)
        without.clock.now_ms = app.clock.now_ms
        await run_burst(without, queues=("q",))
    counts = await app.queue("q").count.aio()
    assert (counts.ready, counts.dead) == (0, 0)
    (info,) = await app.schedules.list.aio()
    assert (info.state, info.count) == ("unserved", 0)
    clock.advance(60 if put else 0)  # one that is declared begins at once, another within a minute
    await run_burst(app, queues=("q",))
    (info,) = await app.schedules.list.aio()
    assert (info.state, info.count) == ("active", 1)  # missed="one"
    assert (await app.queue("q").count.aio()).ready == 1
    await app.queue("q").purge.aio()


async def test_an_unserved_schedule_can_be_paused_and_resumed(app: Penstock, clock: Time, make_app: MakeApp):
    @app.task(queue="q", every=60)
    async def sync() -> None: ...

    without = make_app(prefix=app.settings.prefix)

    @without.task(queue="q")
    async def other() -> None: ...

    await run_burst(app, queues=("q",))
    clock.advance(61)
    without.clock.now_ms = app.clock.now_ms
    await run_burst(without, queues=("q",))
    assert (await app.schedules.get.aio("sync")).state == "unserved"
    await app.schedules.pause.aio("sync")
    assert (await app.schedules.get.aio("sync")).state == "paused"
    await app.schedules.resume.aio("sync")
    assert (await app.schedules.get.aio("sync")).state == "active"
    clock.advance(121)
    without.clock.now_ms = app.clock.now_ms
    await run_burst(without, queues=("q",))
    assert (await app.schedules.get.aio("sync")).state == "unserved"


async def test_an_unknown_schedule_is_one_clear_error(app: Penstock, do: Do):
    app.queue("q")
    for verb in (app.schedules.get, app.schedules.pause, app.schedules.resume, app.schedules.remove):
        with pytest.raises(ScheduleNotFound, match="no schedule 'none' in the queues q"):
            await do(verb, "none")


async def test_a_schedule_added_while_workers_sleep_runs_in_time(app: Penstock):
    ran: list[float] = []

    @app.task(queue="q")
    async def tick() -> None:
        ran.append(time.time())

    async with running_worker(app):
        await asyncio.sleep(0.1)
        made = await app.schedules.add.aio("tick", tick.call(), every=1)
        await until(lambda: ran)
        assert made.next is not None
        await app.schedules.remove.aio("tick")
    assert 0 <= ran[0] - made.next < 0.9


async def test_bad_schedules_are_refused_where_they_are_written(app: Penstock, do: Do):
    with pytest.raises(ConfigurationError, match="unknown"):
        app.task(schedule="0 7 * * *", timezone="Mars/Olympus")(lambda: None)
    with pytest.raises(ConfigurationError, match="bad hour"):
        app.task(schedule="0 99 * * *")(lambda: None)
    with pytest.raises(ConfigurationError, match="either a cron line"):
        app.task(timezone="Europe/Berlin")(lambda: None)

    def greet(name: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"called without arguments, but name has no default"):
        app.task(every=3)(greet)
    with pytest.raises(ConfigurationError, match="no colon"):
        app.task(name="a:b", every=3)(lambda: None)
    task = app.task(queue="q")(greet)
    with pytest.raises(ConfigurationError, match="five fields"):
        await do(app.schedules.add, "x", task.call("ada"), schedule="daily")
    with pytest.raises(ConfigurationError, match="cannot share an id"):
        await do(app.schedules.add, "x", task.using(id="a").call("ada"), every=3)
    with pytest.raises(BadCall, match="takes a call"):
        await do(app.schedules.add, "x", task, every=3)
    assert await do(app.schedules.list) == []


async def test_the_release_is_set_by_the_environment_or_is_the_age_of_the_file(app: Penstock, monkeypatch: Any):
    @app.task(queue="q")
    async def task() -> None: ...

    assert 1e9 < release_time(task.definition.function) <= time.time()
    monkeypatch.setenv("PENSTOCK_RELEASE", "2026-11-23T12:00:00+00:00")
    assert release_time(task.definition.function) == 1795435200
    monkeypatch.setenv("PENSTOCK_RELEASE", "1234567890.5")
    assert release_time(task.definition.function) == 1234567890.5
    for name in ("v2", "1234567"):
        monkeypatch.setenv("PENSTOCK_RELEASE", name)
        assert 1e9 < release_time(task.definition.function) <= time.time()


async def test_the_hooks_of_enqueue_see_scheduled_jobs_and_set_their_trace(app: Penstock):
    traces: list[str] = []

    class Trace(Middleware):
        def enqueue(self, context: EnqueueContext) -> Any:
            for job in context.jobs:
                job.trace = "from the schedule"
            yield

        def execute(self, job: Any) -> Any:
            traces.append(job.trace)
            yield

    app.add_middleware(Trace())

    @app.task(queue="q", every=1)
    async def tick() -> None: ...

    async with running_worker(app):
        await until(lambda: traces)
    assert traces[0] == "from the schedule"


async def test_the_last_runs_of_a_schedule_lead_to_their_jobs(app: Penstock, do: Do):
    @app.task(queue="q", retry=Retry(0))
    async def report(n: int) -> int:
        return 1 // n

    await do(app.schedules.add, "morning", report.call(1), every=3600)
    job: Job[int] = await do(app.schedules.trigger, "morning")
    await run_burst(app)
    await do(app.schedules.add, "morning", report.call(0), every=3600)
    dead: Job[int] = await do(app.schedules.trigger, "morning")
    await run_burst(app)
    (one,) = await do(app.schedules.list)
    assert [(run.job, run.outcome) for run in one.runs] == [(dead.id, Status.DEAD), (job.id, Status.COMPLETED)]
    assert one == await do(app.schedules.get, "morning")
    assert all(run.seconds is not None and 0 <= run.seconds < 60 for run in one.runs)
    assert await app.job(one.runs[1].job).result.aio(timeout=0) == 1
