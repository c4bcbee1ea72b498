"""Rows of jobs that have ended: written by the script that ends them, bounded, read newest first."""

import os
import socket
from itertools import pairwise
from typing import Any

import pytest

from penstock import BadCall, Drop, Penstock, Retry, Status
from penstock.core.ids import mint_id, packed_id, text_of_id
from penstock.errors import ConfigurationError
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.constants import CALL
from penstock.jobs.finished import BlockSlice, CompletedRows, read_block, read_links
from penstock.jobs.finished_list import EndedJobs, FinishedFilter, finished_page
from penstock.jobs.job_list import JobSummary
from penstock.jobs.record import Record, draft
from penstock.jobs.retention import Retention
from penstock.ops.inspect import Inspector
from tests.conftest import Do, Time
from tests.jobs.stand import FakeWorker, Stand
from tests.worker.in_process import run_burst


async def ended(app: Penstock, do: Do, **wanted: Any) -> list[JobSummary]:
    found, cursor = [], None
    while True:
        page = await do(app.queue("q").jobs(**{"state": "ended", **wanted}).page, 1000, cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


async def test_a_completed_job_leaves_one_row(app: Penstock, do: Do):
    @app.task(queue="q", tags=["n:{n}"])
    async def add(n: int) -> int:
        return n

    job = await do(add.using(tenant="acme", priority=3).enqueue, 7)
    await run_burst(app)
    (row,) = await ended(app, do)
    assert (row.id, row.status, row.task, row.tenant, row.priority) == (job.id, Status.COMPLETED, "add", "acme", 3)
    assert (row.tags, row.attempts, row.deliveries) == (("n:7",), 0, 1)
    assert row.worker
    assert row.started is not None
    assert row.ended is not None
    assert row.enqueued <= row.started <= row.ended < row.enqueued + 60


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled", "dropped"])
async def test_a_row_has_the_last_failed_attempts(app: Penstock, do: Do, end: str):
    """Also when nothing else is left of the job."""
    queue = app.queue("q")
    job = await do(queue.put, 1, id="own", tags=["t" * 64] * 1, result_ttl=0)
    for n in range(3):
        (item,) = await do(queue.claim, lease=60)
        await do(item.retry, 0, f'ValueError: no "luck" {n} ' + "é" * 300)
    (item,) = await do(queue.claim, lease=60)
    if end == "completed":
        await do(item.complete)
    elif end == "dead":
        await do(item.fail, "KeyError: at last")
        await do(queue.dead.remove, job.id)
    elif end == "dropped":
        settlement = Settlement(item._claim.token, b"", "drop")
        await app._driver.aio.run(queue.first.bindings.settle(item._incarnation, settlement))
    else:
        await do(item.release)
        await do(job.cancel)
    info = await do(Inspector(app).jobs.show, job.id)
    assert info.status == end
    failed = [one for one in info.failures if one.reason.startswith("ValueError")]
    assert [one.number for one in failed] == [3, 2, 1]
    assert all(one.reason.startswith(f'ValueError: no "luck" {3 - at} é') for at, one in enumerate(failed, 1))
    assert all(one.began is not None and one.outcome == "failed" for one in failed)
    if end == "dead":
        assert (info.failures[0].reason, info.failures[0].number) == ("KeyError: at last", 4)


async def test_tags_reason_and_attempts_of_a_row_take_a_kibibyte(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")

    @app.task(queue="q", retry=Retry(8, base=0), tags=[f"{n}:" + "{key}" for n in range(8)])
    async def fail(key: str) -> None:
        raise ValueError("x" * 5000)

    await do(fail.enqueue, "k" * 62)
    await run_burst(app)
    size = raw.strlen(f"{queue.first.bindings.keys.base}failed")
    assert 600 < size < 1024 + 250  # with all names and times of the row
    (row,) = await ended(app, do)
    assert row.reason == "ValueError: " + "x" * len(row.reason[12:])


@pytest.mark.parametrize("how", ["complete", "fail", "cancel", "expire", "drop", "purge"])
async def test_each_end_leaves_its_row(app: Penstock, do: Do, clock: Time, how: str):
    queue = app.queue("q")

    @app.task(queue="q")
    async def drop() -> None:
        raise Drop("not needed")

    job = await do(drop.using(tags=["x"], expires=30).enqueue)
    if how == "complete":
        (item,) = await do(queue.claim)
        await do(item.complete)
    elif how == "fail":
        (item,) = await do(queue.claim)
        await do(item.fail, 'no "luck"')
    elif how == "cancel":
        await do(job.cancel)
    elif how == "expire":
        clock.advance(31)
        assert await do(queue.claim) == []
    elif how == "drop":
        await run_burst(app)
    else:
        await do(queue.purge)
    (row,) = await ended(app, do)
    expected = {
        "complete": ("completed", ""),
        "fail": ("dead", 'no "luck"'),
        "cancel": ("cancelled", ""),
        "expire": ("expired", ""),
        "drop": ("dropped", "not needed"),
        "purge": ("cancelled", "purged"),
    }
    assert (str(row.status), row.reason) == expected[how]
    if how != "purge":
        assert (row.id, row.tags, row.task) == (job.id, ("x",), "drop")
    assert (row.started is None) == (how in ("cancel", "expire", "purge"))
    state = {"fail": "failed", "purge": "cancelled"}.get(how, expected[how][0])
    assert await ended(app, do, state=state) == [row]


async def test_a_purge_is_one_row_with_a_number(app: Penstock, do: Do):
    queue = app.queue("q")
    await do(queue.put_many, range(700))
    await do(queue.put_many, range(20), delay=60)
    await do(queue.purge)
    (row,) = await ended(app, do)
    assert (row.id, row.jobs, row.reason) == ("", 720, "purged")
    assert await do(queue.jobs(state="cancelled").count) == 720


async def test_a_purge_overwrites_no_other_row(app: Penstock, do: Do, raw: Any):
    """A new block of rows may be as long as an old one was that ended with a purge."""
    queue = app.queue("raw")
    block = queue.first.bindings.keys.base + "finished"
    await do((await do(queue.put, 1, id="mine")).cancel)
    tenant = "t" * (raw.strlen(block) - 14)  # a purge of this tenant makes a block of the same length
    await do(queue.keep, finished=0)
    await do(queue.keep, finished=100)
    await do(queue.put, 2, tenant=tenant)
    await do(queue.tenant(tenant).purge)
    await do(queue.keep, finished=0)
    await do(queue.keep, finished=100)
    await do((await do(queue.put, 3, id="mine")).cancel)
    await do(queue.put, 4, tenant=tenant)
    await do(queue.tenant(tenant).purge)
    rows = (await do(queue.jobs(state="ended").page, 9)).jobs
    assert [row.id for row in rows] == ["", "raw:mine"]


async def test_a_settlement_that_is_refused_has_no_row(app: Penstock, do: Do, clock: Time):
    queue = app.queue("q")
    await do(queue.put, 1)
    (late,) = await do(queue.claim, lease=1)
    clock.advance(2)
    (item,) = await do(queue.claim)
    with pytest.raises(Exception, match="lease"):
        await do(late.complete)
    await do(item.complete)
    (row,) = await ended(app, do)
    assert row.deliveries == 2


def test_an_open_block_gets_its_ttl_once_in_ten_seconds_and_keeps_it_for_longer(stand: Stand):
    key, hour, day = f"{stand.base}finished", 3_600_000, 86_400_000
    stand.put(*"abcde")
    worker = FakeWorker(stand, "w", lease=600)
    claims = worker.claim(5)

    def settle_after(seconds: float) -> int:
        stand.advance(seconds)
        stand.client.pexpire(key, hour)
        assert worker.settle_alone(claims.pop(), "drop")
        left: int = stand.client.pttl(key)
        return left

    assert settle_after(0) > day
    assert settle_after(9) <= hour
    assert settle_after(1) > day
    assert settle_after(9.9) <= hour
    stand.run(Retention(finished_age=2 * 86400).store(stand.bindings))
    assert settle_after(0) > 2 * day


async def test_rows_are_dropped_by_number_in_whole_blocks(app: Penstock, do: Do):
    queue = app.queue("q")

    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None: ...

    await do(queue.keep, finished=200)
    jobs = await do(app.enqueue_many, [nothing.call(n) for n in range(1000)])
    await run_burst(app)
    rows = await ended(app, do)
    assert 200 <= len(rows) < 500
    assert {row.id for row in rows} == {job.id for job in jobs[-len(rows) :]}
    times = [row.since for row in rows]
    # Jobs are in the order in which the server heard of their ends, a few milliseconds after these.
    assert all(later >= earlier - 1 for later, earlier in pairwise(times))


async def test_pages_find_each_row_once_while_others_arrive(app: Penstock, do: Do):
    queue = app.queue("q")

    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None: ...

    first = await do(app.enqueue_many, [nothing.call(n) for n in range(300)])
    await run_burst(app)
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await do(queue.jobs(state="completed").page, 37, cursor)
        found += [row.id for row in page.jobs]
        cursor, pages = page.cursor, pages + 1
        if pages < 4:
            await do(app.enqueue_many, [nothing.call(n) for n in range(80)])
            await run_burst(app)
    assert sorted(found) == sorted(job.id for job in first)


async def test_no_rows_are_kept_if_the_queue_says_so(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")
    await do(queue.keep, finished=0)
    await do(queue.put_many, range(3))
    (item, other) = await do(queue.claim, 2)
    await do(item.complete)
    await do(other.fail, "no")
    await do(queue.purge)
    assert await ended(app, do) == []
    assert not raw.exists(f"{queue.first.bindings.keys.base}finished")


async def test_a_damaged_key_of_rows_keeps_no_job_from_ending(app: Penstock, do: Do, raw: Any):
    queue = app.queue("q")
    key = f"{queue.first.bindings.keys.base}finished"
    await do(queue.put_many, range(2))
    raw.hset(key, "a", 1)
    for item in await do(queue.claim, 2):
        await do(item.complete)
    assert (await do(queue.count)).completed == 2
    assert len(await ended(app, do)) == 1


async def test_rows_of_a_large_turn_follow_those_of_single_jobs(app: Penstock, do: Do, raw: Any):
    """A large turn closes the open block and itself as one block: it is never appended first."""
    queue = app.queue("q")
    base = queue.first.bindings.keys.base

    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None: ...

    async def one() -> str:
        job = await do(queue.put, 1)
        for item in await do(queue.claim):
            await do(item.complete)
        return job.id

    before = await one()
    jobs = await do(app.enqueue_many, [nothing.call(n) for n in range(150)])
    await run_burst(app)
    blocks = raw.llen(f"{base}finished:blocks")
    after = await one()
    assert [row.id for row in await ended(app, do)] == [after, *(job.id for job in reversed(jobs)), before]
    assert 1 <= blocks <= 2
    assert raw.strlen(f"{base}finished") < 4096  # a busy machine may settle some of them in a small turn


async def test_the_links_of_flows_take_bounded_room_beside_few_rows(app: Penstock, do: Do, raw: Any):
    """Each of 40 jobs is awaited by the same 40: 1,600 links belong to 40 rows."""

    @app.task(queue="q")
    async def nothing() -> None: ...

    queue = app.queue("q")
    await do(queue.keep, finished=50)
    name = "x" * 190
    first = [await nothing.using(id=f"{name}-a{n}").enqueue.aio() for n in range(40)]
    for n in range(40):
        await nothing.using(id=f"{name}-b{n}", after=first).enqueue.aio()
    for item in await do(queue.claim, 40):
        await do(item.complete)
    blocks = raw.lrange(f"{queue.first.bindings.keys.base}finished:blocks", 0, -1)
    assert sum(map(len, blocks)) < 400_000  # 8 KiB for a row at most
    await run_burst(app)
    assert len(await ended(app, do)) >= 40


async def test_a_turn_keeps_a_link_for_each_job_that_another_one_waited_for(app: Penstock, do: Do, raw: Any):
    """Ids of several lengths, two jobs that wait, and one of them in another queue."""

    @app.task(queue="q")
    async def nothing() -> None: ...

    @app.task(queue="other")
    async def elsewhere() -> None: ...

    ids = [f"{'x' * n}-{n}" for n in (1, 1, 20, 3, 20, 190)]
    first = [await do(nothing.using(id=f"{number}{one}").enqueue) for number, one in enumerate(ids)]
    await do(nothing.using(id="all", after=first).enqueue)
    await do(nothing.using(id="two", after=first[:2]).enqueue)
    await do(elsewhere.using(id="far", after=first[2:3]).enqueue)
    shard = app.queue("q").first
    face, incarnation = shard._driver.aio, mint_id()
    turn = await face.run(shard.bindings.turn(incarnation, 1, lease=60, want=6))
    ends = [Settlement(one.token) for one in turn.claims]
    await face.run(shard.bindings.turn(incarnation, 2, lease=60, want=0, settlements=ends, once=True))
    base = shard.bindings.keys.base
    blocks = b"".join(block[20:] for block in raw.lrange(f"{base}finished:blocks", 0, -1))
    links = set(read_links(blocks + (raw.get(f"{base}finished") or b"")))
    keys = [one.key for one in first]
    assert links == {
        *((key, ("", "all")) for key in keys),
        *((key, ("", "two")) for key in keys[:2]),
        (keys[2], ("other", "far")),
    }


def test_a_search_for_a_job_of_a_flow_ends_in_a_queue_full_of_links():
    """Its row may be gone. Links are no rows, and 10,000 rows may have many megabytes of them."""
    links = (b"l" + (84).to_bytes(3) + bytes(6) + b"\x00\x02\x00b" + b"\x4fa" + bytes(78)) * 1000
    with Penstock("redis://127.0.0.1:1") as app:
        search = EndedJobs(app.queue("q").first.bindings, "q").rows(["gone"])
        next(search)
        found: Any = None
        for number in range(100_000, 100_000 - 32 * 10, -32):
            try:
                search.send(BlockSlice(0.0, [(number - n, links) for n in range(32)], is_last=False))
            except StopIteration as ended:
                found = ended.value
                break
    assert found == {}


async def test_a_dead_letter_that_completes_while_its_row_is_searched_has_completed(app: Penstock, do: Do):
    """`finished` has no row of it yet when it is read, and `failed` has one for ever."""
    queue = app.queue("q")
    job = await do(queue.put, 1)
    (item,) = await do(queue.claim)
    await do(item.fail, "broken")
    face: Any = queue.first._driver.aio
    search = EndedJobs(queue.first.bindings, queue.first.name).rows([job.key])
    found = await face.run(next(search))
    await do(queue.dead.requeue, job.id)
    (item,) = await do(queue.claim)
    await do(item.complete)
    rows: Any = None
    while rows is None:
        try:
            found = await face.run(search.send(found))
        except StopIteration as ended:
            rows = ended.value
    assert rows[job.key].outcome == "completed"


async def test_filters_choose_by_tag_time_and_duration(app: Penstock, do: Do, clock: Time):
    queue = app.queue("q")
    for n in range(3):
        await do(queue.put, n, tags=[f"n:{n}"], tenant=f"t{n}")
        (item,) = await do(queue.claim, lease=1000)
        clock.advance(10 * n)
        await do(item.complete)
    assert [row.tags for row in await ended(app, do)] == [("n:2",), ("n:1",), ("n:0",)]
    assert [row.tags for row in await ended(app, do, tag="n:1")] == [("n:1",)]
    assert [row.tags for row in await ended(app, do, tenant="t2")] == [("n:2",)]
    assert [row.tags for row in await ended(app, do, longer_than=10)] == [("n:2",), ("n:1",)]
    assert [row.tags for row in await ended(app, do, since=5)] == [("n:2",)]
    assert [row.tags for row in await ended(app, do, since=21)] == [("n:2",), ("n:1",)]


async def test_the_inspector_shows_a_job_after_it_has_ended(app: Penstock, do: Do):
    @app.task(queue="q", result_ttl=0)
    async def nothing() -> None: ...

    job = await do(nothing.using(tags=["a"]).enqueue)
    await run_burst(app)
    assert await do(job.status) is Status.UNKNOWN
    inspector = Inspector(app)
    info = await do(inspector.jobs.show, job.id)
    assert (info.status, info.task, info.tags) == (Status.COMPLETED, "nothing", ("a",))
    assert info.ended is not None
    found = await do(inspector.jobs.find, state="ended", tag="a")
    assert [row.id for row in found.jobs] == [job.id]
    assert (await do(inspector.jobs.show, job.key)).id == job.id


@pytest.mark.parametrize("merged", [100, 2])
async def test_ended_jobs_of_all_queues_come_with_the_latest_first(
    app: Penstock, do: Do, clock: Time, monkeypatch: pytest.MonkeyPatch, merged: int
):
    monkeypatch.setattr("penstock.ops.jobs.MERGED", merged)
    queues = [app.queue("a"), app.queue("a2"), app.queue("b", shards=2), app.queue("c")]
    for n in range(12):
        queue = queues[n % 4]
        await do(queue.put, n, tags=[f"{n}"], tenant=f"t{n}")
        (item,) = await do(queue.claim, lease=1000)
        clock.advance(1)
        await do(item.complete)
    find, cursor = Inspector(app).jobs.find, None
    found: list[int] = []
    while cursor is not None or not found:
        page = await do(find, state="ended", limit=5, cursor=cursor)
        found, cursor = found + [int(row.tags[0]) for row in page.jobs], page.cursor
        if len(found) == 5:  # a queue that comes between two pages disturbs nothing
            await do(app.queue("a1").put, 0)
    if merged == 100:
        assert found == [*reversed(range(12))]
    else:
        assert set(found) == {*range(12)}  # one that the new queue has moved to the next part comes twice


async def test_rows_of_shards_are_merged_by_time(app: Penstock, do: Do, clock: Time):
    queue = app.queue("q", shards=3)
    for n in range(12):
        await do(queue.put, n, tenant=f"t{n}", tags=[f"{n}"])
        (item,) = await do(queue.claim, lease=1000)
        clock.advance(1)
        await do(item.complete)
    rows = await ended(app, do)
    assert [row.tags[0] for row in rows] == [f"{n}" for n in reversed(range(12))]
    assert len({row.id.partition(":")[0] for row in rows}) > 1
    some = await do(queue.jobs(state="completed").page, 5)
    rest = await do(queue.jobs(state="completed").page, 50, some.cursor)
    assert [*some.jobs, *rest.jobs] == rows


@pytest.mark.parametrize(
    "wanted", [{"since": 5}, {"longer_than": 5}, {"state": "ended", "older_than": 5}, {"state": "gone"}]
)
async def test_conditions_that_contradict_each_other_are_refused(app: Penstock, wanted: Any):
    with pytest.raises(ConfigurationError, match="jobs"):
        app.queue("q").jobs(**wanted)


async def test_ended_jobs_cannot_be_changed(app: Penstock, do: Do):
    with pytest.raises(ConfigurationError, match="have ended"):
        await do(app.queue("q").jobs(state="ended").cancel)


async def test_bad_bounds_are_refused(app: Penstock, do: Do):
    for bad in ({"finished": -1}, {"finished": True}, {"finished_age": 0}):
        with pytest.raises(BadCall, match="finished"):
            await do(app.queue("q").keep, **bad)


async def test_a_row_of_a_completed_job_is_short(app: Penstock, do: Do, raw: Any):
    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None: ...

    await do(app.enqueue_many, [nothing.call(n) for n in range(50)])
    await run_burst(app, concurrency=50)
    size = raw.strlen(f"{app.queue('q').first.bindings.keys.base}finished")
    assert size <= 100 * 50


async def test_a_row_of_a_turn_of_one_is_short(app: Penstock, do: Do, raw: Any):
    @app.task(queue="q", result_ttl=0)
    async def send_email(n: int) -> None: ...

    for n in range(3):
        await do(send_email.using(tenant="acme").enqueue, n)
        await run_burst(app, concurrency=1)
    size = raw.strlen(f"{app.queue('q').first.bindings.keys.base}finished")
    name = f"{socket.gethostname()}:{os.getpid()}"
    assert size <= 3 * (100 + max(0, len(name) - 16))
    await do(app.queue("q").put, 1, id="own")
    (item,) = await do(app.queue("q").claim)
    await do(item.complete)
    assert (await ended(app, do))[0].id == "q:own"


@pytest.mark.parametrize(
    "text", ["", "own", "0" * 26, "Z" * 26, "7" + "Z" * 25, "i" * 26, "名" * 26, "01JD8Q7K3V0000000000000000"]
)
def test_a_packed_id_is_read_as_it_was(text: str):
    packed = packed_id(text)
    assert (packed if isinstance(packed, str) else text_of_id(packed)) == text
    assert isinstance(packed_id(mint_id()), bytes)


def test_a_filter_reads_the_lists_that_it_needs():
    assert FinishedFilter().lists == ("finished", "failed")
    assert FinishedFilter("failed").lists == ("failed",)
    assert FinishedFilter("expired").lists == ("finished",)
    assert finished_page.__doc__


@pytest.mark.parametrize("more", [0, 600])
def test_rows_that_a_later_turn_carries_keep_their_names(more: int):
    """Also when the names that were sent are forgotten because there are many of them."""
    rows = CompletedRows("host:1", "r1")
    claims = [_claim_of(n, f"task-{n}", f"tenant-{n}") for n in range(2 + more)]
    for claim in claims:
        rows.add(claim)
    sent = [rows.take([Settlement(claim.token) for claim in part]) for part in (claims[1:], claims[:1])]
    packed = b"".join(
        b"t" + (4 + len(one)).to_bytes(3) + bytes(6) + n.to_bytes(2) + bytes(2) + one
        for n, one in zip((1 + more, 1), sent, strict=True)
    )
    found = [row and (row.id, row.task, row.tenant, row.worker) for row in read_block("q", packed)]
    wanted = [("q:" + claim.id, claim.record.task, claim.record.tenant, "host:1") for claim in claims]
    assert found == [*wanted[1:], wanted[0]]
    assert len(sent[1]) < 150


def test_a_turn_carries_only_the_names_of_its_own_rows():
    rows = CompletedRows("host:1", "r1")
    claims = [_claim_of(n, "task", f"tenant-{n:04}") for n in range(500)]
    for claim in claims:
        rows.add(claim)
    parts = [claims[at : at + 50] for at in range(0, 500, 50)]
    sizes = [len(rows.take([Settlement(claim.token) for claim in part])) for part in parts]
    assert max(sizes) == min(sizes) < 50 * 60


def _claim_of(number: int, task: str, tenant: str) -> Claim:
    body = draft(
        flags=CALL, how=0, priority=5, tenant=tenant.encode(), task=task.encode(), delay_ms=0, expires_ms=0, ttl_ms=0
    )
    return Claim(number.to_bytes(6) + mint_id().encode(), Record(body))
