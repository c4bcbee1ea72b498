"""A job that has ended runs again as a new one, with the arguments that were kept or with others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock import BadCall, Concurrency, Drop, Penstock, Status, Unique, result_of
from penstock.errors import CannotRunAgain, JobNotFound, QueueFull
from penstock.info import JobInfo
from penstock.jobs.constants import KEPT_RECORD
from penstock.jobs.job_list import JobSummary
from penstock.ops.inspect import Inspector
from tests.conftest import Do, Time
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.worker.in_process import run_burst


def stored(app: Penstock, raw: Any, name: str = "q") -> dict[bytes, bytes]:
    """The records that are kept of ended jobs."""
    base = app.queue(name).first.bindings.keys.base
    return {key: one for block in raw.scan_iter(f"{base}arguments:*") for key, one in raw.hgetall(block).items()}


@pytest.mark.parametrize("end", ["completed", "cancelled", "expired", "dropped"])
async def test_a_job_runs_again_however_it_ended(app: Penstock, do: Do, clock: Time, end: str):
    seen = []

    @app.task(queue="q", tags=["n:{n}"])
    async def note(n: int, word: str = "") -> int:
        seen.append((n, word))
        if end == "dropped":
            raise Drop
        return n

    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    options: dict[str, Any] = {"tenant": "acme", "priority": 3, "tags": ["vip"], "result_ttl": 77}
    old = await do(note.using(expires=60, **options).enqueue, 7, word="x")
    if end == "cancelled":
        await do(old.cancel)
    elif end == "expired":
        clock.advance(61)
    await run_burst(app)
    assert (await do(Inspector(app).jobs.show, old.id)).status == end
    new = await do(queue.run_again, old.id)
    info: JobInfo = await do(new.info)
    assert new.id != old.id
    assert (info.status, info.body) == (Status.READY, ["note", {"n": 7, "word": "x"}])
    assert (info.tenant, info.priority, info.tags, info.expires) == ("acme", 3, ("n:7", "vip"), None)
    assert (info.attempts, info.deliveries, info.failures) == (0, 0, ())
    await run_burst(app)
    assert seen[-1:] == [(7, "x")]
    if end == "completed":
        assert await do(new.result, 0) == 7
    again = await do(queue.run_again, new.id)
    assert again.id not in (old.id, new.id)


async def test_a_bare_value_runs_again(app: Penstock, do: Do):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    job = await do(queue.put, {"to": "ada"}, id="own", tags=["a"])
    (item,) = await do(queue.claim)
    await do(item.complete)
    with pytest.raises(BadCall, match="is a bare value"):
        await do(Inspector(app).jobs.run_again, job.id, {"to": "bo"})
    new = await do(queue.run_again, job.id)
    (item,) = await do(queue.claim)
    assert (item.id, item.body, item.tags) == (new.id, {"to": "ada"}, ("a",))
    await do(item.complete)


async def test_nothing_is_kept_unless_the_queue_says_so(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")

    async def ended() -> str:
        job = await do(queue.put, 1)
        (item,) = await do(queue.claim)
        await do(item.complete)
        return job.id

    first = await ended()
    assert stored(app, raw) == {}
    with pytest.raises(CannotRunAgain, match=r"queue q does not keep them.*queue keep q --arguments"):
        await do(queue.run_again, first)
    await do(queue.keep, arguments=True)
    with pytest.raises(CannotRunAgain, match="it ended before queue q kept arguments"):
        await do(queue.run_again, first)
    second = await ended()
    assert len(stored(app, raw)) == 1
    assert (await do(queue.kept)).arguments
    await do(queue.keep, finished=100)  # what is not given is as usual
    assert stored(app, raw) == {}
    with pytest.raises(CannotRunAgain, match="does not keep them"):
        await do(queue.run_again, second)
    await do(queue.keep, arguments=True)
    await ended()
    await do(queue.keep, finished=0)
    assert stored(app, raw) == {}


async def test_a_large_record_is_not_kept(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    jobs = [await do(queue.put, "x" * size) for size in (KEPT_RECORD - 100, KEPT_RECORD)]
    cancelled = await do(queue.put, "x" * KEPT_RECORD)
    await do(cancelled.cancel)
    for item in await do(queue.claim, 2):
        await do(item.complete)
    assert [*stored(app, raw)] == [jobs[0].key.encode()]
    for job in (jobs[1], cancelled):
        with pytest.raises(CannotRunAgain, match="larger than 4,096 bytes"):
            await do(queue.run_again, job.id)


async def test_arguments_leave_with_the_block_of_their_rows(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")

    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None: ...

    await do(queue.keep, finished=100, finished_age=500, arguments=True)
    jobs = await do(app.enqueue_many, [nothing.call(n) for n in range(1000)])
    await run_burst(app)
    rows: list[JobSummary] = []
    cursor = None
    while not rows or cursor:
        page = await do(queue.jobs(state="ended").page, 1000, cursor)
        rows, cursor = rows + page.jobs, page.cursor
    assert 100 <= len(rows) < 400
    assert {key.decode() for key in stored(app, raw)} == {row.id.partition(":")[2] for row in rows}
    base = queue.first.bindings.keys.base
    assert all(400_000 < raw.pttl(key) <= 500_000 for key in raw.scan_iter(f"{base}arguments:*"))
    new = await do(queue.run_again, jobs[-1].id)
    assert (await do(new.info)).body == ["nothing", {"n": 999}]
    with pytest.raises(JobNotFound, match="its row is gone"):
        await do(queue.run_again, jobs[0].id)


async def test_other_arguments_need_not_have_been_kept(app: Penstock, do: Do):
    queue = app.queue("q")

    @app.task(queue="q", tags=["{tenant}/{n}"])
    async def note(n: int) -> int:
        return n

    @app.task(queue="q")
    async def other(n: int) -> int:
        return n

    old = await do(note.using(tenant="acme", priority=2).enqueue, 1)
    plain = await do(other.using(tags=["vip"]).enqueue, 1)
    await run_burst(app)
    new = await do(queue.run_again, old.id, note.call(2))
    info: JobInfo = await do(new.info)
    assert (info.body, info.tenant, info.priority, info.tags) == (["note", {"n": 2}], "acme", 2, ("acme/2",))
    kept_tags = await do(queue.run_again, plain.id, other.call(3))
    assert (await do(kept_tags.info)).tags == ("vip",)
    delayed = await do(queue.run_again, old.id, note.using(delay=60).call(4))
    assert await do(delayed.status) is Status.DELAYED
    with pytest.raises(BadCall, match="is not of task 'other'"):
        await do(queue.run_again, old.id, other.call(2))
    with pytest.raises(BadCall, match="give a call"):
        await do(queue.run_again, old.id, {"n": 2})
    await run_burst(app)
    assert await do(new.result, 0) == 2


async def test_a_job_that_is_there_does_not_run_again(app: Penstock, do: Do):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    job = await do(queue.put, 1)
    with pytest.raises(CannotRunAgain, match="is ready: it can run again when it has ended"):
        await do(queue.run_again, job.id)
    (item,) = await do(queue.claim)
    with pytest.raises(CannotRunAgain, match="is running"):
        await do(queue.run_again, job.id)
    await do(item.fail, "no")
    with pytest.raises(CannotRunAgain, match="is a dead letter: requeue it"):
        await do(queue.run_again, job.id)
    await do(queue.dead.remove, job.id)
    with pytest.raises(CannotRunAgain, match="its arguments were removed with it"):
        await do(queue.run_again, job.id)
    with pytest.raises(JobNotFound, match="no row of job q:none"):
        await do(queue.run_again, "q:none")


async def test_a_unique_key_and_bounds_hold_for_the_new_job(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{account}"))
    async def charge(account: str) -> None: ...

    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    old = await do(charge.enqueue, "ada")
    await run_burst(app)
    first = await do(queue.run_again, old.id)
    assert await do(queue.run_again, old.id) == first  # a double, as of any enqueue
    assert await do(charge.enqueue, "ada") == first
    await run_burst(app)
    await do(queue.put, 1)
    await do(queue.bound, jobs=1)
    with pytest.raises(QueueFull):
        await do(queue.run_again, old.id)
    await do(queue.purge)


async def test_limits_hold_for_the_new_job(app: Penstock, do: Do):
    @app.task(queue="q", limit=Concurrency(1, key="{tenant}"))
    async def charge(account: str) -> None: ...

    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    old = await do(charge.using(tenant="acme").enqueue, "ada")
    await run_burst(app)
    await do(charge.using(tenant="acme").enqueue, "bo")
    (item,) = await do(queue.claim)
    same = await do(queue.run_again, old.id)
    others = await do(queue.run_again, old.id, charge.call("cy"))
    assert [await do(one.status) for one in (same, others)] == [Status.PARKED] * 2
    await do(item.complete)
    await run_burst(app)
    assert (await do(queue.count)).completed == 4


async def test_results_of_other_jobs_are_given_again(app: Penstock, do: Do):
    seen = []

    @app.task(queue="q")
    async def part(n: int) -> int:
        return n

    @app.task(queue="q")
    async def total(n: int, note: str) -> None:
        seen.append((n, note))

    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    first = await do(part.enqueue, 5)
    old = await do(total.using(after=first).enqueue, result_of(first), "x")
    await run_burst(app)
    await do(queue.run_again, old.id)
    await run_burst(app)
    assert seen == [(5, "x")] * 2
    waits = await do(part.using(delay=60).enqueue, 5)
    never = await do(total.using(after=waits).enqueue, result_of(waits), "x")
    plain = await do(total.using(after=waits).enqueue, 6, "y")
    await do(never.cancel)
    await do(plain.cancel)
    with pytest.raises(CannotRunAgain, match="before the jobs had completed whose results"):
        await do(queue.run_again, never.id)
    await do(queue.run_again, plain.id)
    await run_burst(app)
    assert seen[2:] == [(6, "y")]
    await do(waits.cancel)


async def test_a_job_of_a_sharded_queue_runs_again(app: Penstock, do: Do):
    queue = app.queue("s", shards=3)

    @app.task(queue="s", unique=Unique("{tenant}/{n}"))
    async def note(n: int) -> int:
        return n

    await do(queue.keep, arguments=True)
    jobs = [await do(note.using(tenant=f"t{n}").enqueue, n) for n in range(8)]
    await run_burst(app)
    assert len({job.shard for job in jobs}) > 1
    for n, job in enumerate(jobs):
        new = await do(queue.run_again, job.id)
        assert new.shard == job.shard
        assert (await do(new.info)).body == ["note", {"n": n}]
        changed = await do(Inspector(app).jobs.run_again, job.id, {"n": n + 100})
        assert (await do(changed.info)).body == ["note", {"n": n + 100}]
    await run_burst(app)


async def test_a_purge_keeps_no_arguments(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    jobs = await do(queue.put_many, range(3))
    await do(queue.purge)
    assert stored(app, raw) == {}
    with pytest.raises(JobNotFound, match="no row"):
        await do(queue.run_again, jobs[0].id)


async def test_the_inspector_shows_kept_arguments(app: Penstock, do: Do):
    @app.task(queue="q", result_ttl=0)
    async def note(n: int) -> None: ...

    inspector = Inspector(app)
    await do(app.queue("q").keep, arguments=True)
    job = await do(note.enqueue, 7)
    await run_burst(app)
    info: JobInfo = await do(inspector.jobs.show, job.id)
    assert (info.status, info.body) == (Status.COMPLETED, ["note", {"n": 7}])
    new = await do(inspector.jobs.run_again, job.id)
    assert (await do(new.info)).body == ["note", {"n": 7}]
    with pytest.raises(JobNotFound):
        await do(inspector.jobs.run_again, "never:used", {"n": 1})
    with pytest.raises(BadCall):
        await do(inspector.jobs.run_again, job.id, {"m": 1})
    with pytest.raises(CannotRunAgain, match="is ready"):
        await do(inspector.jobs.run_again, new.id, {"n": 1})


@pytest.mark.parametrize("trips", range(6))
async def test_a_job_that_ends_meanwhile_never_runs_again_with_the_old_arguments(app: Penstock, trips: int):
    """It ends after this many round trips of the call that gives others."""
    queue = app.queue("q")

    @app.task(queue="q")
    async def note(n: int) -> None: ...

    def run_again() -> list[Any]:
        effect: Any
        queue.keep(arguments=True)
        job = note.enqueue(1)
        (item,) = queue.claim()
        operation, answer, sent = Inspector(app).jobs.run_again.within(job.id, {"n": 2}), None, 0
        with contextlib.suppress(StopIteration, CannotRunAgain):
            while True:
                effect = operation.send(answer)
                if sent == trips:
                    item.complete()
                answer, sent = app._driver.blocking.run(effect), sent + 1
        if sent <= trips:
            item.complete()
        return [one.body for one in queue.claim(9)]

    assert await asyncio.to_thread(run_again) in ([], [["note", {"n": 2}]])


async def test_arguments_without_rows_are_refused(app: Penstock, do: Do):
    for bad in ({"arguments": True, "finished": 0}, {"arguments": 1}, {"arguments": None}):
        with pytest.raises(BadCall, match="arguments"):
            await do(app.queue("q").keep, **bad)


async def test_a_damaged_key_of_arguments_keeps_no_job_from_ending(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")
    await do(queue.keep, arguments=True)
    jobs = await do(queue.put_many, range(2))
    raw.set(f"{queue.first.bindings.keys.base}arguments:1", "?")
    for item in await do(queue.claim, 2):
        await do(item.complete)
    assert (await do(queue.count)).completed == 2
    assert [*stored(app, raw)] == [jobs[1].key.encode()]


async def test_a_lost_reply_makes_one_job(do: Do):
    """Whichever of the round trips it is."""
    with Server() as server, contextlib.closing(Proxy(server)) as proxy:
        async with Penstock(server.address) as direct, Penstock(proxy.address) as app:
            queue = direct.queue("q")
            await queue.keep.aio(arguments=True)
            old = await queue.put.aio("x")
            (item,) = await queue.claim.aio()
            await item.complete.aio()
            await do(app.queue("q").run_again, old.id)  # the server knows the scripts now
            for lost in range(5):
                proxy.lose_replies(1, after=lost)
                new = await do(app.queue("q").run_again, old.id)
                assert proxy.lost == lost + 1
                jobs = await queue.claim.aio(9)
                assert [item.id for item in jobs][-1:] == [new.id]
                assert len(jobs) == 1 + (lost == 0)
                for item in jobs:
                    await item.complete.aio()


async def test_dropped_rows_of_dead_letters_take_no_arguments_along(app: Penstock, do: Do, raw: Any):
    """Both lists number their blocks from 1."""
    queue = app.queue("q")
    await do(queue.keep, arguments=True, finished=40)
    old = await do(queue.put, "first")
    (item,) = await do(queue.claim)
    await do(item.complete)
    for _ in range(4):
        for n in range(40):
            await do(queue.put, n)
        for item in await do(queue.claim, 40):
            await do(item.fail, "x" * 200)
    assert raw.lindex(f"{queue.first.bindings.keys.base}failed:blocks", 0)[:4] != b"\0\0\0\1"  # it has left
    new = await do(queue.run_again, old.id)
    assert (await do(new.info)).body == "first"
