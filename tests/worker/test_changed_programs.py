"""Tasks that are changed while their durable jobs are under way: `patched`, and jobs that go back to their release."""

import asyncio
from typing import Any

import pytest

from penstock import ConfigurationError, Job, Penstock, Retry, Status, current, patched, sleep, step, wait_for
from penstock.errors import NoCurrentJob
from penstock.jobs.decorator import make_task
from penstock.testing import MovableClock
from tests.conftest import Apps, until
from tests.worker.in_process import run_burst, running_worker

did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    did.clear()


async def charge() -> None:
    did.append("charge")


async def charge_by_token() -> None:
    did.append("token")


async def pack() -> None:
    did.append("pack")


class Clocks:
    """The time of two apps."""

    def __init__(self, *apps: Penstock) -> None:
        self._clocks = [MovableClock(app) for app in apps]
        for one in self._clocks:
            one.advance_to(self._clocks[0].now)

    def advance(self, seconds: float) -> None:
        for one in self._clocks:
            one.advance(seconds)


def pay_task(app: Penstock, version: int, **options: Any) -> Any:
    """Packs, sleeps, charges, sleeps: in version 2 it charges in another way."""

    async def pay() -> list[bool]:
        await step(pack)
        await sleep(60)
        answers = []
        if version == 2:
            answers.append(patched("charge-v2"))
            await step(charge_by_token if answers[0] else charge)
        else:
            await step(charge)
        await sleep(60)
        return answers

    return app.task(queue="q", name="pay", retry=0, **options)(pay)


@pytest.mark.parametrize("sleeps_before", [0, 1, 2])
async def test_a_job_takes_the_branch_of_what_was_recorded(apps: Apps, sleeps_before: int):
    old = apps.make()
    new = apps.make(prefix=old.settings.prefix)
    clock = Clocks(old, new)
    job: Job[Any] = await pay_task(old, 1).enqueue.aio()
    for _ in range(sleeps_before):
        await run_burst(old)
        clock.advance(61)
    pay_task(new, 2)
    for _ in range(3):
        await run_burst(new)
        clock.advance(61)
    is_new = sleeps_before < 2
    assert await new.job(job.id).result.aio(0) == [is_new]
    assert did == ["pack", "token" if is_new else "charge"]


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_answer_is_the_same_in_each_run_and_comes_before_any_step(app: Penstock, kind: str):
    answers: list[bool] = []

    async def work() -> int:
        answers.append(patched("v2"))
        await step(pack)
        answers.append(patched("v2"))
        if current().attempt < 3:
            raise OSError
        return len(answers)

    def work_in_thread() -> int:
        answers.append(patched("v2"))
        step.run(did.append, "pack")
        answers.append(patched("v2"))
        if current().attempt < 3:
            raise OSError
        return len(answers)

    function: Any = work if kind == "async def" else work_in_thread
    job: Job[Any] = await app.task(queue="q", name="work", retry=Retry(3, base=0))(function).enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == 6
    assert (answers, did) == ([True] * 6, ["pack"])


async def test_a_patch_is_a_recorded_step_that_people_see(app: Penstock):
    @app.task(queue="q")
    async def work() -> None:
        if patched("v2"):
            await sleep(60)

    job = await work.enqueue.aio()
    await run_burst(app)
    assert [(one.step, one.does, one.state) for one in await job.steps.aio()] == [
        ("v2", "patched", "done"),
        ("1", "sleep", "waiting"),
    ]
    await job.cancel.aio()


async def test_a_loop_does_not_change_its_branch_half_way(apps: Apps):
    async def old_loop() -> None:
        for _ in range(2):
            await step(charge)
        await sleep(60)
        await step(charge)

    async def new_loop() -> None:
        for n in range(3):
            await step(charge_by_token if patched("v2") else charge)
            if n == 1:
                await sleep(60)

    first = apps.make()
    second = apps.make(prefix=first.settings.prefix)
    clock = Clocks(first, second)
    job: Job[Any] = await first.task(queue="q", name="loop", retry=0)(old_loop).enqueue.aio()
    await run_burst(first)
    second.task(queue="q", name="loop", retry=0)(new_loop)
    clock.advance(61)
    await run_burst(second)
    assert await second.job(job.id).status.aio() is Status.COMPLETED
    assert did == ["charge"] * 3


async def test_patched_is_of_a_job_and_has_a_short_name(app: Penstock):
    with pytest.raises(NoCurrentJob, match="patched"):
        patched("v2")

    @app.task(queue="q", retry=0)
    async def work() -> None:
        with pytest.raises(ConfigurationError, match="at most 200 bytes"):
            patched("x" * 201)

    job = await work.enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.COMPLETED


# --- releases ---

RELEASES: Any = {"v1": {"release": "v1", "unknown_backoff": 0.05}, "v2": {"release": "v2", "unknown_backoff": 0.05}}


def two_releases(apps: Apps, blocked: asyncio.Event) -> tuple[Penstock, Penstock]:
    """Two apps with one task, whose second step differs. Jobs of the task `block` occupy a worker of the first one."""
    old = apps.make()
    new = apps.make(prefix=old.settings.prefix)

    async def pay_old() -> None:
        await step(pack)
        await wait_for("go")
        await step(charge)

    async def pay_new() -> None:
        await step(pack)
        await step(charge_by_token)

    async def block() -> None:
        did.append("block")
        await blocked.wait()

    old.task(queue="q", name="pay", retry=0)(pay_old)
    old.task(queue="other", name="block")(block)
    new.task(queue="q", name="pay", retry=0)(pay_new)
    return old, new


async def test_a_job_is_handed_back_while_its_first_release_lives(apps: Apps):
    ended = asyncio.Event()
    old, new = two_releases(apps, ended)
    job: Job[Any] = await make_task(old.registry.get("pay"), old.queue("q")).enqueue.aio()  # type: ignore[arg-type]
    async with running_worker(old, concurrency=1, **RELEASES["v1"]):
        await until_sleeping(job)
        await make_task(old.registry.get("block"), old.queue("other")).enqueue.aio()  # type: ignore[arg-type]
        await until(lambda: "block" in did)
        await job.signal.aio("go")
        async with running_worker(new, queues=("q",), **RELEASES["v2"]):
            for _ in range(2000):
                if (info := await job.info.aio()).reason:
                    break
                await asyncio.sleep(0.01)
            assert "release v1 has begun the job, and this is release v2" in info.reason
            assert "handed back for a worker of release v1" in info.reason
        assert info.attempts == 0
        ended.set()
        await job.result.aio(20)
    assert did == ["pack", "block", "charge"]


async def test_without_its_first_release_it_is_a_dead_letter_that_names_both(apps: Apps):
    old, new = two_releases(apps, asyncio.Event())
    job: Job[Any] = await make_task(old.registry.get("pay"), old.queue("q")).enqueue.aio()  # type: ignore[arg-type]
    await run_burst(old, **RELEASES["v1"])
    await job.signal.aio("go")
    await run_burst(new, queues=("q",), **RELEASES["v2"])
    info = await job.info.aio()
    assert info.status is Status.DEAD
    assert "step 2 was wait_for('go') when this job ran before, and now it is step(charge_by_token)" in info.reason
    assert "release v1 has begun the job, and this is release v2" in info.reason
    await old.queue("q").dead.requeue.aio(job.id)
    await run_burst(old, **RELEASES["v1"])
    assert await job.status.aio() is Status.COMPLETED
    assert did == ["pack", "charge"]


async def until_sleeping(job: Job[Any]) -> None:
    for _ in range(2000):
        if await job.status.aio() is Status.SLEEPING:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the job has not slept in time")
