"""`async def` jobs that do not suspend share an asyncio task. No job notices that, whatever it does with its task."""

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from penstock import Batch, JobContext, Middleware, Penstock, Status
from penstock.errors import JobCancelled
from penstock.worker import streak
from penstock.worker.threads import ThreadPool
from tests.conftest import MakeApp, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def job_task(app: Penstock, body: Callable[[int], Awaitable[Any] | None], **options: Any) -> Any:
    """A task that calls `body` with the job's number, and awaits what it returns."""

    async def job(n: int) -> Any:
        found = body(n)
        return await found if found is not None else n

    return app.task(queue="q", **options)(job)


async def run_jobs(app: Penstock, task: Any, jobs: int = 30, **settings: Any) -> list[Any]:
    enqueued = await app.enqueue_many.aio(task.call(n) for n in range(jobs))
    await run_burst(app, **settings)
    return [await job.result.aio(0) for job in enqueued]


@dataclass
class Rounds:
    """The rounds of the event loop so far."""

    done: int = 0


@contextlib.contextmanager
def counted_rounds() -> Iterator[Rounds]:
    loop, rounds, handles = asyncio.get_running_loop(), Rounds(), list[asyncio.Handle]()

    def tick() -> None:
        rounds.done += 1
        handles[:] = [loop.call_soon(tick)]

    tick()
    yield rounds
    handles[0].cancel()


# --- streaks ---


async def test_jobs_that_do_not_suspend_share_an_asyncio_task(app: Penstock):
    names: list[str] = []
    task = job_task(app, lambda n: names.append(current().get_name()))
    await run_jobs(app, task, 200)
    assert len(names) == 200
    assert 5 <= max(Counter(names).values()) <= streak.MOST_JOBS  # a streak ends early on a slow machine


async def test_a_streak_lets_the_loop_do_other_work(app: Penstock):
    """At most so many jobs, and none after a millisecond, run between two rounds of the loop."""
    seen: list[int] = []

    def body(n: int) -> None:
        seen.append(rounds.done)
        if n % 5 == 0:
            time.sleep(0.0015)

    with counted_rounds() as rounds:
        await run_jobs(app, job_task(app, body), 300, concurrency=1)
    assert max(Counter(seen).values()) <= streak.MOST_JOBS
    slow = [seen[n] for n in range(0, 300, 5)]
    assert len(set(slow)) == len(slow)


async def test_a_task_whose_jobs_suspend_gets_asyncio_tasks_that_start_together(app: Penstock):
    begun: list[int] = []

    async def wait(n: int) -> None:
        begun.append(rounds.done)
        await asyncio.sleep(0.01)

    with counted_rounds() as rounds:
        await run_jobs(app, job_task(app, wait), 40, concurrency=20)
    assert max(Counter(begun).values()) >= 10


async def test_a_task_returns_to_streaks_when_its_jobs_no_longer_suspend(app: Penstock):
    names: list[str] = []

    def body(n: int) -> Awaitable[Any] | None:
        names.append(current().get_name())
        return asyncio.sleep(0) if n < 20 else None

    await run_jobs(app, job_task(app, body), 300, concurrency=5)
    assert max(Counter(names[-200:]).values()) >= 5


async def test_a_job_that_waits_does_not_hold_up_the_next_one_of_its_streak(app: Penstock):
    event = asyncio.Event()

    def body(n: int) -> Awaitable[Any] | None:
        if n == 9:
            event.set()
        return event.wait() if n == 3 else None

    await asyncio.wait_for(run_jobs(app, job_task(app, body), 10, concurrency=2), scaled(20))


# --- the context and the asyncio task of a job ---


async def test_each_job_of_a_streak_has_a_context_of_its_own(app: Penstock):
    mark.set("the worker's")
    seen: list[str] = []

    def body(n: int) -> None:
        seen.append(mark.get())
        mark.set(f"job {n}")

    await run_jobs(app, job_task(app, body))
    assert set(seen) == {"the worker's"}


async def test_a_job_keeps_its_context_and_its_asyncio_task_when_it_suspends(app: Penstock):
    async def inner() -> str:
        return mark.get()

    async def wait(n: int) -> list[Any]:
        mine = current()
        mark.set(f"job {n}")
        await asyncio.sleep(0)
        called: list[str] = []
        asyncio.get_running_loop().call_soon(lambda: called.append(mark.get()))
        child = await asyncio.create_task(inner())
        in_thread = await asyncio.to_thread(mark.get)
        await asyncio.sleep(0.005 * (n % 3))
        return [mark.get(), child, in_thread, *called, current() is mine]

    for found, n in zip(await run_jobs(app, job_task(app, wait), concurrency=7), range(30), strict=True):
        assert found == [f"job {n}"] * 4 + [True]


async def test_two_jobs_that_have_suspended_have_two_asyncio_tasks(app: Penstock):
    seen: set[asyncio.Task[Any]] = set()
    done = asyncio.Event()

    async def wait(n: int) -> None:
        seen.add(current())
        if len(seen) == 10:
            done.set()
        await done.wait()

    await run_jobs(app, job_task(app, wait), 10)
    assert len(seen) == 10


@pytest.mark.parametrize("uncancelled", [False, True])
async def test_a_job_that_cancels_its_own_task_harms_no_other(app: Penstock, uncancelled: bool):
    def body(n: int) -> Awaitable[Any] | None:
        if n % 3 == 0:
            current().cancel()
            if uncancelled:
                current().uncancel()
            return None
        return asyncio.sleep(0) if n % 3 == 1 else None

    await run_jobs(app, job_task(app, body), 30)
    assert (await app.queue("q").count.aio()).completed == 30


async def test_a_job_that_cancels_itself_and_then_waits_fails_alone(app: Penstock):
    def body(n: int) -> Awaitable[Any] | None:
        if n == 4:
            current().cancel()
        return asyncio.sleep(0) if n in {4, 5} else None

    task = job_task(app, body)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(10))
    await run_burst(app)
    assert [await job.status.aio() for job in jobs] == [Status.DEAD if n == 4 else Status.COMPLETED for n in range(10)]
    (letter,) = await app.queue("q").dead.list.aio()
    assert letter.reason == "CancelledError: the task cancelled itself"


@pytest.mark.parametrize("how", ["a bound method", "the task", "a weak key"])
async def test_whoever_keeps_the_task_of_a_job_reaches_no_other_job_with_it(app: Penstock, how: str):
    """As a timer that cancels a task does, or a library that keeps a session for each task."""
    kept: list[Any] = []
    sessions: Any = {} if how == "the task" else __import__("weakref").WeakKeyDictionary()
    found: list[object] = []

    def body(n: int) -> Awaitable[Any] | None:
        if how == "a bound method":
            if n % 2 == 0:
                kept.append(current().cancel)
                return None
            return waited(n)
        found.append(sessions.get(current()))
        sessions[current()] = n
        return None

    async def waited(n: int) -> None:
        await asyncio.sleep(0)
        for cancel in kept:
            cancel()
        await asyncio.sleep(0)

    await run_jobs(app, job_task(app, body), 20)
    assert (await app.queue("q").count.aio()).completed == 20
    assert not any(one is not None for one in found)


async def test_a_job_does_not_see_the_name_that_another_gave_its_task(app: Penstock):
    seen: list[str] = []

    def body(n: int) -> None:
        seen.append(current().get_name())
        current().set_name("mine")

    await run_jobs(app, job_task(app, body))
    assert "mine" not in seen


async def test_what_a_job_wants_called_at_the_end_of_its_task_is_called_then(app: Penstock):
    called: list[int] = []

    def body(n: int) -> Awaitable[Any] | None:
        if n % 2 == 0:
            current().add_done_callback(lambda _: called.append(n))
            return None
        return until(lambda: n - 1 in called)

    await run_jobs(app, job_task(app, body), 10, concurrency=1)
    assert called == [0, 2, 4, 6, 8]


# --- libraries that look at the current task ---


async def test_timeouts_of_asyncio_work_in_a_streak(app: Penstock):
    async def body(n: int) -> str:
        try:
            async with asyncio.timeout(0.01 if n % 3 == 0 else 30):
                if n % 3 == 0:
                    await asyncio.sleep(30)
                if n % 3 == 1:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return "timed out"
        assert not current().cancelling()
        return "in time"

    found = await run_jobs(app, job_task(app, body), 30, concurrency=10)
    assert found == ["timed out", "in time", "in time"] * 10


async def test_task_groups_and_cancel_scopes_of_anyio_work_in_a_streak(app: Penstock):
    async def body(n: int) -> Any:
        with anyio.move_on_after(0.01 if n % 4 == 0 else 30) as scope:
            if n % 4 == 0:
                await anyio.sleep(30)
            if n % 4 == 1:
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep, 0)
            if n % 4 == 2:
                scope.cancel()
        try:
            with anyio.fail_after(30):
                await anyio.to_thread.run_sync(lambda: None) if n % 8 == 1 else None
        finally:
            assert not current().cancelling()
        return scope.cancelled_caught

    found = await run_jobs(app, job_task(app, body), 40, concurrency=10)
    assert found == [True, False, False, False] * 10


async def test_anyio_knows_the_library_in_jobs_that_suspend_and_in_others(app: Penstock):
    from anyio._core._eventloop import current_async_library

    async def body(n: int) -> list[str | None]:
        before = current_async_library()
        if n % 2:
            await anyio.lowlevel.checkpoint()
        return [before, current_async_library(), type(anyio.Event()).__name__ and "asyncio"]

    assert await run_jobs(app, job_task(app, body), 10) == [["asyncio"] * 3] * 10


# --- timeouts, hooks and endings ---


async def test_the_timeout_of_a_task_counts_from_its_start(app: Penstock):
    async def body(n: int) -> None:
        if n == 1:  # blocks for longer than its timeout, but never suspends
            time.sleep(0.15)
        if n == 2:  # is over its timeout when it suspends
            time.sleep(0.15)
            await asyncio.sleep(0.05)
        if n == 3:
            await asyncio.sleep(30)
        if n == 4:
            await asyncio.sleep(0.001)

    task = job_task(app, body, timeout=0.1)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(6))
    began = time.monotonic()
    await run_burst(app, concurrency=1)
    assert time.monotonic() - began < scaled(10)
    dead = {2, 3}
    assert [await job.status.aio() for job in jobs] == [
        Status.DEAD if n in dead else Status.COMPLETED for n in range(6)
    ]
    letters = await app.queue("q").dead.list.aio()
    assert {letter.reason for letter in letters} == {"TimeoutError: ran longer than its timeout of 0.1 s"}


class Hooks(Middleware):
    """Hooks that suspend around some jobs only, and set a context variable."""

    def __init__(self) -> None:
        self.open = 0
        self.errors: list[str] = []

    async def execute(self, job: JobContext) -> AsyncIterator[None]:
        self.open += 1
        mark.set(job.id)
        if ord(job.id[-1]) % 2:
            await asyncio.sleep(0)
        try:
            yield
        except BaseException as error:
            self.errors.append(type(error).__name__)
            raise
        finally:
            self.open -= 1


class PlainHooks(Middleware):
    def execute(self, job: JobContext) -> Iterator[None]:
        token = mark.set(f"plain {job.id}")
        yield
        mark.reset(token)


async def test_hooks_enclose_jobs_of_a_streak(make_app: MakeApp):
    hooks = Hooks()
    app = make_app()
    for one in (hooks, PlainHooks()):
        app.add_middleware(one)

    async def body(n: int) -> str:
        if n == 5:
            raise ValueError
        if n % 3 == 0:
            await asyncio.sleep(0)
        return mark.get()

    task = job_task(app, body, timeout=30)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(12))
    await run_burst(app)
    for n, job in enumerate(jobs):
        if n != 5:
            assert await job.result.aio(0) == f"plain {job.id}"
    assert hooks.open == 0
    assert hooks.errors == ["ValueError"]


async def test_every_kind_of_end_is_settled_in_a_streak(app: Penstock):
    errors: dict[int, BaseException] = {
        1: ValueError("one"),
        3: asyncio.CancelledError(),
        5: KeyboardInterrupt(),
        7: SystemExit(3),
        9: GeneratorExit(),
        11: TimeoutError("own"),
    }

    async def body(n: int) -> int:
        if n >= 20:
            await asyncio.sleep(0)
        if (error := errors.get(n % 20)) is not None:
            raise error
        return n

    task = job_task(app, body)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(40))
    await run_burst(app)
    assert [await job.status.aio() for job in jobs] == [
        Status.DEAD if n % 20 in errors else Status.COMPLETED for n in range(40)
    ]
    reasons = Counter(letter.reason for letter in await app.queue("q").dead.list.aio())
    assert reasons["TimeoutError: own"] == reasons["ValueError: one"] == 2


class Adder:
    def __init__(self, more: int) -> None:
        self.more = more

    async def add(self, n: int) -> int:
        if n % 2:
            await asyncio.sleep(0)
        return self.more + n


async def test_a_bound_method_is_a_task_like_others(app: Penstock):
    task = app.task(queue="q")(Adder(100).add)
    assert await run_jobs(app, task, 10) == [100 + n for n in range(10)]


async def test_a_function_whose_signature_lies_fails_as_a_job(app: Penstock):
    async def takes_none() -> None: ...

    takes_none.__signature__ = __import__("inspect").signature(lambda n: None)  # type: ignore[attr-defined]
    takes_none.__annotations__ = {}
    job = await app.task(queue="q")(takes_none).enqueue.aio(1)  # type: ignore[call-arg]
    good = job_task(app, lambda n: None)
    assert await run_jobs(app, good, 5) == [0, 1, 2, 3, 4]
    assert "takes 0 positional arguments" in ((await job.info.aio()).reason or "")


def test_an_error_after_a_caught_cancellation_does_not_get_it_as_context():
    @coroutine
    def pause() -> Iterator[str]:
        yield "paused"

    async def job() -> None:
        with contextlib.suppress(ValueError):
            await pause()
        raise KeyError("later")

    steps = job()
    rest = streak.rest_of(steps, steps.send(None))
    assert rest.send(None) == "paused"
    with pytest.raises(KeyError) as caught:
        rest.throw(ValueError())
    assert caught.value.__context__ is None


# --- the worker's own cancellations ---


async def test_a_job_that_stops_the_worker_ends_its_streak(app: Penstock):
    ran: list[int] = []

    def body(n: int) -> None:
        ran.append(n)
        if n == 5:
            worker.stop()

    task = job_task(app, body)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(30))
    async with running_worker(app) as worker:
        await until(lambda: 5 in ran)
    assert ran == list(range(6))
    assert [await job.status.aio() for job in jobs] == [Status.COMPLETED] * 6 + [Status.READY] * 24
    assert (await jobs[6].info.aio()).deliveries == 0


async def test_a_job_that_suspended_in_a_streak_is_handed_back_by_a_second_stop(app: Penstock):
    cancelled: list[int] = []

    async def body(n: int) -> None:
        if n == 3:
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.append(n)

    task = job_task(app, body)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(8))
    async with running_worker(app) as worker:
        await until(lambda: len(worker._runs.running) == 1 and not worker._runs.waiting)
        worker.stop()
        worker.stop()
    assert cancelled == [3]
    assert await jobs[3].status.aio() is Status.READY
    assert (await app.queue("q").count.aio()).completed == 7


async def test_a_job_that_suspended_in_a_streak_is_cancelled_when_its_lease_is_lost(app: Penstock):
    cancelled, ran = asyncio.Event(), list[int]()

    async def body(n: int) -> None:
        ran.append(n)
        if n == 3 and not cancelled.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    task = job_task(app, body)
    await app.enqueue_many.aio(task.call(n) for n in range(8))
    async with running_worker(app) as worker:
        # Those that are not settled would run again as well.
        while (await app.queue("q").count.aio()).completed < 7:  # noqa: ASYNC110 - nothing announces this
            await asyncio.sleep(0.01)
        (feed,) = worker._feeds
        await app._driver.aio.run(feed.shard.bindings.abandon(feed.incarnation))
        feed.lease_refused(feed.incarnation)
        await asyncio.wait_for(cancelled.wait(), scaled(20))
        await until(lambda: len(ran) == 9)
    assert (await app.queue("q").count.aio()).completed == 8


async def test_a_streak_that_was_cancelled_before_it_began_holds_nothing_up(app: Penstock):
    """A second stop, or a lost lease, may come between the creation of its asyncio task and the first step of that."""
    task = job_task(app, lambda n: None)
    async with running_worker(app) as worker:
        await until(lambda: hasattr(worker, "_places"))
        begin = worker._places._begin_streak

        def cancelled_at_once(first: Any) -> None:
            begin(first)
            worker._runs.hand_back_running()
            first.asyncio_task.cancel()
            worker._places._begin_streak = begin  # type: ignore[method-assign]

        worker._places._begin_streak = cancelled_at_once  # type: ignore[method-assign]
        jobs = await app.enqueue_many.aio(task.call(n) for n in range(10))
        for job in jobs:
            await job.result.aio(scaled(20))


@pytest.mark.parametrize("how", ["in a streak", "alone"])
async def test_a_job_that_is_cancelled_before_its_first_step_ends_as_cancelled(app: Penstock, how: str):
    """The news of a cancellation may come between the creation of its asyncio task and the first step of that."""
    ran: list[int] = []

    async def body(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0)

    task = job_task(app, body)
    async with running_worker(app) as worker:
        await until(lambda: hasattr(worker, "_places"))
        places = worker._places
        chosen = "_begin_streak" if how == "in a streak" else "_start_alone"
        start = getattr(places, chosen)

        def cancelled_at_once(run: Any, *how: Any) -> None:
            start(run, *how)
            places.cancel(run)
            setattr(places, chosen, start)

        setattr(places, chosen, cancelled_at_once)
        jobs = await app.enqueue_many.aio(task.call(n) for n in range(5))
        for job in jobs:
            with contextlib.suppress(JobCancelled):
                await job.result.aio(scaled(20))
    states = [await job.status.aio() for job in jobs]
    assert sorted(states) == [Status.CANCELLED, *[Status.COMPLETED] * 4]
    assert len(ran) == 4


async def test_a_worker_that_cannot_start_a_thread_ends_with_that_error(app: Penstock, monkeypatch: pytest.MonkeyPatch):
    @app.task(queue="q")
    def in_a_thread() -> None: ...

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPool, "submit", refuse)
    task = job_task(app, lambda n: None)
    await app.enqueue_many.aio([task.call(0), in_a_thread.call(), task.call(1)])
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await run_burst(app)
    assert (await app.queue("q").count.aio()).ready >= 2


async def test_an_error_of_jobs_that_start_after_the_next_turn_ends_the_worker(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
):
    """The next turn is sent first if the queue may have another batch."""

    @app.task(queue="q", batch=Batch(2))
    def in_a_thread(batch: list[int]) -> None: ...

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPool, "submit", refuse)
    await app.enqueue_many.aio(in_a_thread.call(n) for n in range(2))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await run_burst(app, wait=5)
    assert (await app.queue("q").count.aio()).ready == 2


async def test_a_timeout_does_not_count_the_time_before_the_start(app: Penstock):
    """Something else may block the loop between the claim of a job and its first step."""
    loop = asyncio.get_running_loop()
    task = job_task(app, lambda n: asyncio.sleep(0), timeout=0.3)
    async with running_worker(app) as worker:
        await until(lambda: hasattr(worker, "_places"))
        begin = worker._places._begin_streak

        def after_a_block(first: Any) -> None:
            loop.call_soon(time.sleep, 0.4)
            begin(first)

        worker._places._begin_streak = after_a_block  # type: ignore[method-assign]
        job = await task.enqueue.aio(0)
        await job.result.aio(scaled(20))


async def test_the_watchdog_names_the_job_of_a_streak_that_blocks_the_loop(
    app: Penstock, caplog: pytest.LogCaptureFixture
):
    task = job_task(app, lambda n: time.sleep(0.6) if n == 2 else None)
    jobs = await app.enqueue_many.aio(task.call(n) for n in range(4))
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        await run_burst(app, blocked_warning=0.2)
    (text,) = [record.getMessage() for record in caplog.records if "has blocked the event loop" in record.getMessage()]
    assert text.startswith(f"job {jobs[2].id} (job) has blocked")


async def test_threaded_jobs_start_while_a_streak_of_others_is_at_work(app: Penstock):
    seen = threading.Event()

    @app.task(queue="q")
    def in_a_thread() -> None:
        seen.set()

    task = job_task(app, lambda n: None)
    await app.enqueue_many.aio([task.call(0), in_a_thread.call(), *(task.call(n) for n in range(50))])
    await run_burst(app, concurrency=3)
    assert seen.is_set()
    assert (await app.queue("q").count.aio()).completed == 52
