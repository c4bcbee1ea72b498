"""`job.log()`: what a job logs is read while it runs, on both faces."""

import asyncio
from typing import Any

import pytest

from penstock import BadCall, Job, Penstock, current
from penstock.errors import JobNotFound
from penstock.info import JobLines, LogLine
from penstock.jobs.bindings import QueueBindings
from tests.conftest import Do, Time, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


async def take(face: str, lines: JobLines, most: int = 1_000_000) -> list[LogLine]:
    """Lines in a loop, on a face."""
    found: list[LogLine] = []

    def blocking() -> list[LogLine]:
        for line in lines:
            found.append(line)
            if len(found) == most:
                break
        return found

    if face == "blocking":
        return await asyncio.wait_for(asyncio.to_thread(blocking), scaled(20))
    async with asyncio.timeout(scaled(20)):
        async for line in lines:
            found.append(line)
            if len(found) == most:
                break
    return found


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


async def test_a_reader_gets_lines_while_the_job_runs_and_ends_with_it(app: Penstock, face: str, do: Do):
    gate = asyncio.Event()

    @app.task(queue="q")
    async def gated() -> str:
        current().log("first")
        current().progress(0.5, "half")
        await asyncio.wait_for(gate.wait(), scaled(20))
        current().log("second")
        return "done"

    async with running_worker(app):
        job = await do(gated.enqueue)
        lines = job.log()
        assert texts(await take(face, lines, 1)) == ["first"]
        assert not lines.has_ended
        reading = asyncio.create_task(take(face, lines))
        await asyncio.sleep(0.05)
        gate.set()
        assert texts(await reading) == ["second"]
        assert lines.has_ended
        assert await do(job.result, scaled(5)) == "done"
        assert texts(await take(face, job.log())) == ["first", "second"]


async def test_a_program_that_waits_for_a_result_is_not_woken_by_the_log(
    app: Penstock, face: str, do: Do, monkeypatch: pytest.MonkeyPatch
):
    gates = [asyncio.Event() for _ in range(4)]
    asked: list[str] = []
    ask = QueueBindings.result

    def counted(bindings: QueueBindings, key: str, *rest: Any) -> Any:
        asked.append(key)
        return ask(bindings, key, *rest)

    @app.task(queue="q")
    async def chatty() -> int:
        for gate in gates:
            await asyncio.wait_for(gate.wait(), scaled(20))
            current().log("a line")
        return 7

    async with running_worker(app):
        job = await do(chatty.enqueue)
        monkeypatch.setattr(QueueBindings, "result", counted)
        waiting = asyncio.create_task(do(job.result, scaled(20)))
        await until(lambda: bool(asked))
        lines = job.log()
        for gate in gates:
            gate.set()
            assert texts(await take(face, lines, 1)) == ["a line"]
        assert await waiting == 7
    assert asked == [job.key] * 2, "at first, and when the job has ended"


async def test_reading_begins_anywhere(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    def talk() -> None:
        for n in range(9):
            current().log(f"line {n}")

    job: Job[None] = await do(talk.enqueue)
    await run_burst(app)
    lines = await take(face, app.job(job.id).log())
    assert len({line.id for line in lines}) == 9
    for n, line in enumerate(lines):
        assert texts(await take(face, job.log(after=line))) == [f"line {one}" for one in range(n + 1, 9)]
        assert texts(await take(face, job.log(after=line.id, wait=0))) == [f"line {one}" for one in range(n + 1, 9)]


async def test_a_flood_keeps_the_last_lines(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    def flood() -> None:
        for n in range(400):
            current().log(f"{n:03}" + "x" * 97)

    job = await do(flood.enqueue)
    await run_burst(app)
    numbers = [int(line.text[:3]) for line in await take(face, job.log())]
    assert numbers == [*range(numbers[0], 400)]
    assert 100 < len(numbers) < 164


async def test_a_job_that_fails_ends_its_log(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    def fails() -> None:
        current().log("so far")
        raise OSError

    job = await do(fails.enqueue)
    reading = asyncio.create_task(take(face, job.log()))
    await run_burst(app)
    assert texts(await reading) == ["so far"]


async def test_what_is_no_line_or_no_job_is_refused(app: Penstock, face: str, do: Do):
    job = await do(app.queue("q").put, 1)
    for wrong in ("5", "", "5-", "-1", "5-0", "a-1", 7, "5-1\n"):
        with pytest.raises(BadCall, match="give a line of this log"):
            job.log(after=wrong)
    with pytest.raises(JobNotFound, match="no job q:nobody"):
        await take(face, app.job("q:nobody").log())
    assert await take(face, job.log(wait=0)) == []
    assert await take(face, job.log(wait=0.05)) == []
    assert await do(job.cancel)
    assert await take(face, job.log()) == []


async def test_a_reader_misses_no_line_when_the_clock_of_the_server_goes_back(
    app: Penstock, face: str, do: Do, clock: Time
):
    gate = asyncio.Event()

    @app.task(queue="q")
    async def gated() -> None:
        current().log("before")
        await asyncio.wait_for(gate.wait(), scaled(20))
        current().log("after")
        current().log("last")

    async with running_worker(app):
        job = await do(gated.enqueue)
        lines = job.log()
        assert texts(await take(face, lines, 1)) == ["before"]
        app.clock.now_ms -= 60_000
        gate.set()
        assert texts(await take(face, lines)) == ["after", "last"]
