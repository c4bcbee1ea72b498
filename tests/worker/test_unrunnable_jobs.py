"""Jobs that a worker cannot run: damaged in the server, of an unknown task, or with arguments that do not match."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Batch, JobFailed, Penstock, PenstockError, ResultTimeout, Status, Task
from penstock.errors import FormatTooNew
from penstock.jobs.constants import FORMAT
from penstock.jobs.record import HEADER_SIZE, Record, pack_sections, with_power
from tests.conftest import MakeApp, Time
from tests.worker.in_process import run_burst


@pytest.fixture
def add(app: Penstock) -> Task[Any, int]:
    @app.task(queue="q", retry=5)
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return add


Damage = Callable[[str, Callable[[bytes], bytes]], None]


@pytest.fixture
def damage(app: Penstock, raw: Any) -> Damage:
    """Overwrites a job's record in the server."""

    def change(key: str, how: Callable[[bytes], bytes]) -> None:
        jobs = f"{app.queue('q').first.bindings.keys.base}jobs"
        raw.hset(jobs, key, how(raw.hget(jobs, key)))

    return change


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "add(): Input data was truncated"),
        (b"\x00\xff\xfe garbage", "add(): JSON is malformed"),
        (b'{"a":1', "add(): Input data was truncated"),
        (b"7", "add(): Expected `object`, got `int`"),
        (b"[]", "add(): Expected `object`, got `array`"),
        (b'{"a":"one"}', "add(): Expected `int`, got `str` for a"),
        (b"{}", "add(): Object missing required field `a`"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "add()"),
        (b'{"a":1e999}', "add()"),
    ],
    ids=range(9),
)
async def test_a_payload_that_cannot_be_decoded_is_a_dead_letter_with_a_reason(
    app: Penstock, add: Task[Any, int], damage: Damage, payload: bytes, reason: str
):
    bad, good = await add.enqueue.aio(1), await add.enqueue.aio(2)
    damage(bad.key, lambda body: body[: -len(Record(body).payload)] + payload)
    await run_burst(app)
    (letter,) = await app.queue("q").dead.list.aio()
    assert letter.id == bad.id
    assert reason in letter.reason
    assert await good.result.aio(0) == 3
    with pytest.raises(JobFailed, match="failed: "):
        await bad.result.aio(0)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "short": lambda body: body[:5],
    "a header cut off": lambda body: body[: HEADER_SIZE - 3],
    "another state": lambda body: body[:1] + b"?" + body[2:],
    "another format": lambda body: b"\xff" + body[1:],
    "a tenant beyond the end": lambda body: body[: HEADER_SIZE - 1] + b"\xff" + body[HEADER_SIZE:],
    "a tenant that is no text": lambda body: body[: HEADER_SIZE - 1] + b"\x02\xff\xfe" + body[HEADER_SIZE:],
    "a task beyond the end": lambda body: body[:HEADER_SIZE] + b"\xff" + body[HEADER_SIZE + 1 :],
    "a task that is no text": lambda body: body[: HEADER_SIZE + 1] + b"\xff\xfe\xff" + body[HEADER_SIZE + 4 :],
    "a trace beyond the end": lambda body: body[: HEADER_SIZE + 4] + b"\xff" + body[HEADER_SIZE + 5 :],
    "noise": lambda body: bytes((n * 37 + 11) % 256 for n in range(len(body))),
    "text": lambda body: json.dumps({"id": "x" * 100}).encode(),
}


@pytest.mark.damages
@pytest.mark.parametrize("how", DAMAGE)
async def test_a_damaged_record_stops_no_other_job(app: Penstock, add: Task[Any, int], damage: Damage, how: str):
    jobs = await app.enqueue_many.aio(add.call(n) for n in range(5))
    damage(jobs[1].key, DAMAGE[how])
    await run_burst(app, concurrency=1)
    assert [await jobs[n].result.aio(0) for n in (0, 2, 3, 4)] == [1, 3, 4, 5]


@pytest.mark.damages
@pytest.mark.parametrize("ending", ["complete", "retry", "fail", "release"])
@pytest.mark.parametrize("how", ["empty", "short", "noise"])
async def test_a_record_damaged_while_its_job_runs_is_settled_or_reported(
    app: Penstock, add: Task[Any, int], damage: Damage, how: str, ending: str
):
    bad, good = await add.enqueue.aio(1), await add.enqueue.aio(2)
    (item,) = await app.queue("q").claim.aio()
    damage(bad.key, DAMAGE[how])
    with contextlib.suppress(PenstockError):
        await getattr(item, ending).aio(*(["no"] if ending == "fail" else []))
    await run_burst(app)
    assert await good.result.aio(0) == 3


async def test_a_job_with_an_option_of_a_newer_release_waits_for_a_worker_that_knows_it(
    app: Penstock, add: Task[Any, int], raw: Any
):
    job, other = await add.enqueue.aio(1), await add.enqueue.aio(2)
    await job.info.aio()  # moves the calls out of the intake
    jobs = f"{app.queue('q').first.bindings.keys.base}jobs"
    raw.hset(jobs, job.key, with_new_power(raw.hget(jobs, job.key)))
    await run_burst(app)
    assert await other.result.aio(0) == 3
    info = await job.info.aio()
    assert info.status is Status.DELAYED
    assert "does not know" in (info.reason or "")


async def test_a_batch_leaves_out_a_job_with_an_option_of_a_newer_release(app: Penstock, raw: Any):
    ran: list[int] = []

    @app.task(queue="q", batch=Batch(3))
    async def together(numbers: list[int]) -> None:
        ran.extend(numbers)

    jobs = await app.enqueue_many.aio(together.call(n) for n in range(3))
    await jobs[1].info.aio()  # moves the calls out of the intake
    stored = f"{app.queue('q').first.bindings.keys.base}jobs"
    raw.hset(stored, jobs[1].key, with_new_power(raw.hget(stored, jobs[1].key)))
    await run_burst(app)
    assert ran == [0, 2]
    info = await jobs[1].info.aio()
    assert info.status is Status.DELAYED
    assert "does not know" in (info.reason or "")


def with_new_power(body: bytes) -> bytes:
    """The record of a job without powers, with one that this release does not know."""
    end = len(body) - len(Record(body).payload)
    return with_power(body[:end], 64) + pack_sections({64: b"new"}) + body[end:]


@pytest.mark.damages
async def test_a_record_deleted_by_hand_stops_no_other_job(app: Penstock, add: Task[Any, int], raw: Any):
    jobs = await app.enqueue_many.aio(add.call(n) for n in range(3))
    delayed = await add.using(delay=0.05).enqueue.aio(1)
    base = app.queue("q").first.bindings.keys.base
    (running,) = await app.queue("q").claim.aio(lease=0.1)
    for job in (running.id.partition(":")[2], jobs[1].key, delayed.key):
        raw.hdel(f"{base}jobs", job)
    await run_burst(app)
    assert await jobs[2].result.aio(0) == 3


# --- unknown tasks ---


async def test_a_job_of_an_unknown_task_is_handed_back_and_the_others_run(
    make_app: MakeApp, clock: Time, app: Penstock, add: Task[Any, int], caplog: pytest.LogCaptureFixture
):
    newer = make_app(prefix=app.settings.prefix)
    newer.clock.now_ms = app.clock.now_ms

    @newer.task(queue="q")
    def multiply(a: int, b: int) -> int:
        return a * b

    unknown = await multiply.enqueue.aio(6, 7)
    known = await add.enqueue.aio(1)
    for n in range(4):
        await run_burst(app)
        info = await unknown.info.aio()
        assert (info.status, info.attempts, info.deliveries) == (Status.DELAYED, 0, n + 1)
        assert info.reason.startswith("no task 'multiply' in this worker; known are: ")
        assert (info.since or 0) - clock.now == pytest.approx(5 * 2**n, abs=0.01)
        clock.advance(5 * 2**n)
    assert await known.result.aio(0) == 2
    assert "cannot run in this worker: no task 'multiply' in this worker; known are: " in caplog.text
    with pytest.raises(ResultTimeout, match="waits for a worker that can read it: the last one handed it back"):
        await unknown.result.aio(0)
    newer.clock.now_ms = app.clock.now_ms
    await run_burst(newer)
    assert await unknown.result.aio(0) == 42


async def test_a_job_whose_task_no_worker_knew_for_an_hour_is_a_dead_letter(
    make_app: MakeApp, clock: Time, app: Penstock, add: Task[Any, int]
):
    newer = make_app(prefix=app.settings.prefix)

    @newer.task(queue="q", name="lost")
    def lost() -> None: ...

    job = await lost.enqueue.aio()
    began, hand_backs = clock.now, 0
    await run_burst(app)
    while await job.status.aio() is Status.DELAYED:
        hand_backs += 1
        assert hand_backs < 100
        clock.advance(61)
        await run_burst(app)
    assert 3600 <= clock.now - began < 3900
    (letter,) = await app.queue("q").dead.list.aio()
    assert letter.reason.startswith("no task 'lost' in this worker; ")


async def test_a_bare_value_in_a_workers_queue_is_handed_back(app: Penstock, add: Task[Any, int]):
    value, known = await app.queue("q").put.aio({"a": 1}), await add.enqueue.aio(1)
    await run_burst(app)
    info = await value.info.aio()
    assert (info.status, info.reason) == (Status.DELAYED, "a bare value, not a call of a task")
    assert await known.result.aio(0) == 2


async def test_a_newer_format_ends_the_worker_with_one_error(app: Penstock, add: Task[Any, int], raw: Any):
    meta = f"{app.queue('q').first.bindings.keys.base}meta"
    await add.enqueue.aio(1)
    row = raw.hget(meta, "row")
    raw.hset(meta, "row", bytes([FORMAT + 1]) + row[1:])
    with pytest.raises(FormatTooNew, match=str(FORMAT + 1)):
        await run_burst(app)
    raw.hset(meta, "row", row)
