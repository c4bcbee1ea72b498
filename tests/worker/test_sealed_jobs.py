"""Jobs of an app that seals: no text of a program reaches the server, and a worker without the key harms no job."""

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import valkey.asyncio

from penstock import (
    RESULT,
    BadCall,
    Batch,
    Drop,
    JobFailed,
    JobOutcome,
    Middleware,
    Penstock,
    Retry,
    RetryLater,
    Status,
    Task,
    Unique,
    chain,
    current,
    group,
    run,
    step,
    wait_for,
)
from penstock.core import scripts, sections
from penstock.errors import JobCancelled, PayloadTooLarge, SealError
from penstock.sealing import NAME, Sealed
from tests.conftest import Do, MakeApp
from tests.seals import MARKER, TestSeal, listening, stored
from tests.worker.in_process import run_burst


@dataclass
class Tasks:
    """One task for each way in which a run can end."""

    echo: Task[Any, Any]
    ends: Task[Any, Any]
    joins: Task[Any, Any]
    batched: Task[Any, Any]


def define(app: Penstock) -> Tasks:
    @app.task(queue="q")
    async def echo(text: Any) -> Any:
        return text

    @app.task(queue="q", retry=Retry(1, base=60))
    async def ends(how: str, text: str) -> None:
        if how == "fails":
            raise ValueError(text)
        if how == "drops":
            raise Drop(text)
        if how == "waits":
            raise RetryLater(60, text)
        job = current()
        job.progress(0.5, text)
        job.log(text)
        job.stage.enqueue(echo.call(text))
        job.stage.enqueue(echo_elsewhere.call(text))

    @app.task(queue="r")
    async def echo_elsewhere(text: Any) -> Any:
        return text

    @app.task(queue="q", retry=0)
    async def joins(texts: list[str], text: str) -> list[str]:
        return [*texts, text]

    @app.task(queue="b", batch=Batch(10, linger=0.05))
    async def batched(texts: list[str]) -> list[str]:
        return texts

    return Tasks(echo, ends, joins, batched)


Use = Callable[[Penstock, Tasks, str], Coroutine[Any, Any, Any]]


async def one(app: Penstock, tasks: Tasks, text: str) -> None:
    job = await tasks.echo.using(tags=("a",), priority=3).enqueue.aio({"deep": [text]})
    assert (await job.info.aio()).body == ["echo", {"text": {"deep": [text]}}]
    await run_burst(app)
    assert await job.result.aio(0) == {"deep": [text]}
    assert (await job.info.aio()).result == {"deep": [text]}


async def many(app: Penstock, tasks: Tasks, text: str) -> None:
    jobs = await app.enqueue_many.aio([tasks.echo.call(text) for _ in range(3)])
    await run_burst(app)
    assert [await job.result.aio(0) for job in jobs] == [text] * 3


async def values(app: Penstock, tasks: Tasks, text: str) -> None:
    queue = app.queue("raw")
    await queue.put.aio(text)
    await queue.put_many.aio([text, [text]])
    one, two, three = await app.claim.aio(["raw"], 3)
    assert [one.body, two.body, three.body] == [text, text, [text]]
    await one.complete.aio({"text": text})
    await two.fail.aio(text)
    await three.retry.aio(60, text)
    assert await queue.job(one.id).result.aio(0) == {"text": text}
    (letter,) = await queue.dead.list.aio()
    assert (letter.body, letter.reason) == (text, text)
    assert (await queue.job(three.id).info.aio()).reason == text


async def flow(app: Penstock, tasks: Tasks, text: str) -> None:
    parts = group([tasks.echo.call(text), tasks.echo.call("other")])
    flow = chain(parts, tasks.joins.call(RESULT, text), tasks.echo.call(RESULT))
    job = await flow.enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == [text, "other", text]


async def substitute(app: Penstock, tasks: Tasks, text: str) -> None:
    first = await app.queue("q").put.aio(text)
    waiting = await tasks.echo.using(after=first, on_failure=tasks.echo.call(text)).enqueue.aio("not this")
    (item,) = await app.claim.aio(["q"])
    await item.fail.aio("no")
    await app.queue("q").dead.remove.aio(first.id)
    await run_burst(app)
    assert await waiting.result.aio(0) == text


async def failure(app: Penstock, tasks: Tasks, text: str) -> None:
    heard: list[JobOutcome] = []

    class Listens(Middleware):
        def finished(self, job: Any, outcome: JobOutcome) -> None:
            heard.append(outcome)

    app.add_middleware(Listens())
    job = await tasks.ends.enqueue.aio("fails", text)
    await run_burst(app)
    info = await job.info.aio()
    assert info.reason == heard[0].reason == f"ValueError: {text}"
    assert text in info.traceback
    assert text in (await job.why.aio()).sentence
    await job.promote.aio()
    await run_burst(app)
    with pytest.raises(JobFailed, match=f"ValueError: {text}") as failed:
        await job.result.aio(0)
    assert text in failed.value.traceback
    (found,) = (await app.queue("q").dead.groups.aio()).groups
    assert found.reason == f"ValueError: {text}"
    assert await app.queue("q").dead.requeue.aio(job.id, call=tasks.ends.call("succeeds", text)) == 1
    assert (await job.info.aio()).failures[0].arguments == {"how": "fails", "text": text}


async def other_ends(app: Penstock, tasks: Tasks, text: str) -> None:
    dropped, waits = [await tasks.ends.enqueue.aio(how, text) for how in ("drops", "waits")]
    await run_burst(app)
    with pytest.raises(JobCancelled, match=text):
        await dropped.result.aio(0)
    assert (await waits.info.aio()).reason == text


async def notes_and_stage(app: Penstock, tasks: Tasks, text: str) -> None:
    job = await tasks.ends.enqueue.aio("succeeds", text)
    await run_burst(app)
    info = await job.info.aio()
    assert info.progress is not None
    assert (info.progress.fraction, info.progress.text) == (0.5, text)
    assert [line.text for line in info.log] == [text]
    ended = (await app.queue("q").jobs(state="completed").page.aio(10)).jobs
    assert [one.task for one in ended] == ["echo", "ends"]


async def batches(app: Penstock, tasks: Tasks, text: str) -> None:
    jobs = await app.enqueue_many.aio([tasks.batched.call(text) for _ in range(3)])
    await asyncio.sleep(0.1)
    await run_burst(app)
    assert [await job.result.aio(5) for job in jobs] == [text] * 3


async def edits(app: Penstock, tasks: Tasks, text: str) -> None:
    job = await tasks.echo.using(tags=("a",), delay=60).enqueue.aio("other")
    assert await job.edit.aio(call=tasks.echo.call(text))
    info = await job.info.aio()
    assert (info.body, info.tags) == (["echo", {"text": text}], ("a",))
    assert await job.edit.aio(call=tasks.echo.using(tags=("b",)).call([text]))
    info = await job.info.aio()
    assert (info.body, info.tags) == (["echo", {"text": [text]}], ("b",))
    await job.promote.aio()
    await run_burst(app)
    assert await job.result.aio(0) == [text]


async def schedules(app: Penstock, tasks: Tasks, text: str) -> None:
    info = await app.schedules.add.aio("each", tasks.echo.call(text), every=3600)
    assert info.body == ["echo", {"text": text}]
    job = await app.schedules.trigger.aio("each")
    await run_burst(app)
    assert await job.result.aio(0) == text
    await app.schedules.remove.aio("each")


async def doubles(app: Penstock, tasks: Tasks, text: str) -> None:
    last = tasks.echo.using(unique=Unique(exact="x", debounce=0.05))
    job = await last.enqueue.aio("first")
    await last.enqueue.aio(text)
    await asyncio.sleep(0.1)
    await run_burst(app)
    assert await job.result.aio(0) == text


async def shards(app: Penstock, tasks: Tasks, text: str) -> None:
    app.queue("split", shards=3)

    @app.task(queue="split")
    async def send(text: str) -> str:
        return text

    jobs = await app.enqueue_many.aio([send.using(tenant=f"t{i}").call(text) for i in range(9)])
    jobs += [await send.using(tenant="t1").enqueue.aio(text)]
    await run_burst(app)
    assert {await job.result.aio(0) for job in jobs} == {text}


async def other_queue(app: Penstock, tasks: Tasks, text: str) -> None:
    job = await tasks.echo.enqueue.aio(text)
    await app.queue("q").jobs(state="ready").move.aio(app.queue("r"))
    await run_burst(app)
    assert await app.job(job.id.replace("q:", "r:")).result.aio(0) == text


async def durable_steps(app: Penstock, tasks: Tasks, text: str) -> None:
    async def passes() -> dict[str, str]:
        return {"text": text}

    async def fails() -> None:
        raise ValueError(text)

    runs: list[list[Any]] = []

    @app.task(queue="q")
    async def durable() -> list[Any]:
        seen: list[Any] = [await step(passes)]
        try:
            await step(fails)
        except ValueError as error:
            seen.append(str(error))
        runs.append(seen)
        return [*seen, await wait_for("go")]

    job = await durable.enqueue.aio()
    await run_burst(app)
    assert await job.status.aio() is Status.SLEEPING
    await job.signal.aio("go", [text])
    await job.signal.aio("go", [text])
    await run_burst(app)
    assert runs == [[{"text": text}, text]] * 2
    assert await job.result.aio(0) == [{"text": text}, text, [text]]


async def children(app: Penstock, tasks: Tasks, text: str) -> None:
    @app.task(queue="q")
    async def parent() -> list[Any]:
        answers: list[Any] = [await run(tasks.echo.call({"text": text}))]
        try:
            await run(fails.call(text))
        except JobFailed as error:
            answers.append(error.reason)
        return answers

    @app.task(queue="q")
    async def fails(text: str) -> None:
        raise ValueError(text)

    job = await parent.enqueue.aio()
    await run_burst(app)
    assert await job.result.aio(0) == [{"text": text}, f"ValueError: {text}"]


USES: dict[str, Use] = {
    use.__name__: use
    for use in (
        *(one, many, values, flow, substitute, failure, other_ends, notes_and_stage, batches, edits, schedules),
        *(doubles, shards, other_queue, durable_steps, children),
    )
}


@pytest.mark.parametrize("use", USES)
async def test_no_text_of_a_sealing_app_reaches_the_server(make_app: MakeApp, nodes: list[Any], server: Any, use: str):
    app = make_app(seal=TestSeal("k1"))
    with listening([server]) as wire:
        await USES[use](app, define(app), MARKER)
        assert [key for node in nodes for key in stored(node, MARKER)] == []
    assert MARKER not in wire


async def test_an_enqueue_in_a_pipeline_is_sealed(make_app: MakeApp, server: Any):
    app = make_app(seal=TestSeal("k1"))
    tasks = define(app)
    with listening([server]) as wire:
        client = valkey.asyncio.Valkey.from_url(server.address)
        async with client.pipeline(transaction=True) as pipeline:
            job = tasks.echo.enqueue_in(pipeline, MARKER)
            await pipeline.execute()
        await client.aclose()
        await run_burst(app)
        assert await job.result.aio(0) == MARKER
    assert MARKER not in wire


async def test_the_listener_hears_an_app_that_does_not_seal(make_app: MakeApp, server: Any):
    app = make_app()
    with listening([server]) as wire:
        await define(app).echo.enqueue.aio(MARKER)
        assert stored(server.client, MARKER) != []
    assert MARKER in wire


# --- keys ---


async def test_a_job_without_its_key_is_handed_back_without_an_attempt(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
):
    producer = make_app(seal=TestSeal("k1", "k2"))
    worker = make_app(prefix=producer.settings.prefix, seal=TestSeal("k1"))
    echo = define(producer).echo
    jobs = await producer.enqueue_many.aio([echo.call(MARKER) for _ in range(3)])
    define(worker)
    with caplog.at_level(logging.INFO, "penstock.worker"):
        await run_burst(worker)
    said = [one.getMessage() for one in caplog.records if "is sealed with key" in one.getMessage()]
    assert len(said) == 1
    assert "the call of echo is sealed with key 'k2', which TestSeal of this program does not have" in said[0]
    for job in jobs:
        info = await job.info.aio()
        assert (info.status, info.attempts, info.deliveries) == (Status.DELAYED, 0, 1)
        assert info.reason.startswith("the call of echo is sealed with key 'k2'")
        assert info.failures[0].outcome == "handed back"
    why = await jobs[0].why.aio()
    assert why.kind == "unknown_task"
    assert "is sealed with key 'k2'" in why.sentence
    assert "do all of them have that key?" in why.sentence
    for job in jobs:
        await job.promote.aio()
    await run_burst(producer)
    assert [await job.result.aio(0) for job in jobs] == [MARKER] * 3


@pytest.mark.parametrize(
    "codec", [None, TestSeal("k1"), TestSeal("k2", secret=b"another")], ids=["none", "old", "wrong"]
)
async def test_a_reader_without_the_key_sees_the_id_of_the_key(make_app: MakeApp, do: Do, codec: TestSeal | None):
    producer = make_app(seal=TestSeal("k1", "k2"))
    reader = make_app(prefix=producer.settings.prefix, seal=codec)
    tasks = define(producer)
    waits = await tasks.echo.enqueue.aio(MARKER)
    info = await do(reader.job(waits.id).info)
    assert info.body == ["echo", Sealed("k2")]
    assert str(info.body[1]) == "sealed with key k2"
    await run_burst(producer)
    done, failed = reader.job(waits.id), await tasks.ends.enqueue.aio("fails", MARKER)
    assert (await do(done.info)).result == Sealed("k2")
    with pytest.raises(SealError, match=r"the result of job .* is sealed with key 'k2'") as refused:
        await do(done.result, 0)
    assert refused.value.key == "k2"
    await run_burst(producer)
    info = await do(reader.job(failed.id).info)
    assert (info.reason, info.traceback) == ("ValueError (sealed with key k2)", "")
    noted = await tasks.ends.enqueue.aio("succeeds", MARKER)
    await run_burst(producer)
    info = await do(reader.job(noted.id).info)
    assert info.progress is not None
    assert (info.progress.fraction, info.progress.text) == (0.5, "(sealed with key k2)")
    assert [line.text for line in info.log] == ["(sealed with key k2)"]
    dropped = await tasks.ends.enqueue.aio("drops", MARKER)
    await run_burst(producer)
    assert (await do(reader.job(dropped.id).info)).reason == "(sealed with key k2)"
    page = await do(producer.queue("q").jobs(state="dropped").page, 10)
    assert [one.reason for one in page.jobs] == ["(sealed with key k2)"]


async def test_sealed_arguments_are_never_replaced_by_others_that_are_not(make_app: MakeApp, do: Do, nodes: list[Any]):
    producer = make_app(seal=TestSeal("k1"))
    other = make_app(prefix=producer.settings.prefix)
    tasks, plain = define(producer), define(other)

    async def fails(text: str) -> None:
        raise ValueError(text)

    dies, plain_dies = (app.task(queue="q", retry=Retry(0))(fails) for app in (producer, other))
    await do(producer.queue("q").keep, arguments=True)
    dead, ended = await dies.enqueue.aio(MARKER), await tasks.echo.enqueue.aio(MARKER)
    await run_burst(producer)
    waits = await tasks.echo.using(delay=60).enqueue.aio(MARKER)
    in_clear, sealed = "a text that nobody may read", "sealed again"
    queue = other.queue("q")
    for change in (
        lambda: do(queue.job(waits.key).edit, call=plain.echo.call(in_clear)),
        lambda: do(queue.dead.requeue, dead.id, call=plain_dies.call(in_clear)),
        lambda: do(queue.run_again, ended.id, plain.echo.call(in_clear)),
    ):
        with pytest.raises(SealError, match=r"the arguments of job q:\S+ are sealed, and this program has no codec"):
            await change()
    assert [await do(job.status) for job in (waits, dead)] == [Status.DELAYED, Status.DEAD]
    assert [key for node in nodes for key in stored(node, in_clear)] == []
    queue = producer.queue("q")
    assert await do(queue.job(waits.key).edit, call=tasks.echo.call(sealed))
    assert await do(queue.dead.requeue, dead.id, call=dies.call(sealed)) == 1
    assert (await do(queue.run_again, ended.id, tasks.echo.call(sealed))).id != ended.id


async def test_a_program_that_claims_gets_an_error_and_can_release_the_job(make_app: MakeApp, do: Do):
    producer = make_app(seal=TestSeal("k1"))
    other = make_app(prefix=producer.settings.prefix)
    job = await producer.queue("q").put.aio(MARKER)
    (item,) = await do(other.claim, ["q"])
    with pytest.raises(SealError, match=r"sealed with key 'k1', and this program has no codec with that key"):
        _ = item.body
    await do(item.release)
    (item,) = await do(producer.claim, ["q"])
    assert (item.body, item.attempts) == (MARKER, 0)
    await do(item.complete)
    assert await job.result.aio(0) is None


async def test_keys_rotate_while_jobs_wait(make_app: MakeApp):
    old = make_app(seal=TestSeal("k1"))
    prefix = old.settings.prefix
    both = make_app(prefix=prefix, seal=TestSeal("k1", "k2"))
    new = make_app(prefix=prefix, seal=TestSeal("k2"))
    tasks = define(old)
    first, failing = await tasks.echo.enqueue.aio(MARKER), await tasks.ends.enqueue.aio("fails", MARKER)
    define(both)
    await run_burst(both)
    assert await both.job(first.id).result.aio(0) == MARKER
    assert await new.job(first.id).result.aio(0) == MARKER
    assert (await new.job(failing.id).info.aio()).reason == f"ValueError: {MARKER}"
    assert (await old.job(failing.id).info.aio()).body == ["ends", {"how": "fails", "text": MARKER}]


async def test_a_key_that_is_removed_too_early_loses_no_job(make_app: MakeApp):
    """The old key is removed while jobs wait that were sealed with it: they wait for a worker that has it again."""
    old = make_app(seal=TestSeal("k1"))
    both = make_app(prefix=old.settings.prefix, seal=TestSeal("k1", "k2"))
    new = make_app(prefix=old.settings.prefix, seal=TestSeal("k2"))
    first, tasks = define(old), define(both)
    before = [await first.echo.enqueue.aio(f"before {n}") for n in range(2)]
    after = [await tasks.echo.enqueue.aio(f"after {n}") for n in range(2)]
    joined = await tasks.joins.using(after=[before[0], after[0]]).enqueue.aio(RESULT, "end")
    define(new)
    await run_burst(new)
    assert [await new.job(job.id).result.aio(0) for job in after] == ["after 0", "after 1"]
    for job in before:
        info = await new.job(job.id).info.aio()
        assert (info.status, info.attempts, "'k1'" in info.reason) == (Status.DELAYED, 0, True)
        await job.promote.aio()
    assert await both.job(joined.id).status.aio() is Status.WAITING
    await run_burst(both)
    assert [await both.job(job.id).result.aio(0) for job in before] == ["before 0", "before 1"]
    assert await both.job(joined.id).result.aio(0) == ["before 0", "after 0", "end"]


async def test_programs_that_seal_and_programs_that_do_not_share_a_queue(make_app: MakeApp):
    sealing = make_app(seal=TestSeal("k1"))
    plain = make_app(prefix=sealing.settings.prefix)
    tasks, others = define(sealing), define(plain)
    one, two = await tasks.echo.enqueue.aio("sealed"), await others.echo.enqueue.aio("plain")
    results = [await others.echo.enqueue.aio("a"), await tasks.echo.enqueue.aio("b")]
    joined = await others.joins.using(after=results).enqueue.aio(RESULT, "c")
    await run_burst(sealing)
    assert [await sealing.job(job.id).result.aio(0) for job in (one, two)] == ["sealed", "plain"]
    assert await sealing.job(joined.id).result.aio(0) == ["a", "b", "c"]


async def test_a_dependent_is_handed_back_if_a_result_cannot_be_opened(make_app: MakeApp):
    sealing = make_app(seal=TestSeal("k1"))
    plain = make_app(prefix=sealing.settings.prefix)
    tasks = define(sealing)
    first = await tasks.echo.enqueue.aio(MARKER)
    joined = await define(plain).joins.using(after=[first]).enqueue.aio(RESULT, "c")
    await sealing.queue("q").pause.aio(task="joins")
    await run_burst(sealing)
    await sealing.queue("q").resume.aio(task="joins")
    await run_burst(plain)
    info = await joined.info.aio()
    assert (info.status, info.attempts) == (Status.DELAYED, 0)
    assert info.reason.startswith("a result of another job, for the call of joins, is sealed with key 'k1'")
    await joined.promote.aio()
    await run_burst(sealing)
    assert await sealing.job(joined.id).result.aio(0) == [MARKER, "c"]


async def test_a_step_that_another_key_has_sealed_costs_no_attempt(make_app: MakeApp):
    newer = make_app(seal=TestSeal("k1", "k2"))
    older = make_app(prefix=newer.settings.prefix, seal=TestSeal("k1"))
    plain = make_app(prefix=newer.settings.prefix)

    def define_durable(app: Penstock) -> Task[[], str]:
        @app.task(queue="q", retry=0)
        async def durable() -> str:
            secret: str = await step(str, MARKER)
            return secret if await wait_for("go") else ""

        return durable

    job = await define_durable(plain).enqueue.aio()
    define_durable(newer)
    await run_burst(newer)
    await plain.job(job.id).signal.aio("go", True)
    define_durable(older)
    await run_burst(older)
    info = await job.info.aio()
    assert (info.status, info.attempts) == (Status.DELAYED, 0)
    assert "the result of step 1 (str) is sealed with key 'k2'" in info.reason
    await job.promote.aio()
    await run_burst(newer)
    assert await newer.job(job.id).result.aio(0) == MARKER


# --- bad codecs and sizes ---


class Broken:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def seal(self, body: bytes) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def open(self, sealed: bytes, key: str) -> bytes:
        raise KeyError(key)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (OSError("no vault"), r"could not be sealed, and was not sent: Broken raised OSError\('no vault'\)"),
        (("", b"x"), "returned '' as the id of its key"),
        (("two words", b"x"), "returned 'two words' as the id of its key"),
        (('a"b', b"x"), "as the id of its key"),
        (("k" * 65, b"x"), "as the id of its key"),
        (("k1", "text"), "returned str, not bytes"),
        (b"only bytes", "returned bytes, not the id of a key and bytes"),
        (None, "returned NoneType, not the id of a key and bytes"),
    ],
    ids=range(8),
)
async def test_a_codec_that_fails_sends_nothing(make_app: MakeApp, do: Do, answer: Any, words: str):
    app = make_app(seal=Broken(answer))
    with pytest.raises(SealError, match=words):
        await do(define(app).echo.enqueue, MARKER)
    with pytest.raises(SealError, match=words):
        await do(app.queue("q").put, MARKER)
    assert (await app.queue("q").count.aio()).waiting == 0


@pytest.mark.parametrize("opened", ["a text", None, 3, {"a": 1}])
async def test_a_codec_that_opens_to_something_else_than_bytes_is_an_error_that_says_so(
    make_app: MakeApp, do: Do, opened: Any
):
    class Wrong(TestSeal):
        def open(self, sealed: bytes, key: str) -> bytes:
            return opened

    sealing = make_app(seal=TestSeal("k1"))
    app = make_app(prefix=sealing.settings.prefix, seal=Wrong("k1"))
    job = await define(sealing).echo.enqueue.aio("a")
    await run_burst(sealing)
    with pytest.raises(SealError, match=rf"Wrong\.open\(\) returned {type(opened).__name__}, not bytes"):
        await do(app.job(job.id).result, 0)
    assert (await do(app.job(job.id).info)).result == Sealed("k1")


async def test_a_result_that_cannot_be_sealed_is_a_dead_letter_without_its_text(make_app: MakeApp, server: Any):
    plain = make_app()
    app = make_app(prefix=plain.settings.prefix, seal=Broken(OSError("no vault")))
    tasks = define(plain)
    job, failing = await tasks.echo.enqueue.aio("a"), await tasks.ends.enqueue.aio("fails", "b")
    define(app)
    with listening([server]) as wire:
        await run_burst(app)
    assert (await job.info.aio()).reason == "(this text could not be sealed)"
    assert (await failing.info.aio()).reason == "ValueError (this text could not be sealed)"
    assert "no vault" not in wire


async def test_sizes_are_those_of_what_is_sent(make_app: MakeApp, do: Do):
    app = make_app(seal=TestSeal("k1"), max_payload=1000)
    echo = define(app).echo
    with pytest.raises(
        PayloadTooLarge, match=r"echo\(\) is 1,2\d\d bytes when it is sealed, 9\d\d before, the limit is 1,000"
    ):
        await do(echo.enqueue, "x" * 900)
    job = await do(echo.enqueue, "x" * 600)
    await run_burst(app)
    assert await job.result.aio(0) == "x" * 600


async def test_a_codec_that_compresses_sends_more_than_the_limit(make_app: MakeApp, do: Do):
    class Zlib:
        def seal(self, body: bytes) -> tuple[str, bytes]:
            return "zlib", zlib.compress(body)

        def open(self, sealed: bytes, key: str) -> bytes:
            return zlib.decompress(sealed)

    app = make_app(seal=Zlib(), max_payload=1000)
    job = await do(define(app).echo.enqueue, "x" * 100_000)
    await run_burst(app)
    assert await job.result.aio(0) == "x" * 100_000


async def test_a_codec_that_inflates_loses_a_note_and_no_job(make_app: MakeApp):
    class Inflates:
        def seal(self, body: bytes) -> tuple[str, bytes]:
            return "k1", body + b"." * 70_000

        def open(self, sealed: bytes, key: str) -> bytes:
            return sealed[:-70_000]

    app = make_app(seal=Inflates())
    job = await define(app).ends.enqueue.aio("succeeds", "x")
    failing = await define_failing(app).enqueue.aio()
    await run_burst(app)
    info = await job.info.aio()
    assert (info.status, info.log[0].text) == (Status.COMPLETED, "(this text is too long when it is sealed)")
    assert (await failing.info.aio()).reason == "ValueError (its text is too long when it is sealed)"


def define_failing(app: Penstock) -> Task[[], None]:
    @app.task(queue="q")
    async def fails() -> None:
        raise ValueError("x")

    return fails


async def test_the_name_of_the_envelope_is_reserved(app: Penstock, do: Do):
    with pytest.raises(BadCall, match=r"'\*sealed' as its first name is reserved"):
        await do(app.queue("q").put, {"*sealed": ["k", "x"]})


async def test_a_damaged_sealed_payload_is_handed_back(make_app: MakeApp, raw: Any):
    app = make_app(seal=TestSeal("k1"))
    job = await define(app).echo.enqueue.aio(MARKER)
    jobs = f"{app.queue('q').first.bindings.keys.base}jobs"
    for spoilt in (lambda body: body[:-9] + b"!!!" + body[-6:], lambda body: body[:-1]):
        await app.queue("q").count.aio()
        raw.hset(jobs, job.key, spoilt(raw.hget(jobs, job.key)))
        await run_burst(app)
        info = await job.info.aio()
        assert (info.status, info.attempts) == (Status.DELAYED, 0)
        assert "and TestSeal cannot open it" in info.reason
        await job.promote.aio()
    await job.cancel.aio()


def test_scripts_recognise_a_sealed_text_by_the_name_that_clients_give_it():
    constants = sections.constants("children.lua", scripts.read("jobs/children.lua"))
    assert constants["_children"]["SEALED"] == NAME
