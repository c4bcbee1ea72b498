"""Steps that fail in durable tasks which handle their errors, and what encloses a task that sleeps."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import Middleware, Penstock, Retry, RetryLater, current, per_job, sleep, step, wait_for
from penstock.errors import StepError
from penstock.jobs.middleware import JobContext
from penstock.jobs.steps import StepFailure, error_again
from penstock.testing import MovableClock, run_jobs

BOTH_KINDS = pytest.mark.parametrize("kind", ["async def", "def"])

called: list[str] = []


class Declined(Exception):
    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code


async def charge() -> str:
    called.append("charge")
    if called.count("charge") == 1:
        raise Declined("no money", 7)
    return "paid"


def charge_in_thread() -> str:
    called.append("charge")
    if called.count("charge") == 1:
        raise Declined("no money", 7)
    return "paid"


def refund() -> str:
    called.append("refund")
    return "refunded"


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    called.clear()


async def run_to_the_end(app: Penstock, clock: MovableClock) -> None:
    await run_jobs.aio(app, clock=clock, dead=True)


@BOTH_KINDS
async def test_a_step_that_failed_and_was_caught_fails_again_in_a_later_run(
    app: Penstock, clock: MovableClock, kind: str
):
    async def buy() -> list[Any]:
        try:
            await step(charge)
        except Declined as error:
            await step(refund)
            await sleep(60)
            return [str(error), error.args]
        return ["paid"]

    def buy_in_thread() -> list[Any]:
        try:
            step.run(charge_in_thread)
        except Declined as error:
            step.run(refund)
            sleep.run(60)
            return [str(error), error.args]
        return ["paid"]

    function: Any = buy if kind == "async def" else buy_in_thread
    job = await app.task(queue="q", name="buy")(function).enqueue.aio()
    await run_to_the_end(app, clock)
    assert await job.result.aio(0) == ["('no money', 7)", ["no money", 7]]
    assert called == ["charge", "refund"]
    assert [(one.step, one.does, one.state) for one in await job.steps.aio()] == []


async def test_the_steps_of_a_job_show_which_failed(app: Penstock, clock: MovableClock):
    @app.task(queue="q")
    async def buy() -> None:
        try:
            await step(charge)
        except Declined:
            await wait_for("approved")

    job = await buy.enqueue.aio()
    await run_jobs.aio(app)
    steps = [(one.step, one.does, one.state) for one in await job.steps.aio()]
    assert steps == [("1", "charge", "failed"), ("2", "wait_for approved", "waiting")]
    await job.cancel.aio()


@pytest.mark.parametrize("ending", [RetryLater(5), OSError("crash"), Retry])
async def test_a_compensation_is_not_followed_by_what_it_compensates(app: Penstock, clock: MovableClock, ending: Any):
    @app.task(queue="q", retry=Retry(1, base=0))
    async def buy() -> str:
        try:
            await step(charge)
        except Declined:
            await step(refund)
            if current().attempt == 1 and len(called) == 2:
                called.append("again")
                raise ending from None
            return "refunded"
        return "paid"

    job = await buy.enqueue.aio()
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), called) == ("refunded", ["charge", "refund", "again"])


async def test_a_loop_tries_a_step_again_after_each_sleep(app: Penstock, clock: MovableClock):
    @app.task(queue="q")
    async def patient() -> str:
        for _ in range(3):
            try:
                await step(charge)
                break
            except Declined:
                await sleep(10)
        return await step(refund)

    job = await patient.enqueue.aio()
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), called) == ("refunded", ["charge", "charge", "refund"])


async def test_a_step_whose_error_ends_the_run_is_called_again(app: Penstock, clock: MovableClock):
    @app.task(queue="q", retry=Retry(1, base=0))
    async def buy() -> str:
        return await step(charge)

    job = await buy.enqueue.aio()
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), called) == ("paid", ["charge", "charge"])


async def test_a_neighbour_that_runs_on_does_not_record_the_error_that_ends_the_run(app: Penstock, clock: MovableClock):
    gate = asyncio.Event()

    async def neighbour() -> None:
        await gate.wait()
        await step.named("late")(refund)

    @app.task(queue="q", retry=Retry(1, base=0))
    async def both() -> str:
        async def first() -> str:
            return await step.named("charge")(charge)

        other = asyncio.create_task(neighbour())
        try:
            return await first()
        finally:
            gate.set()
            await asyncio.wait([other])

    job = await both.enqueue.aio()
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), called) == ("paid", ["charge", "refund", "charge"])


async def test_an_error_caught_by_gather_is_recorded(app: Penstock, clock: MovableClock):
    @app.task(queue="q")
    async def both() -> str:
        async def branch() -> str:
            return await step.named("charge")(charge)

        (outcome,) = await asyncio.gather(branch(), return_exceptions=True)
        await step(refund)
        await sleep(60)
        return type(outcome).__name__

    job = await both.enqueue.aio()
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), called) == ("Declined", ["charge", "refund"])


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionRefusedError(111, "refused"), ConnectionRefusedError(111, "refused")),
        (ValueError("half \ud800"), ValueError("half ?")),
        (ValueError({"not": "plain"}), ValueError("{'not': 'plain'}")),
        (Declined("x" * 5000), Declined),
        (Unreadable(object()), Unreadable),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), UnicodeDecodeError),
        (type("Local", (Exception,), {})("gone"), StepError),
    ],
)
def test_an_error_is_raised_again_by_its_class_and_its_plain_arguments(error: Exception, again: Any):
    found = error_again("step(f)", StepFailure("f", error, None).packed(None), None)
    if isinstance(again, Exception):
        assert (type(found), found.args) == (type(again), again.args)
        assert not isinstance(found, OSError) or found.errno == 111
    else:
        assert type(found) is again
    assert len(str(found.args)) < 2500


# --- what encloses a task that sleeps ---


@BOTH_KINDS
@pytest.mark.parametrize("waits", ["sleep", "wait_for"])
async def test_hooks_and_dependencies_end_well_at_a_wait(app: Penstock, clock: MovableClock, kind: str, waits: str):
    seen: list[str] = []

    def watched(what: str) -> Iterator[str]:
        try:
            yield what
        except BaseException as error:
            seen.append(f"{what}: {type(error).__name__}")
            raise
        seen.append(f"{what}: committed")

    class Hook(Middleware):
        def execute(self, job: JobContext) -> Iterator[Any]:
            yield from watched("hook")

    class AsyncHook(Middleware):
        async def execute(self, job: JobContext) -> AsyncIterator[None]:
            try:
                yield
            except BaseException as error:
                seen.append(f"async hook: {type(error).__name__}")
                raise
            seen.append("async hook: committed")

    def session() -> Iterator[str]:
        yield from watched("session")

    for hook in (AsyncHook(), Hook()):
        app.add_middleware(hook)

    async def nap(own: str = per_job(session)) -> str:
        await (sleep(60) if waits == "sleep" else wait_for("go"))
        return own

    def nap_in_thread(own: str = per_job(session)) -> str:
        if waits == "sleep":
            sleep.run(60)
        else:
            wait_for.run("go")
        return own

    function: Any = nap if kind == "async def" else nap_in_thread
    job = await app.task(queue="q", name="nap")(function).enqueue.aio()
    await run_jobs.aio(app)
    ended = ["session: committed", "hook: committed", "async hook: committed"]
    assert seen == ended
    await job.signal.aio("go", None)
    await run_to_the_end(app, clock)
    assert (await job.result.aio(0), seen) == ("session", ended * 2)


async def test_a_commit_that_fails_at_a_wait_fails_the_run(app: Penstock, clock: MovableClock):
    def session() -> Iterator[None]:
        yield
        raise OSError("the disk is full")

    @app.task(queue="q")
    async def nap(own: None = per_job(session)) -> None:
        await sleep(60)

    job = await nap.enqueue.aio()
    await run_jobs.aio(app, dead=True)
    info = await job.info.aio()
    assert info is not None
    assert (info.status, "the disk is full" in str(info.reason)) == ("dead", True)
