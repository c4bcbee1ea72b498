"""Jobs by filter: pages, counts and bulk actions. On both faces, on a server and on a cluster."""

import time
from typing import Any

import pytest

from penstock import ConfigurationError, Jobs, Penstock, Queue, Status, Unique
from penstock.info import BulkProgress, JobPage
from penstock.jobs.claims import Registration
from penstock.jobs.job_list import job_filter
from penstock.jobs.listing import JobFilter, ListingBindings
from tests.conftest import Do, Time
from tests.jobs.stand import START, FakeWorker, Stand, record


@pytest.fixture(params=["valkey", "cluster"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("raw")


async def every_page(do: Do, jobs: Jobs, limit: int = 50) -> list[JobPage]:
    pages = [await do(jobs.page, limit)]
    while pages[-1].cursor is not None:
        pages.append(await do(jobs.page, limit, pages[-1].cursor))
    return pages


async def ids(do: Do, jobs: Jobs) -> list[str]:
    return [job.id for page in await every_page(do, jobs) for job in page.jobs]


async def test_each_filter_selects_its_jobs(app: Penstock, queue: Queue, do: Do, clock: Time):
    @app.task(queue="raw")
    def greet(name: str) -> None: ...

    dead, running = await do(queue.put_many, ["dead", "running"], tenant="acme")
    first, second = await do(queue.claim, 2, lease=600)
    await do(first.fail, "no")
    clock.advance(60)
    ready = await do(queue.put, "ready", tenant="acme", id="own-1")
    other = await do(greet.using(tenant="bo").enqueue, "Ann")
    late = await do(queue.put, "late", delay=600)
    found = {
        "dead": queue.jobs(state="dead"),
        "running": queue.jobs(state=Status.RUNNING),
        "ready": queue.jobs(state="ready"),
        "ready of acme": queue.jobs(state="ready", tenant="acme"),
        "delayed": queue.jobs(state="delayed"),
        "acme": queue.jobs(tenant="acme"),
        "greet": queue.jobs(task="greet"),
        "values": queue.jobs(task="", tenant=""),
        "own": queue.jobs(id_prefix="own-"),
        "by whole id": queue.jobs(id_prefix=ready.id),
        "old": queue.jobs(older_than=50),
        "all": queue.jobs(),
        "old and dead": queue.jobs(state="dead", older_than=50),
        "older": queue.jobs(state="dead", older_than=70),
    }
    expected = {
        "dead": [dead],
        "running": [running],
        "ready": [ready, other],
        "ready of acme": [ready],
        "delayed": [late],
        "acme": [dead, running, ready],
        "greet": [other],
        "values": [late],
        "own": [ready],
        "by whole id": [ready],
        "old": [dead, running],
        "all": [dead, running, ready, other, late],
        "old and dead": [dead],
        "older": [],
    }
    for name, jobs in found.items():
        assert sorted(await ids(do, jobs)) == sorted(job.id for job in expected[name]), name
        assert await do(jobs.count) == len(expected[name]), name
    await do(second.complete)


async def test_a_running_job_names_its_worker_and_since_when(queue: Queue, do: Do, clock: Time):
    await do(queue.put, "x", tenant="acme", priority=2)
    clock.advance(30)
    (item,) = await do(queue.claim)
    (one,) = (await do(queue.jobs(state="running").page)).jobs
    assert (one.status, one.tenant, one.priority, one.attempts, one.deliveries) == (Status.RUNNING, "acme", 2, 0, 1)
    assert one.since == pytest.approx(clock.now, abs=0.01)
    assert one.enqueued == pytest.approx(clock.now - 30, abs=0.01)
    info = await do(queue.job(item.id).info)
    assert (info.worker, info.claimed) == ("", pytest.approx(clock.now, abs=0.01))
    await do(item.complete)


async def test_ready_jobs_of_a_tenant_come_as_they_will_be_claimed(queue: Queue, do: Do):
    for priority in (5, 0, 9):
        await do(queue.put_many, range(priority * 10, priority * 10 + 7), tenant="acme", priority=priority)
    await do(queue.put_many, range(5), tenant="bo")
    for item in await do(queue.claim, 3):
        await do(item.release)
    listed = await ids(do, queue.jobs(state="ready", tenant="acme"))
    claimed = [item.id for item in await do(queue.claim, 100)]
    assert listed == [one for one in claimed if one in listed]
    assert len(listed) == 21


async def test_a_cancelled_job_and_one_of_a_changed_priority_are_found_once(queue: Queue, do: Do):
    jobs = await do(queue.put_many, range(5), tenant="acme")
    await do(jobs[1].cancel)
    await do(jobs[3].edit, priority=9)
    expected = [jobs[at].id for at in (0, 2, 4, 3)]
    assert await ids(do, queue.jobs(state="ready", tenant="acme")) == expected


async def test_delayed_jobs_come_as_they_are_due_and_dead_ones_from_the_latest_on(queue: Queue, do: Do, clock: Time):
    late, soon = await do(queue.put, 1, delay=90), await do(queue.put, 2, delay=30)
    assert await ids(do, queue.jobs(state="delayed")) == [soon.id, late.id]
    clock.advance(100)
    died = []
    for item in await do(queue.claim, 2):
        clock.advance(1)
        await do(item.fail, "no")
        died.append(item.id)
    assert await ids(do, queue.jobs(state="dead")) == died[::-1]


async def test_small_pages_list_each_job_once_and_end(queue: Queue, do: Do):
    await do(queue.put_many, ["some words" * 9] * 30, tenant="acme")
    await do(queue.put_many, range(20), tenant="acme", delay=60)
    for jobs in (queue.jobs(), queue.jobs(state="ready", tenant="acme"), queue.jobs(state="delayed")):
        pages = await every_page(do, jobs, limit=7)
        found = [job.id for page in pages for job in page.jobs]
        assert len(found) == len(set(found)) == await do(jobs.count)
        assert all(page.of == len(found) for page in pages)
        assert sum(page.examined for page in pages) == len(found)
        assert len(pages) >= len(found) / 20


@pytest.mark.parametrize("wanted", [{"state": "ready", "tenant": "acme"}, {"state": "dead"}, {"state": "delayed"}, {}])
async def test_jobs_that_stay_are_found_though_others_go_and_come(queue: Queue, do: Do, wanted: dict[str, Any]):
    jobs = await do(queue.put_many, range(40), tenant="acme", delay=60 if wanted.get("state") == "delayed" else 0)
    if wanted.get("state") == "dead":
        for item in await do(queue.claim, 40):
            await do(item.fail, "no")
    pages = [await do(queue.jobs(**wanted).page, 10)]
    gone = {job.id for job in pages[0].jobs[2:]}  # also the one where the page ended
    if wanted.get("state") == "dead":
        assert await do(queue.dead.remove, *gone) == len(gone)
    elif wanted.get("tenant"):
        gone = {item.id for item in await do(queue.claim, len(pages[0].jobs) + 5)}
    else:
        for job in jobs:
            if job.id in gone:
                await do(job.cancel)
    await do(queue.put_many, range(100, 110), tenant="acme")
    found = {job.id for job in pages[0].jobs}
    while pages[-1].cursor is not None:
        pages.append(await do(queue.jobs(**wanted).page, 10, pages[-1].cursor))
        found |= {job.id for job in pages[-1].jobs}
    assert {job.id for job in jobs} - gone <= found


# --- bulk actions ---


async def test_a_bulk_cancel_spares_other_jobs_and_reports_its_progress(queue: Queue, do: Do):
    await do(queue.put_many, range(250), tenant="acme")
    await do(queue.put_many, range(5), tenant="bo")
    seen: list[BulkProgress] = []
    done = await do(queue.jobs(tenant="acme").cancel, per_second=None, on_progress=seen.append)
    assert (done.found, done.done) == (250, 250)
    assert done.examined == done.of  # some more than 255, if the server's table became smaller in between
    assert 255 <= done.of < 300
    assert seen[-1] == done
    assert [one.done for one in seen] == sorted({one.done for one in seen})
    counts = await do(queue.count)
    assert (counts.ready, counts.cancelled) == (5, 250)


async def test_dead_letters_are_requeued_and_removed_by_filter(queue: Queue, do: Do):
    await do(queue.put_many, range(4), tenant="acme")
    await do(queue.put_many, range(3), tenant="bo")
    for item in await do(queue.claim, 7):
        await do(item.fail, "no")
    again = await do(queue.jobs(state="dead", tenant="acme").requeue)
    gone = await do(queue.jobs(tenant="bo").remove)
    assert (again.done, gone.done) == (4, 3)
    assert (again.examined, again.of) == (7, 7)
    counts = await do(queue.count)
    assert (counts.ready, counts.dead) == (4, 0)
    assert [item.deliveries for item in await do(queue.claim, 9)] == [1] * 4


async def test_a_bulk_action_is_limited_to_a_rate(queue: Queue, do: Do):
    await do(queue.put_many, range(4))
    seen: list[int] = []
    await do(queue.jobs().cancel, per_second=20, on_progress=lambda progress: seen.append(progress.done))
    assert seen[-1] == 4
    await do(queue.put_many, range(4))
    started = time.monotonic()
    await do(queue.jobs(state="ready").cancel, per_second=20)
    assert time.monotonic() - started >= 0.19


async def test_a_running_job_is_asked_to_end_and_a_dead_one_stays(queue: Queue, do: Do):
    await do(queue.put_many, range(2))
    running, dying = await do(queue.claim, 2)
    await do(dying.fail, "no")
    assert (await do(queue.jobs().cancel)).done == 1
    assert (await do(queue.count)).dead == 1
    await do(running.complete)


@pytest.mark.parametrize(
    "wanted",
    [{"state": "done"}, {"worker": "a:1", "state": "ready"}, {"older_than": -1}],
)
def test_a_filter_that_matches_no_job_is_refused(wanted: dict[str, Any]):
    with pytest.raises(ValueError, match="jobs\\("):
        job_filter(**wanted)


@pytest.mark.parametrize("cursor", ["", "x", "ä", "kA"])
async def test_a_bad_cursor_is_refused(queue: Queue, do: Do, cursor: str):
    with pytest.raises(ValueError, match="cursor"):
        await do(queue.jobs().page, 10, cursor)


async def test_jobs_of_all_shards_are_listed_and_changed(app: Penstock, do: Do):
    queue = app.queue("wide", shards=3)
    for tenant in "abcdefgh":
        await do(queue.put_many, range(5), tenant=tenant)
    pages = await every_page(do, queue.jobs(), limit=7)
    assert len({job.id for page in pages for job in page.jobs}) == 40
    assert {page.of for page in pages} == {40}
    assert await do(queue.jobs(tenant="a", state="ready").count) == 5
    assert (await do(queue.jobs().cancel, per_second=None)).done == 40


# --- move ---


async def test_moved_jobs_keep_their_time_priority_and_attempts(app: Penstock, queue: Queue, do: Do, clock: Time):
    other = app.queue("other")
    late = await do(queue.put, "late", delay=600, tenant="acme")
    tired = await do(queue.put, "tired", priority=1)
    (item,) = await do(queue.claim)
    await do(item.retry)
    dead = await do(queue.put, "dead", priority=0)
    (item,) = await do(queue.claim)
    await do(item.fail, "no")
    moved = await do(queue.jobs().move, other)
    assert (moved.found, moved.done) == (3, 3)
    counts, there = await do(queue.count), await do(other.count)
    assert (counts.ready, counts.delayed, counts.dead) == (0, 0, 0)
    assert (there.ready, there.delayed, there.dead) == (2, 1, 0)
    info = {key: await do(other.job(key).info) for key in (late.key, tired.key, dead.key)}
    assert info[late.key].since == pytest.approx(clock.now + 600, abs=0.01)
    assert (info[late.key].tenant, info[tired.key].attempts, info[dead.key].attempts) == ("acme", 1, 0)
    assert (info[tired.key].priority, info[late.key].priority) == (1, 5)
    gone = await do(tired.info)
    assert (gone.status, gone.reason) == (Status.CANCELLED, "moved to queue other")
    assert [item.body for item in await do(other.claim, 5)] == ["dead", "tired"]


async def test_a_job_that_cannot_be_moved_stays_as_it_was(app: Penstock, queue: Queue, do: Do):
    other = app.queue("other")
    await do(other.put, "theirs", id="one")
    await do(queue.put, "ours", id="one")
    await do(queue.put, "later", id="two", delay=600)
    await do(other.put, "theirs", id="two")
    await do(queue.put, "x", unique=Unique(exact="x"))
    await do(queue.put, "runs", priority=0)
    (running,) = await do(queue.claim)
    since = (await do(queue.job("two").info)).since
    moved = await do(queue.jobs().move, other)
    assert (moved.found, moved.done) == (4, 0)
    assert (await do(other.count)).waiting == 2
    assert (await do(queue.job("two").info)).since == since
    await do(running.complete)
    assert sorted(item.body for item in await do(queue.claim, 9)) == ["ours", "x"]


async def test_jobs_move_to_the_shards_of_their_tenants(app: Penstock, queue: Queue, do: Do):
    wide = app.queue("wide", shards=3)
    for tenant in "abcdef":
        await do(queue.put_many, range(40), tenant=tenant)
    assert (await do(queue.jobs().move, wide, per_second=None)).done == 240
    assert {(await do(wide.tenant(tenant).count)).ready for tenant in "abcdef"} == {40}


async def test_jobs_are_moved_to_another_queue_only(queue: Queue, do: Do):
    with pytest.raises(ConfigurationError, match="another"):
        await do(queue.jobs().move, queue)


# --- scripts ---


def test_no_worker_claims_a_job_that_is_being_moved_for_a_minute(stand: Stand):
    stand.put("a")
    stand.put("b", delay=30)
    stand.put("c", delay=90)
    listing = ListingBindings(stand.bindings)
    found = stand.run(listing.page("records", b"", 100, JobFilter())).rows
    reached, held = stand.run(listing.hold(60, found))
    due = {"a": 0, "b": START + 30_000, "c": START + 90_000}
    assert (reached, {job.key: job.due for job in held}) == (3, due)
    worker = FakeWorker(stand, "w", lease=1000)
    stand.advance(59)
    assert worker.claim(9) == []
    stand.advance(2)
    assert [claim.token[6:] for claim in worker.claim(9)] == [b"a", b"b"]
    stand.advance(30)
    assert [claim.token[6:] for claim in worker.claim(9)] == [b"c"]


def test_a_job_that_has_changed_since_it_was_found_is_left_alone(stand: Stand):
    stand.put("ready", "claimed", "again")
    listing = ListingBindings(stand.bindings)
    found = stand.run(listing.page("records", b"", 100, JobFilter())).rows
    worker = FakeWorker(stand, "w")
    first, _, third = worker.claim(3)
    worker.settle(first, ending="retry")
    assert worker.settle(third, ending="release")
    assert stand.run(listing.change("cancel", found)) == (3, 0)
    assert stand.run(stand.bindings.heartbeat("w", 10)) == [], "the running job was not found as running"


def test_the_jobs_of_a_worker_are_found_by_its_name(stand: Stand):
    stand.put(*(f"j{n}" for n in range(5)))
    for name, n in (("a", 3), ("b", 1)):
        registration = Registration(f"host:{name}", 5)
        stand.run(stand.bindings.turn(name, 1, lease=10, want=n, registration=registration))
    listing = ListingBindings(stand.bindings)
    assert stand.run(listing.incarnations("host:a", "0")) == ("0", [(b"a", 3)])
    page = stand.run(listing.page("held:a", b"", 100, JobFilter()))
    # A server may return the fields of a hash in any order.
    assert sorted((row.key, row.worker) for row in page.rows) == [(f"j{n}", "host:a") for n in range(3)]
    assert page.of == 3


def test_a_page_ends_after_a_thousand_jobs_or_a_mebibyte(stand: Stand):
    listing = ListingBindings(stand.bindings)
    stand.put(*(f"j{n}" for n in range(1500)), tenant="acme")
    for source in ("records", "lane"):
        page = stand.run(listing.page(source, b"", 0, JobFilter(tenant="acme")))
        assert page.following
        assert 0 < page.examined <= 1010, source
    stand.client.flushall()
    stand.put(*(f"j{n}" for n in range(30)), tenant="acme", payload=b"x" * 200_000)
    stand.put(*(f"d{n}" for n in range(30)), delay=60, payload=b"x" * 200_000)
    for source in ("records", "lane", "delayed"):
        page = stand.run(listing.page(source, b"", 0, JobFilter(tenant="acme")))
        assert page.following
        assert page.examined <= 20, f"{source}: a walk without an order ends with a bucket of the server's table"


def test_a_page_shows_no_payload(stand: Stand):
    stand.put_drafts([("j", record("acme", payload=b'"secret"'))])
    call = ListingBindings(stand.bindings).page("records", b"", 10, JobFilter())
    assert b"secret" not in b"".join(part for part in stand.raw(call) if isinstance(part, bytes))
