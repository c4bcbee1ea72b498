"""Hooks at the start and the stop of a worker process, and dependencies that live for a process or for a job."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from penstock import (
    BadCall,
    ConfigurationError,
    JobContext,
    JobFailed,
    Middleware,
    Penstock,
    Retry,
    Status,
    current,
    per_job,
    per_process,
)
from tests.worker import isolated_tasks
from tests.worker.in_process import run_burst

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])

events: list[str] = []


@pytest.fixture(autouse=True)
def _no_events() -> None:
    events.clear()


class Pool:
    def __init__(self, name: str = "pool") -> None:
        self.name = name


async def pool() -> AsyncIterator[Pool]:
    events.append("pool opened")
    yield Pool()
    events.append("pool closed")


def session(db: Pool = per_process(pool)) -> Iterator[str]:
    events.append("session opened")
    try:
        yield f"session of {db.name}"
    except OSError:
        events.append("session rolled back")
        raise
    finally:
        events.append("session closed")


def task_of(app: Penstock, kind: str, **options: Any) -> Any:
    def work(
        n: int, one: str = per_job(session), *, db: Pool = per_process(pool), again: str = per_job(session)
    ) -> list[Any]:
        events.append(f"job {n}")
        if n < 0:
            raise OSError
        return [n, one, db.name, again]

    async def work_on_the_loop(
        n: int, one: str = per_job(session), *, db: Pool = per_process(pool), again: str = per_job(session)
    ) -> list[Any]:
        return work(n, one, db=db, again=again)

    function = work if kind == "def" else work_on_the_loop
    return app.task(queue="q", name="work", **options)(function)


@BOTH_KINDS
async def test_hooks_and_dependencies_enclose_the_jobs_of_a_worker(app: Penstock, kind: str):
    @app.on_start
    async def begin() -> None:
        events.append("start")

    @app.on_stop
    def end() -> None:
        events.append("stop")

    class Around(Middleware):
        def execute(self, job: JobContext) -> Iterator[None]:
            events.append("hook in")
            yield
            events.append("hook out")

    app.add_middleware(Around())
    task = task_of(app, kind)
    jobs = [await task.enqueue.aio(n) for n in range(2)]
    await run_burst(app, concurrency=1)
    assert [await job.result.aio(0) for job in jobs] == [
        [n, "session of pool", "pool", "session of pool"] for n in range(2)
    ]
    assert events == [
        "start",
        "pool opened",
        "hook in",
        "session opened",
        "job 0",
        "session closed",
        "hook out",
        "hook in",
        "session opened",
        "job 1",
        "session closed",
        "hook out",
        "pool closed",
        "stop",
    ]


@BOTH_KINDS
async def test_a_dependency_sees_the_error_of_its_job(app: Penstock, kind: str):
    task = task_of(app, kind, retry=Retry(1, base=0))
    job = await task.enqueue.aio(-1)
    await run_burst(app)
    assert await job.status.aio() is Status.DEAD
    run = ["session opened", "job -1", "session rolled back", "session closed"]
    assert events == ["pool opened", *run, *run, "pool closed"]


@BOTH_KINDS
async def test_a_dependency_may_settle_the_error_of_its_job(app: Penstock, kind: str):
    def forgiving() -> Iterator[int]:
        with contextlib.suppress(KeyError):
            yield 1

    async def fails_async(own: int = per_job(forgiving)) -> None:
        raise KeyError("x")

    def fails(own: int = per_job(forgiving)) -> None:
        raise KeyError("x")

    job = await app.task(fails_async if kind == "async def" else fails).enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) is None


async def test_a_parameter_that_a_worker_fills_is_no_argument_of_a_call(app: Penstock):
    task = task_of(app, "async def")
    with pytest.raises(BadCall, match="no parameter db"):
        task.call(1, db=Pool())
    with pytest.raises(BadCall, match="takes 1 positional argument, 2 were given"):
        task.call(1, "session")
    assert await task(1, "mine", db=Pool("own"), again="x") == [1, "mine", "own", "x"]
    with pytest.raises(AttributeError, match=r"per_process\(pool\) is filled in by a worker"):
        await task(1)


def never() -> Iterator[int]:
    if events:
        yield 1


def twice() -> Iterator[int]:
    yield 1
    yield 2


async def async_twice() -> AsyncIterator[int]:
    with contextlib.suppress(OSError):
        yield 1
    yield 2


@pytest.mark.parametrize(
    ("source", "how"), [(never, "never yields|yields never"), (twice, "yields twice"), (async_twice, "yields twice")]
)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_dependency_that_does_not_yield_once_fails_the_job_with_its_name(
    app: Penstock, source: Any, how: str, fails: bool
):
    @app.task(queue="q")
    async def work(n: int, value: int = per_job(source)) -> None:
        if fails:
            raise OSError

    job = await work.enqueue.aio(1)
    await run_burst(app)
    with pytest.raises(JobFailed, match=rf"dependency {source.__name__} ({how})|OSError") as failed:
        await job.result.aio(0)
    assert source is never or source is twice or "dependency" in failed.value.reason
    if not fails:
        assert f"dependency {source.__name__}" in failed.value.reason


def plain() -> int:
    return 1


def with_parameter(n: int) -> Iterator[int]:
    yield n


def of_a_job(one: str = per_job(session)) -> Iterator[str]:
    yield one


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: per_job(plain), r"per_job\(plain\): give a generator"),  # type: ignore[arg-type]
        (lambda _: per_process(with_parameter), "nothing fills its parameter 'n'"),
        (lambda _: per_process(of_a_job), "cannot use one that lives for a job"),
        (lambda app: app.on_start(plain_with_parameter), "on_start.*called without arguments"),
        (lambda app: app.on_stop(twice), "on_stop.*does not yield"),
    ],
    ids=range(5),
)
async def test_what_cannot_work_is_refused_where_it_is_written(app: Penstock, make: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        make(app)


def plain_with_parameter(n: int) -> None: ...


async def async_session() -> AsyncIterator[str]:
    yield "x"


async def test_a_task_that_cannot_have_its_dependency_is_refused(app: Penstock):
    with pytest.raises(ConfigurationError, match="a `def` task runs in a thread"):

        @app.task
        def work(n: int, one: str = per_job(async_session)) -> None: ...

    with pytest.raises(ConfigurationError, match="last, or after a"):

        @app.task
        async def other(n: int, one: str = per_job(async_session), m: int = 1) -> None: ...


async def test_a_worker_whose_start_hook_fails_takes_no_job(app: Penstock):
    @app.on_start
    def begin() -> None:
        raise OSError("no database")

    @app.on_stop
    def end() -> None:
        events.append("stop")

    task = task_of(app, "def")
    job = await task.enqueue.aio(1)
    with pytest.raises(OSError, match="no database"):
        await run_burst(app)
    assert events == ["stop"]
    assert await job.status.aio() is Status.READY


async def test_an_error_in_a_stop_hook_is_logged(app: Penstock, caplog: pytest.LogCaptureFixture):
    @app.on_stop
    async def end() -> None:
        await asyncio.sleep(0)
        raise OSError("no database")

    job = await task_of(app, "def").enqueue.aio(1)
    await run_burst(app)
    assert await job.status.aio() is Status.COMPLETED
    assert "the hook" in caplog.text
    assert events[-1] == "pool closed"


async def test_a_dependency_sees_the_job(app: Penstock):
    def own_id() -> Iterator[str]:
        yield current().id

    @app.task(queue="q")
    async def work(own: str = per_job(own_id)) -> str:
        return own

    job = await work.enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == job.id


def adopt(app: Penstock, task: Any, **options: Any) -> Any:
    return app.task(queue="q", isolate=True, name=task.name, **options)(task.__wrapped__)


async def test_an_isolated_run_opens_dependencies_in_its_own_process(app: Penstock, tmp_path: Path):
    jobs = [
        await adopt(app, one).enqueue.aio(str(tmp_path / "note"))
        for one in (isolated_tasks.use_pool, isolated_tasks.use_async_pool)
    ]
    await run_burst(app)
    own, *pids = await jobs[0].result.aio(0)
    assert pids == [own]
    own, *pids = await jobs[1].result.aio(0)
    assert pids == [own, own]


async def test_a_dependency_in_an_annotation_is_refused_with_what_to_write(app: Penstock):
    def session() -> Iterator[str]:
        yield "open"

    with pytest.raises(ConfigurationError, match=r"write `s: str = per_job\(.*session\)`"):

        @app.task
        def task(day: str, s: Annotated[str, per_job(session)]) -> None: ...

    def user(s: Annotated[str, per_job(session)]) -> Iterator[str]:
        yield s

    with pytest.raises(ConfigurationError, match=r"write `s: str = per_job\(.*session\)`"):
        per_job(user)


async def test_a_dependency_in_an_annotation_that_is_a_text_is_refused_at_the_first_call(app: Penstock):
    def task(day: str, s: "Annotated[str, per_process(_text)]") -> None: ...

    made = app.task(task)
    with pytest.raises(ConfigurationError, match=r"task task: .*write `s: str = per_process\(_text\)`"):
        made.call("monday")  # type: ignore[call-arg]


def _text() -> Iterator[str]:
    yield "open"
