"""`current().emit` and `job.output()`: what a job emits is read while it runs, on both faces."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock import BadCall, Job, Penstock, Retry, current
from penstock.errors import JobNotFound, PayloadTooLarge, SealError
from penstock.info import JobOutput, OutputPart
from penstock.ops.inspect import Inspector
from tests.conftest import Do, until
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


async def take(face: str, output: JobOutput, most: int = 1_000_000) -> list[OutputPart]:
    """Parts in a loop, on a face."""
    found: list[OutputPart] = []

    def blocking() -> list[OutputPart]:
        for part in output:
            found.append(part)
            if len(found) == most:
                break
        return found

    if face == "blocking":
        return await asyncio.wait_for(asyncio.to_thread(blocking), scaled(20))
    async with asyncio.timeout(scaled(20)):
        async for part in output:
            found.append(part)
            if len(found) == most:
                break
    return found


def chunks(parts: list[OutputPart]) -> list[Any]:
    return [part.chunk for part in parts]


@pytest.fixture
def answer(app: Penstock) -> Any:
    @app.task(queue="q")
    async def answer(words: list[str], pause: float = 0.0) -> int:
        for word in words:
            current().emit(word)
            await asyncio.sleep(pause)
        return len(words)

    return answer


WORDS = [f"word{n} " for n in range(12)]


async def test_a_reader_gets_chunks_while_the_job_runs_and_ends_with_it(app: Penstock, face: str, do: Do, answer: Any):
    gate = asyncio.Event()

    @app.task(queue="q")
    async def gated() -> str:
        current().emit("first")
        await asyncio.wait_for(gate.wait(), scaled(20))
        current().emit("second")
        return "done"

    async with running_worker(app):
        job = await do(gated.enqueue)
        output = job.output()
        assert chunks(await take(face, output, 1)) == ["first"]
        assert not output.has_ended
        gate.set()
        assert chunks(await take(face, output)) == ["second"]
        assert output.has_ended
        assert await do(job.result, scaled(5)) == "done"
        assert await take(face, job.output()) == await take(face, job.output(wait=0))


async def test_a_reader_that_comes_before_the_job_runs_waits_for_it(app: Penstock, face: str, do: Do, answer: Any):
    job = await do(answer.enqueue, WORDS, 0.01)
    reading = asyncio.create_task(take(face, job.output()))
    await asyncio.sleep(0.05)
    async with running_worker(app):
        assert chunks(await reading) == WORDS


async def test_reading_begins_anywhere(app: Penstock, face: str, do: Do, answer: Any):
    job = await do(answer.enqueue, WORDS)
    await run_burst(app)
    parts = await take(face, app.job(job.id).output())
    for n, part in enumerate(parts):
        assert chunks(await take(face, job.output(after=part))) == WORDS[n + 1 :]
        assert chunks(await take(face, job.output(after=part.id))) == WORDS[n + 1 :]


async def test_a_job_that_runs_again_emits_again_under_another_attempt(app: Penstock, face: str, do: Do):
    @app.task(queue="q", retry=Retry(1, base=0))
    def twice() -> None:
        current().emit("a")
        if current().attempt == 1:
            raise OSError
        current().emit({"b": [1, None]})

    job = await do(twice.enqueue)
    await run_burst(app)
    parts = await take(face, job.output())
    assert [(part.attempt, part.chunk) for part in parts] == [(1, "a"), (2, "a"), (2, {"b": [1, None]})]


async def test_what_was_emitted_is_there_when_the_result_is(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    def many(n: int) -> int:
        for number in range(n):
            current().emit(number)
        return n

    jobs = [await do(many.enqueue, n) for n in (1, 30_000, 7)]
    async with running_worker(app):
        for job in jobs:
            n = await do(job.result, scaled(20))
            assert chunks(await take(face, job.output(wait=0))) == [*range(n)]


async def test_a_flood_keeps_the_last_chunks_and_says_how_many_are_gone(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    async def flood() -> None:
        for number in range(40):
            current().emit(f"{number:03}" + "x" * 100_000)

    job = await do(flood.enqueue)
    await run_burst(app)
    parts = await take(face, job.output())
    numbers = [int(part.chunk[:3]) for part in parts]
    assert numbers == [*range(numbers[0], 40)]
    assert 8 <= len(numbers) <= 11
    assert [part.missed for part in parts] == [numbers[0], *[0] * (len(parts) - 1)]


async def test_a_job_that_fails_ends_its_output(app: Penstock, face: str, do: Do):
    @app.task(queue="q")
    def fails() -> None:
        current().emit("so far")
        raise OSError

    job = await do(fails.enqueue)
    reading = asyncio.create_task(take(face, job.output()))
    await run_burst(app)
    assert chunks(await reading) == ["so far"]


async def test_readers_end_with_a_job_that_never_runs(app: Penstock, face: str, do: Do, answer: Any):
    cancelled = await do(answer.enqueue, WORDS)
    expires = await do(answer.using(expires=0.3).enqueue, WORDS)
    reading = [asyncio.create_task(take(face, job.output())) for job in (cancelled, expires)]
    await asyncio.sleep(0.1)
    await do(cancelled.cancel)
    assert await asyncio.gather(*reading) == [[], []]


async def test_wait_ends_the_loop(app: Penstock, face: str, do: Do, answer: Any):
    job = await do(answer.enqueue, WORDS)
    output = job.output(wait=0.05)
    assert await take(face, output) == []
    assert not output.has_ended
    await run_burst(app)
    assert chunks(await take(face, output)) == WORDS


async def test_an_abandoned_reader_leaves_no_listener(app: Penstock, answer: Any, raw: Any):
    job = await answer.enqueue.aio(WORDS)
    key = app.queue("q").first.bindings.keys.base + "listeners"
    reading = asyncio.create_task(take("aio", job.output()))
    await until(lambda: raw.hlen(key) == 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert raw.hlen(key) == 0


async def test_two_readers_and_a_waiter_share_a_process(app: Penstock, answer: Any):
    job = await answer.enqueue.aio(WORDS, 0.02)
    readers = [asyncio.create_task(take("aio", job.output())) for _ in range(2)]
    result = asyncio.create_task(job.result.aio(scaled(20)))
    await asyncio.sleep(0.05)
    async with running_worker(app):
        assert [chunks(await one) for one in readers] == [WORDS, WORDS]
        assert await result == len(WORDS)


async def test_a_shard_has_the_outputs_of_its_jobs(app: Penstock, face: str, do: Do):
    app.queue("wide", shards=4)

    @app.task(queue="wide")
    async def answer(n: int) -> None:
        current().emit(n)

    jobs = [await do(answer.using(tenant=f"t{n}").enqueue, n) for n in range(12)]
    await run_burst(app)
    assert len({job.shard.name for job in jobs}) > 1
    for n, job in enumerate(jobs):
        assert chunks(await take(face, app.job(job.id).output())) == [n]


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: "x" * 2_097_152, PayloadTooLarge, r"the chunk of emit\(\) is 2,097,154 bytes, the limit is 262,144"),
    (object, BadCall, r"the chunk of emit\(\): a object cannot be written as JSON"),
    (lambda: b"bytes", BadCall, r"the chunk of emit\(\): bytes would be read as a text"),
    (lambda: float("nan"), BadCall, r"the chunk of emit\(\): JSON cannot hold the number nan"),
    (lambda: "\ud800", BadCall, r"the chunk of emit\(\): half a character"),
    (lambda: {1: 2}, BadCall, r"the chunk of emit\(\): the key 1 would be read as a text"),
]


@pytest.mark.parametrize(("value", "error", "text"), BAD)
async def test_a_chunk_that_cannot_be_emitted_is_one_clear_error(
    app: Penstock, value: Callable[[], Any], error: type[Exception], text: str
):
    @app.task(queue="q")
    async def bad() -> str:
        current().emit("before")
        with pytest.raises(error, match=text):
            current().emit(value())
        current().emit("after")
        return "went on"

    job: Job[str] = await bad.enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == "went on"
    assert chunks(await take("aio", job.output())) == ["before", "after"]


@pytest.mark.parametrize("after", [5, "", "5", "0-1", "five-1", "5-1 ", "9" * 20 + "-1", b"5-1", ["5-1"]])
async def test_what_is_no_position_is_refused(app: Penstock, after: Any):
    with pytest.raises(BadCall, match=r"output\(after=…\)\(.*\): give a part of this output, or its `id`"):
        app.job("q:x").output(after=after)


async def test_an_unknown_job_is_not_found(app: Penstock, face: str):
    with pytest.raises(JobNotFound, match="no job q:x: never enqueued here, or it ended"):
        await take(face, app.job("q:x").output())
    with pytest.raises(ValueError, match="wait"):
        app.job("q:x").output(wait=-1)


async def test_chunks_are_sealed_and_opened(make_app: Any, face: str, do: Do, raw: Any):
    class Codec:
        def seal(self, data: bytes) -> tuple[str, bytes]:
            return "k1", data[::-1]

        def open(self, data: bytes, key: str) -> bytes:
            return data[::-1]

    app = make_app(seal=Codec())

    @app.task(queue="q")
    def secret() -> None:
        current().emit("the plan")

    job = await do(secret.enqueue)
    await run_burst(app)
    ((_, stored),) = raw.xrange(f"{app.queue('q').first.bindings.keys.base}output:{job.key}")
    assert b"plan" not in stored[b"chunks"]
    assert chunks(await take(face, job.output())) == ["the plan"]
    with pytest.raises(SealError, match=r"the output of job .* is sealed with key 'k1'"):
        await take(face, make_app(prefix=app.settings.prefix).job(job.id).output())


async def test_the_last_chunks_are_read_alone(app: Penstock, face: str, answer: Any):
    job = await answer.enqueue.aio([str(n) for n in range(300)])
    ask = Inspector(app).jobs
    assert await take(face, ask.output(job.id, last=3)) == []
    await run_burst(app)
    found = await take(face, ask.output(job.id, last=3))
    assert [(part.chunk, part.missed) for part in found] == [("297", 0), ("298", 0), ("299", 0)]
    assert chunks(await take(face, ask.output(job.id, last=5000))) == [str(n) for n in range(300)]


@pytest.mark.parametrize("last", [0, -1, True, 1.0, 100_001])
async def test_a_number_of_chunks_that_there_cannot_be_is_refused(app: Penstock, last: Any):
    with pytest.raises(ValueError, match="last="):
        Inspector(app).jobs.output("q:x", last=last)
    with pytest.raises(BadCall, match="not both"):
        Inspector(app).jobs.output("q:x", last=1, after="1-5")
