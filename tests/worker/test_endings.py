"""How a run ends: a result, a retry, a dead letter or a drop. Nothing that a task does stops the worker."""

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Drop, JobFailed, Penstock, Retry, RetryLater, Status
from penstock.errors import JobCancelled
from penstock.info import DeadLetter
from tests.conftest import MakeApp, Time
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])


def task_of(app: Penstock, kind: str, body: Callable[[], Any], **options: Any) -> Any:
    """A task that calls `body`, on the loop or in a thread."""

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


async def only_dead_letter(app: Penstock) -> DeadLetter:
    (letter,) = await app.queue("q").dead.list.aio()
    return letter


# --- results ---


@BOTH_KINDS
async def test_a_task_is_run_and_its_result_kept(app: Penstock, kind: str):
    task = task_of(app, kind, lambda: {"a": [1, None]})
    job = await task.enqueue.aio()
    await run_burst(app)
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
    await run_burst(app)
    assert [await job.result.aio(0) for job in sums] == list(range(1, 21))
    assert [await job.result.aio(0) for job in words] == ["A", "B", "C"]


@pytest.mark.parametrize("ttl", [None, 0])
@BOTH_KINDS
async def test_a_task_that_returns_nothing_is_completed(app: Penstock, kind: str, ttl: float | None):
    job = await task_of(app, kind, lambda: None, result_ttl=ttl).enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is (Status.UNKNOWN if ttl == 0 else Status.COMPLETED)


@BOTH_KINDS
async def test_a_result_that_cannot_be_encoded_makes_a_dead_letter(app: Penstock, kind: str):
    await task_of(app, kind, object, retry=5).enqueue.aio()
    await run_burst(app)
    letter = await only_dead_letter(app)
    assert letter.reason == "the result of task: a object cannot be written as JSON"
    assert letter.attempts == 1


async def test_a_result_above_the_limit_makes_a_dead_letter(make_app: MakeApp):
    app = make_app(max_payload=1000)
    await task_of(app, "def", lambda: "x" * 1000).enqueue.aio()
    await run_burst(app)
    assert "1,002 bytes, the limit is 1,000" in (await only_dead_letter(app)).reason


async def test_a_result_that_is_not_kept_need_not_be_encoded(app: Penstock):
    job = await task_of(app, "def", object, result_ttl=0).enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.UNKNOWN
    assert (await app.queue("q").count.aio()).completed == 1


# --- failures ---


@BOTH_KINDS
async def test_a_failure_without_a_retry_policy_makes_a_dead_letter(app: Penstock, kind: str):
    job = await task_of(app, kind, raising(ValueError("no such user é"))).enqueue.aio()
    worker = await run_burst(app)
    letter = await only_dead_letter(app)
    assert (letter.id, letter.reason, letter.attempts) == (job.id, "ValueError: no such user é", 1)
    assert "Traceback" in letter.traceback
    assert "test_endings.py" in letter.traceback
    assert letter.worker == worker.name
    with pytest.raises(JobFailed, match="no such user") as caught:
        await job.result.aio(0)
    assert caught.value.traceback == letter.traceback


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitsWhenRead(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise AttributeError("no name")


class Nameless(Exception, metaclass=NamelessType):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ExitsWhenRead(), "ExitsWhenRead: (its text cannot be read)"),
        (Nameless("x"), "Nameless: x"),
        (SystemExit(3), "the task called sys.exit(3); raise an exception instead"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
        (BaseException("base"), "BaseException: base"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(7), ""),
        (WithoutText(), "WithoutText: (its text cannot be read)"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
    ids=lambda part: type(part).__qualname__ if isinstance(part, BaseException) else None,
)
@BOTH_KINDS
async def test_no_exception_of_a_task_stops_the_worker(app: Penstock, kind: str, error: BaseException, reason: str):
    await task_of(app, kind, raising(error), name="bad").enqueue.aio()
    good = await task_of(app, kind, lambda: 7, name="good").enqueue.aio()
    await run_burst(app, concurrency=1)
    assert reason in (await only_dead_letter(app)).reason
    assert await good.result.aio(0) == 7


@BOTH_KINDS
async def test_sys_exit_ends_only_the_job(app: Penstock, kind: str):
    await task_of(app, kind, lambda: sys.exit("bye")).enqueue.aio()
    await run_burst(app)
    assert (await only_dead_letter(app)).reason.startswith("the task called sys.exit('bye')")


async def test_a_def_task_that_returns_an_awaitable_is_reported_with_the_fix(app: Penstock):
    forgotten: list[Any] = []

    def body() -> Any:
        forgotten.append(asyncio.sleep(0))
        return forgotten[0]

    await task_of(app, "def", body).enqueue.aio()
    await run_burst(app)
    forgotten[0].close()
    assert "make it an `async def`" in (await only_dead_letter(app)).reason


async def test_a_very_long_traceback_is_cut(app: Penstock):
    await task_of(app, "def", raising(ValueError("x" * 100_000))).enqueue.aio()
    await run_burst(app)
    assert len((await only_dead_letter(app)).traceback) == 8_000


# --- retries ---


@BOTH_KINDS
async def test_a_failed_job_is_retried_as_often_as_its_policy_says(app: Penstock, kind: str):
    calls = []

    def body() -> int:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    job = await task_of(app, kind, body, retry=Retry(2, base=0.01)).enqueue.aio()
    async with running_worker(app):
        assert await job.result.aio(scaled(20)) == 3
    assert (await app.queue("q").count.aio()).retried == 2


async def test_after_its_last_retry_a_job_is_a_dead_letter(app: Penstock, clock: Time):
    await task_of(app, "def", raising(ValueError("no")), retry=2).enqueue.aio()
    for n in (1, 2):
        await run_burst(app)
        counts = await app.queue("q").count.aio()
        assert (counts.delayed, counts.dead, counts.retried) == (1, 0, n)
        clock.advance(10)
    await run_burst(app)
    letter = await only_dead_letter(app)
    assert (letter.attempts, letter.deliveries) == (3, 3)


async def test_each_retry_waits_longer_and_jobs_that_failed_together_spread_out(app: Penstock, clock: Time):
    task = task_of(app, "def", raising(ValueError("no")), retry=Retry(5, base=10, factor=3, cap=50, jitter=0.5))
    jobs = [await task.enqueue.aio() for _ in range(20)]
    for least, most in ((5, 10), (15, 30), (25, 50), (25, 50)):
        await run_burst(app)
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
    await run_burst(app)
    assert [await job.status.aio() for job in ends.values()] == [Status.DELAYED, Status.DEAD, Status.DEAD]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
async def test_a_base_exception_is_not_retried_unless_the_policy_names_it(app: Penstock, error: BaseException):
    for policy, name in ((Retry(3), "usual"), (Retry(3, on=BaseException), "named")):
        await task_of(app, "def", raising(error), retry=policy, name=name).enqueue.aio()
    await run_burst(app)
    counts = await app.queue("q").count.aio()
    assert (counts.dead, counts.delayed) == (1, 1)


async def test_a_task_can_ask_for_its_retry(app: Penstock, clock: Time):
    with_policy = task_of(app, "def", raising(Retry), retry=Retry(1, on=KeyError, base=100, jitter=0), name="with")
    without = task_of(app, "def", raising(Retry()), name="without")
    own = task_of(app, "def", raising(Retry(1, base=7, jitter=0)), retry=5, name="own")
    jobs = [await task.enqueue.aio() for task in (with_policy, without, own)]
    await run_burst(app)
    waits = [((await job.info.aio()).since or 0) - clock.now for job in jobs]
    assert waits[0] == pytest.approx(100, abs=0.01)
    assert 0.5 <= waits[1] <= 1
    assert waits[2] == pytest.approx(7, abs=0.01)
    for _ in range(3):
        clock.advance(200)
        await run_burst(app)
    letters = {letter.body[0]: letter.attempts for letter in await app.queue("q").dead.list.aio()}
    assert letters == {"with": 2, "without": 4, "own": 2}


@pytest.mark.parametrize("how", ["from", "inside except", "from None"])
async def test_a_retry_keeps_the_error_that_is_its_cause(app: Penstock, how: str):
    def body() -> None:
        try:
            raise ConnectionError("the shop is closed")
        except ConnectionError as error:
            if how == "from":
                raise Retry from error
            if how == "from None":
                raise Retry from None
            raise Retry(0)  # noqa: B904

    await task_of(app, "def", body, retry=0).enqueue.aio()
    await run_burst(app)
    letter = await only_dead_letter(app)
    assert letter.reason.startswith("Retry" if how == "from None" else "ConnectionError: the shop is closed")
    assert ("the shop is closed" in letter.traceback) == (how != "from None")


async def test_a_retry_of_a_task_that_never_retries_says_why_it_failed(app: Penstock):
    job = await task_of(app, "def", raising(Retry), retry=0).enqueue.aio()
    await run_burst(app)
    letter = await only_dead_letter(app)
    assert (letter.id, letter.attempts) == (job.id, 1)
    assert "retry=0, so it is not retried" in letter.reason


async def test_retry_later_uses_up_no_retry(app: Penstock, clock: Time):
    runs = []

    def body() -> int:
        runs.append(1)
        if len(runs) < 6:
            raise RetryLater(30, "the shop is closed")
        return len(runs)

    job = await task_of(app, "def", body, retry=1).enqueue.aio()
    for _ in range(5):
        await run_burst(app)
        info = await job.info.aio()
        assert (info.status, info.attempts, info.reason) == (Status.DELAYED, 0, "the shop is closed")
        clock.advance(29.9)
        await run_burst(app)
        assert (await job.status.aio()) is Status.DELAYED
        clock.advance(0.1)
    await run_burst(app)
    assert await job.result.aio(0) == 6


async def test_retry_later_counts_an_attempt_if_it_says_so(app: Penstock, clock: Time):
    def body() -> None:
        raise RetryLater(30, "the shop is closed", attempt=True)

    job = await task_of(app, "def", body, retry=1).enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.attempts) == (Status.DELAYED, 1)
    clock.advance(29.9)
    await run_burst(app)
    assert await job.status.aio() is Status.DELAYED
    clock.advance(0.1)
    await run_burst(app)
    assert "the shop is closed" in (await only_dead_letter(app)).reason
    with pytest.raises(ValueError, match="give seconds instead of a date"):
        RetryLater(datetime.now(UTC), attempt=True)
    with pytest.raises(ValueError, match="True or False"):
        RetryLater(1, attempt=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_attempt", [False, True])
async def test_the_reason_of_retry_later_names_the_error_that_led_to_it(app: Penstock, is_attempt: bool):
    def body() -> None:
        try:
            raise ConnectionError("the shop does not answer")
        except ConnectionError as error:
            raise RetryLater(30, "later", attempt=is_attempt) from error

    job = await task_of(app, "def", body, retry=1).enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert info.status is Status.DELAYED
    assert info.reason.endswith("later (ConnectionError: the shop does not answer)")


@BOTH_KINDS
async def test_a_job_postponed_to_a_date_runs_at_that_date_of_the_server(app: Penstock, clock: Time, kind: str):
    date = datetime.fromtimestamp(clock.now + 3600, UTC)
    runs = []

    def body() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise RetryLater(date, "the shop opens at seven")
        return len(runs)

    job = await task_of(app, kind, body).enqueue.aio()
    clock.advance(600)  # the date stays the same, however late the job starts
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.attempts, info.reason) == (Status.DELAYED, 0, "the shop opens at seven")
    assert info.since == pytest.approx(date.timestamp(), abs=0.01)
    clock.advance(3000.1)
    await run_burst(app)
    assert await job.result.aio(0) == 2


async def test_a_job_postponed_to_a_date_in_the_past_runs_at_once(app: Penstock):
    runs = []

    def body() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise RetryLater(datetime(2001, 1, 1, tzinfo=UTC))
        return len(runs)

    job = await task_of(app, "async def", body).enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == 2


@pytest.mark.parametrize("when", [datetime(2027, 1, 1), datetime(1960, 1, 1, tzinfo=UTC), -1.0])
def test_a_date_that_says_no_time_is_refused_where_it_is_raised(when: Any):
    with pytest.raises(ValueError, match="a date"):
        RetryLater(when)


@BOTH_KINDS
async def test_retry_if_decides_on_each_error(app: Penstock, kind: str):
    policy = Retry(3, base=0, on=OSError, retry_if=lambda error: "busy" in str(error))
    jobs = [
        await task_of(app, kind, raising(error), name=f"task {n}", retry=policy).enqueue.aio()
        for n, error in enumerate((OSError("busy"), OSError("no such file"), ValueError("busy")))
    ]
    await run_burst(app)
    assert [(await job.info.aio()).attempts for job in jobs] == [4, 1, 1]


async def test_an_error_in_retry_if_makes_a_dead_letter(app: Penstock):
    def broken(error: BaseException) -> bool:
        raise KeyError("no such status")

    job = await task_of(app, "def", raising(OSError("busy")), retry=Retry(3, retry_if=broken)).enqueue.aio()
    await run_burst(app)
    assert (await job.status.aio()) is Status.DEAD
    assert "OSError, which cannot be handled" in (await only_dead_letter(app)).reason


@BOTH_KINDS
async def test_a_dropped_job_leaves_neither_result_nor_dead_letter(app: Penstock, kind: str):
    job = await task_of(app, kind, raising(Drop("stale: é")), retry=5).enqueue.aio()
    other = await task_of(app, kind, raising(Drop), name="bare").enqueue.aio()
    await run_burst(app)
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
@BOTH_KINDS
async def test_an_impossible_delay_or_reason_does_not_stop_the_worker(
    app: Penstock, kind: str, error: Callable[[], Exception]
):
    def end() -> None:
        raise error()

    job = await task_of(app, kind, end, name="bad").enqueue.aio()
    good = await task_of(app, kind, lambda: 7, name="good").enqueue.aio()
    await run_burst(app, concurrency=1)
    assert await good.result.aio(0) == 7
    assert await job.status.aio() in {Status.DEAD, Status.DELAYED, Status.DROPPED}


@BOTH_KINDS
async def test_a_result_whose_encoding_raises_anything_makes_a_dead_letter(app: Penstock, kind: str):
    class Lazy:
        def model_dump(self, mode: str) -> Any:
            raise KeyError(mode)

    job = await task_of(app, kind, Lazy).enqueue.aio()
    await run_burst(app)
    assert (await only_dead_letter(app)).id == job.id
    assert "its result cannot be encoded: KeyError" in (await only_dead_letter(app)).reason


async def test_a_task_that_cancels_itself_is_a_dead_letter(app: Penstock):
    @app.task(queue="q")
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    await give_up.enqueue.aio()
    await run_burst(app)
    assert (await only_dead_letter(app)).reason == "CancelledError: the task cancelled itself"


@pytest.mark.parametrize("error", [WithoutText(), ExitsWhenRead(), Nameless("x")], ids=["no text", "exits", "no name"])
async def test_an_odd_exception_is_retried_as_any_other(app: Penstock, error: Exception):
    runs: list[int] = []

    @app.task(queue="q", retry=Retry(1, base=0))
    async def odd() -> None:
        runs.append(1)
        await asyncio.sleep(0)
        raise error

    await odd.enqueue.aio()
    await run_burst(app)
    assert len(runs) == 2


@pytest.mark.parametrize("where", ["awaited", "in a group", "alone in its asyncio task"])
async def test_a_sub_task_that_ends_with_generator_exit_stops_nothing(app: Penstock, where: str):
    async def leave() -> None:
        await asyncio.sleep(0)
        raise GeneratorExit

    @app.task(queue="q")
    async def bad() -> None:
        if where == "alone in its asyncio task":
            await asyncio.sleep(0)  # from the second job on it does not begin in a streak
        if where == "in a group":
            async with asyncio.TaskGroup() as group:
                group.create_task(leave())
        else:
            await asyncio.create_task(leave())

    @app.task(queue="q")
    async def good() -> int:
        return 7

    await app.enqueue_many.aio(bad.call() for _ in range(3))
    job = await good.enqueue.aio()
    await run_burst(app, concurrency=1)
    assert await job.result.aio(0) == 7
    counts = await app.queue("q").count.aio()
    assert (counts.dead, counts.running) == (3, 0)


# --- timeouts ---


async def test_a_task_that_exceeds_its_timeout_is_cancelled(app: Penstock):
    stopped = asyncio.Event()

    @app.task(queue="q", timeout=0.1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job = await slow.enqueue.aio()
    async with running_worker(app):
        with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.1 s"):
            await job.result.aio(scaled(20))
    assert stopped.is_set()


async def test_a_timeout_is_retried_like_any_failure(app: Penstock):
    @app.task(queue="q", timeout=0.02, retry=Retry(1, on=TimeoutError, base=60))
    async def slow() -> None:
        await asyncio.sleep(60)

    job = await slow.enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.DELAYED


async def test_a_timeout_error_that_the_task_raised_keeps_its_own_reason(app: Penstock):
    await task_of(app, "async def", raising(TimeoutError("the shop's")), timeout=5).enqueue.aio()
    await run_burst(app)
    assert (await only_dead_letter(app)).reason == "TimeoutError: the shop's"


async def test_a_task_within_its_timeout_is_not_disturbed(app: Penstock):
    @app.task(queue="q", timeout=30)
    async def quick() -> int:
        await asyncio.sleep(0.01)
        return 1

    job = await quick.enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == 1
