"""How a run ends: a result, a retry, a dead letter, a drop; whatever the task does, the worker lives on."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import DeadLetter, Drop, JobCancelled, JobFailed, Penstock, Retry, RetryLater, Status
from tests.conftest import MakeApp, Time
from tests.speed import scaled
from tests.worker.work import at_work, burst

KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


def task_of(app: Penstock, kind: str, body: Callable[[], Any], **options: Any) -> Any:
    """A task of either kind that does what `body` does."""

    def in_a_thread() -> Any:
        return body()

    async def on_the_loop() -> Any:
        return body()

    chosen: Any = in_a_thread if kind == "def" else on_the_loop
    return app.task(queue="q", **{"name": "task", **options})(chosen)


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


async def the_letter(app: Penstock) -> DeadLetter:
    (letter,) = await app.queue("q").dead.list.aio()
    return letter


# --- results ---


@KINDS
async def test_a_task_is_run_and_its_result_kept(app: Penstock, kind: str):
    task = task_of(app, kind, lambda: {"a": [1, None]})
    job = await task.enqueue.aio()
    await burst(app)
    assert await job.result.aio(0) == {"a": [1, None]}
    assert (await app.queue("q").count.aio()).completed == 1


async def test_several_task_types_share_a_queue(app: Penstock):
    @app.task(queue="q")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(queue="q")
    def upper(text: str) -> str:
        return text.upper()

    sums = await app.enqueue_many.aio(add.call(n, 1) for n in range(20))
    words = await app.enqueue_many.aio(upper.call(text) for text in "abc")
    await burst(app)
    assert [await job.result.aio(0) for job in sums] == list(range(1, 21))
    assert [await job.result.aio(0) for job in words] == ["A", "B", "C"]


@pytest.mark.parametrize("ttl", [None, 0])
@KINDS
async def test_a_task_that_returns_nothing_is_completed(app: Penstock, kind: str, ttl: float | None):
    job = await task_of(app, kind, lambda: None, result_ttl=ttl).enqueue.aio()
    await burst(app)
    assert await job.status.aio() is (Status.UNKNOWN if ttl == 0 else Status.COMPLETED)


@KINDS
async def test_a_result_that_cannot_be_encoded_makes_a_dead_letter(app: Penstock, kind: str):
    await task_of(app, kind, object, retry=5).enqueue.aio()
    await burst(app)
    letter = await the_letter(app)
    assert letter.reason == "the result of task: a object cannot be written as JSON"
    assert letter.attempts == 1


async def test_a_result_above_the_limit_makes_a_dead_letter(make_app: MakeApp):
    app = make_app(max_payload=1000)
    await task_of(app, "def", lambda: "x" * 1000).enqueue.aio()
    await burst(app)
    assert "1,002 bytes, the limit is 1,000" in (await the_letter(app)).reason


async def test_a_result_that_is_not_kept_need_not_be_encoded(app: Penstock):
    job = await task_of(app, "def", object, result_ttl=0).enqueue.aio()
    await burst(app)
    assert await job.status.aio() is Status.UNKNOWN
    assert (await app.queue("q").count.aio()).completed == 1


# --- failures ---


@KINDS
async def test_a_failure_without_a_policy_makes_a_dead_letter(app: Penstock, kind: str):
    job = await task_of(app, kind, raising(ValueError("no such user é"))).enqueue.aio()
    worker = await burst(app)
    letter = await the_letter(app)
    assert (letter.id, letter.reason, letter.attempts) == (job.id, "ValueError: no such user é", 1)
    assert "Traceback" in letter.traceback
    assert "test_endings.py" in letter.traceback
    assert letter.worker == worker.name
    with pytest.raises(JobFailed, match="no such user") as caught:
        await job.result.aio(0)
    assert caught.value.traceback == letter.traceback


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), "the task called sys.exit(3); raise an exception instead"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (BaseException("base"), "BaseException: base"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(7), ""),
        (Unspeakable(), "Unspeakable: (its text cannot be read)"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, BaseException) else None,
)
@KINDS
async def test_whatever_a_task_raises_the_worker_lives_on(app: Penstock, kind: str, error: BaseException, reason: str):
    await task_of(app, kind, raising(error), name="bad").enqueue.aio()
    good = await task_of(app, kind, lambda: 7, name="good").enqueue.aio()
    await burst(app, concurrency=1)
    assert reason in (await the_letter(app)).reason
    assert await good.result.aio(0) == 7


@KINDS
async def test_sys_exit_ends_the_job_only(app: Penstock, kind: str):
    await task_of(app, kind, lambda: sys.exit("bye")).enqueue.aio()
    await burst(app)
    assert (await the_letter(app)).reason.startswith("the task called sys.exit('bye')")


async def test_a_def_task_that_returns_an_awaitable_says_what_to_do(app: Penstock):
    forgotten: list[Any] = []

    def body() -> Any:
        forgotten.append(asyncio.sleep(0))
        return forgotten[0]

    await task_of(app, "def", body).enqueue.aio()
    await burst(app)
    forgotten[0].close()
    assert "make it an `async def`" in (await the_letter(app)).reason


async def test_a_very_long_traceback_is_cut(app: Penstock):
    await task_of(app, "def", raising(ValueError("x" * 100_000))).enqueue.aio()
    await burst(app)
    assert len((await the_letter(app)).traceback) == 16_000


# --- retries ---


@KINDS
async def test_a_failed_job_is_retried_as_often_as_its_policy_says(app: Penstock, kind: str):
    calls = []

    def body() -> int:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    job = await task_of(app, kind, body, retry=Retry(2, base=0.01)).enqueue.aio()
    async with at_work(app):
        assert await job.result.aio(scaled(20)) == 3
    assert (await app.queue("q").count.aio()).retried == 2


async def test_after_its_last_retry_it_is_a_dead_letter(app: Penstock, clock: Time):
    await task_of(app, "def", raising(ValueError("no")), retry=2).enqueue.aio()
    for n in (1, 2):
        await burst(app)
        counts = await app.queue("q").count.aio()
        assert (counts.delayed, counts.dead, counts.retried) == (1, 0, n)
        clock.advance(10)
    await burst(app)
    letter = await the_letter(app)
    assert (letter.attempts, letter.deliveries) == (3, 3)


async def test_retries_wait_longer_each_time_and_not_together(app: Penstock, clock: Time):
    task = task_of(app, "def", raising(ValueError("no")), retry=Retry(5, base=10, factor=3, cap=50, jitter=0.5))
    jobs = [await task.enqueue.aio() for _ in range(20)]
    for least, most in ((5, 10), (15, 30), (25, 50), (25, 50)):
        await burst(app)
        waits = [((await job.info.aio()).since or 0) - clock.now for job in jobs]
        assert all(least - 0.01 <= wait <= most + 0.01 for wait in waits)
        assert len({round(wait, 2) for wait in waits}) > 10
        clock.advance(60)


async def test_only_errors_of_the_named_types_are_retried(app: Penstock):
    policy = Retry(3, on=LookupError, never=IndexError)
    ends = {}
    for error in (KeyError("k"), IndexError("i"), ValueError("v")):
        name = type(error).__name__
        ends[name] = await task_of(app, "def", raising(error), retry=policy, name=name).enqueue.aio()
    await burst(app)
    assert [await job.status.aio() for job in ends.values()] == [Status.DELAYED, Status.DEAD, Status.DEAD]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
async def test_what_is_no_exception_is_not_retried_unless_named(app: Penstock, error: BaseException):
    for policy, name in ((Retry(3), "usual"), (Retry(3, on=BaseException), "named")):
        await task_of(app, "def", raising(error), retry=policy, name=name).enqueue.aio()
    await burst(app)
    counts = await app.queue("q").count.aio()
    assert (counts.dead, counts.delayed) == (1, 1)


async def test_a_task_can_ask_for_its_retry(app: Penstock, clock: Time):
    with_policy = task_of(app, "def", raising(Retry), retry=Retry(1, on=KeyError, base=100, jitter=0), name="with")
    without = task_of(app, "def", raising(Retry()), name="without")
    own = task_of(app, "def", raising(Retry(1, base=7, jitter=0)), retry=5, name="own")
    jobs = [await task.enqueue.aio() for task in (with_policy, without, own)]
    await burst(app)
    waits = [((await job.info.aio()).since or 0) - clock.now for job in jobs]
    assert waits[0] == pytest.approx(100, abs=0.01)
    assert 0.5 <= waits[1] <= 1
    assert waits[2] == pytest.approx(7, abs=0.01)
    for _ in range(3):
        clock.advance(200)
        await burst(app)
    letters = {letter.body[0]: letter.attempts for letter in await app.queue("q").dead.list.aio()}
    assert letters == {"with": 2, "without": 4, "own": 2}


async def test_run_me_later_uses_up_no_retry(app: Penstock, clock: Time):
    runs = []

    def body() -> int:
        runs.append(1)
        if len(runs) < 6:
            raise RetryLater(30, "the shop is closed")
        return len(runs)

    job = await task_of(app, "def", body, retry=1).enqueue.aio()
    for _ in range(5):
        await burst(app)
        info = await job.info.aio()
        assert (info.status, info.attempts, info.reason) == (Status.DELAYED, 0, "the shop is closed")
        clock.advance(29.9)
        await burst(app)
        assert (await job.status.aio()) is Status.DELAYED
        clock.advance(0.1)
    await burst(app)
    assert await job.result.aio(0) == 6


@KINDS
async def test_a_dropped_job_leaves_neither_result_nor_dead_letter(app: Penstock, kind: str):
    job = await task_of(app, kind, raising(Drop("stale: é")), retry=5).enqueue.aio()
    other = await task_of(app, kind, raising(Drop), name="bare").enqueue.aio()
    await burst(app)
    counts = await app.queue("q").count.aio()
    assert (counts.dead, counts.waiting, counts.dropped, counts.completed) == (0, 0, 2, 0)
    assert await job.status.aio() is Status.DROPPED
    with pytest.raises(JobCancelled, match="dropped by its task: stale"):
        await job.result.aio(0)
    with pytest.raises(JobCancelled, match="dropped by its task"):
        await other.result.aio(0)


@pytest.mark.parametrize(
    "error",
    [
        lambda: Drop("\ud800"),
        lambda: RetryLater(60, "\ud800"),
        lambda: RetryLater(float("inf")),
        lambda: RetryLater(float("nan")),
        lambda: RetryLater(1e300),
        lambda: Retry(5, base=1e300, cap=1e300),
        lambda: Retry(5, base=float("inf"), cap=float("inf")),
    ],
    ids=range(7),
)
@KINDS
async def test_an_ending_that_cannot_be_meant_does_not_stop_the_worker(
    app: Penstock, kind: str, error: Callable[[], Exception]
):
    def end() -> None:
        raise error()

    job = await task_of(app, kind, end, name="bad").enqueue.aio()
    good = await task_of(app, kind, lambda: 7, name="good").enqueue.aio()
    await burst(app, concurrency=1)
    assert await good.result.aio(0) == 7
    assert await job.status.aio() in {Status.DEAD, Status.DELAYED, Status.DROPPED}


@KINDS
async def test_a_result_whose_encoding_raises_anything_makes_a_dead_letter(app: Penstock, kind: str):
    class Lazy:
        def model_dump(self, mode: str) -> Any:
            raise KeyError(mode)

    job = await task_of(app, kind, Lazy).enqueue.aio()
    await burst(app)
    assert (await the_letter(app)).id == job.id
    assert "its result cannot be encoded: KeyError" in (await the_letter(app)).reason


async def test_a_task_that_cancels_itself_is_a_dead_letter(app: Penstock):
    @app.task(queue="q")
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    await give_up.enqueue.aio()
    await burst(app)
    assert (await the_letter(app)).reason == "CancelledError: the task cancelled itself"


# --- timeouts ---


async def test_a_task_that_runs_too_long_is_stopped(app: Penstock):
    stopped = asyncio.Event()

    @app.task(queue="q", timeout=0.1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job = await slow.enqueue.aio()
    async with at_work(app):
        with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.1 s"):
            await job.result.aio(scaled(20))
    assert stopped.is_set()


async def test_a_timeout_is_retried_like_any_failure(app: Penstock):
    @app.task(queue="q", timeout=0.02, retry=Retry(1, on=TimeoutError, base=60))
    async def slow() -> None:
        await asyncio.sleep(60)

    job = await slow.enqueue.aio()
    await burst(app)
    assert await job.status.aio() is Status.DELAYED


async def test_a_timeout_of_the_tasks_own_is_told_as_it_is(app: Penstock):
    await task_of(app, "async def", raising(TimeoutError("the shop's")), timeout=5).enqueue.aio()
    await burst(app)
    assert (await the_letter(app)).reason == "TimeoutError: the shop's"


async def test_a_task_within_its_timeout_is_not_disturbed(app: Penstock):
    @app.task(queue="q", timeout=30)
    async def quick() -> int:
        await asyncio.sleep(0.01)
        return 1

    job = await quick.enqueue.aio()
    await burst(app)
    assert await job.result.aio(0) == 1
