"""The questions and actions of an operator: on both faces, on a server, on a cluster, and with a user's own client."""

import asyncio
from typing import Any

import anyio
import pytest

from penstock import Penstock
from penstock.errors import JobNotFound, PenstockError
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.status import Status
from penstock.ops.answers import DirectoryView
from penstock.ops.inspect import Inspector
from penstock.ops.queues import QueueQuestioner
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.speed import scaled


@pytest.fixture
def inspector(app):
    return Inspector(app)


async def make_dead_letters(do, queue, n, reason="it broke"):
    """Returns their ids, the latest first."""
    jobs = await do(queue.put_many, range(n))
    for item in await do(queue.claim, n):
        await do(item.fail, reason)
    return [job.id for job in jobs]


async def test_every_queue_of_the_app_is_found_with_its_counts(do, app, inspector, make_app):
    for name in ("mail", "raw", "a.b-c_d", "Z"):
        await do(app.queue(name).put_many, range(3))
    other = make_app(f"{app.settings.prefix}x")
    await do(other.queue("theirs").put, 1)
    found = await do(inspector.queues.all)
    assert [(view.name, view.counts.ready) for view in found] == [("Z", 3), ("a.b-c_d", 3), ("mail", 3), ("raw", 3)]
    assert [view.name for view in await do(Inspector(other).queues.all)] == ["theirs"]


async def test_a_prefix_that_looks_like_a_pattern_matches_only_itself(do, make_app):
    odd, plain = make_app("a*[b]?"), make_app("axb1")
    await do(odd.queue("mail").put, 1)
    await do(plain.queue("raw").put, 1)
    assert [view.name for view in await do(Inspector(odd).queues.all)] == ["mail"]


async def test_an_unused_server_has_no_queues(do, inspector):
    assert await do(inspector.queues.all) == []


async def test_a_queue_shows_its_largest_tenants(do, app, inspector):
    queue = app.queue("mail")
    for number, tenant in enumerate(("a", "b", "Zoë 名前", ""), 1):
        await do(queue.put_many, range(number), tenant=tenant)
    await do(queue.put, 1, tenant="later", delay=60)
    detail = await do(inspector.queues.show, "mail", tenants=2)
    assert (detail.tenants, detail.tenants_examined) == (5, 5)
    assert [(tenant.name, tenant.counts.ready) for tenant in detail.largest] == [("", 4), ("Zoë 名前", 3)]
    assert detail.due_in == pytest.approx(60, abs=5)


async def test_more_tenants_than_are_examined_are_counted(do, app, inspector, monkeypatch):
    monkeypatch.setattr("penstock.ops.queues.TENANTS_EXAMINED", 200)
    monkeypatch.setattr("penstock.ops.queues.TENANTS_PER_ROUND_TRIP", 100)
    calls = [app.queue("mail").tenant(f"t{n}") for n in range(700)]
    for tenant in calls:
        await do(app.queue("mail").put, "x", tenant=tenant.name)
    detail = await do(inspector.queues.show, "mail")
    assert detail.tenants == 700
    assert 200 <= detail.tenants_examined < 700


async def test_jobs_that_no_worker_knows_are_shown_with_the_reason(do, app, inspector):
    bare = await do(app.queue("mail").put, "no call")
    retried = await do(app.queue("mail").put, "retried", priority=0)
    (item,) = await do(app.queue("mail").claim)
    await do(item.retry, 60, 'it said {"unknown_since":5}')
    await Worker(app, WorkerSettings(queues=("mail",), burst=True)).run()
    detail = await do(inspector.queues.show, "mail")
    assert [(unknown.id, unknown.reason) for unknown in detail.unknown_task_jobs] == [
        (bare.id, "a bare value, not a call of a task")
    ]
    assert detail.jobs_examined == 2
    assert retried.id not in [unknown.id for unknown in detail.unknown_task_jobs]


async def test_an_unused_queue_is_refused_with_the_names_of_others(do, app, inspector):
    await do(app.queue("mail").put, 1)
    for verb in (
        inspector.queues.show,
        inspector.queues.open,
        inspector.queues.waiting,
        inspector.queues.count_dead,
        inspector.queues.list_dead,
        inspector.queues.requeue_all_dead,
        inspector.queues.remove_all_dead,
        inspector.workers.all,
    ):
        with pytest.raises(PenstockError, match=r"no queue 'mial'.*there is mail"):
            await do(verb, "mial")


@pytest.mark.parametrize("by", ["a worker", "a schedule", "a setting"])
async def test_a_queue_that_is_listed_can_be_opened_before_its_first_job(do, app, inspector, by):
    if by == "a worker":
        await Worker(app, WorkerSettings(queues=("mail",), burst=True)).run()
    elif by == "a schedule":
        task = app.task(queue="mail", name="tidy")(len)
        await do(app.schedules.add, "hourly", task.call([]), every=3600)
    else:
        await do(app.queue("mail").bound, jobs=5)
    assert [view.name for view in await do(inspector.queues.all)] == ["mail"]
    detail = await do(inspector.queues.show, "mail")
    assert (detail.name, detail.counts.entered, detail.workers) == ("mail", 0, 0)
    queue = await do(inspector.queues.open, "mail")
    assert await do(queue.limits) == []
    await do(queue.pause)
    assert (await do(queue.count)).paused


async def test_a_queue_shows_how_many_live_workers_serve_it(do: Any, app: Penstock, inspector: Inspector):
    seen = list[int]()

    @app.task(queue="mail")
    async def look() -> None:
        seen.append((await inspector.queues.show.aio("mail")).workers)

    await do(look.enqueue)
    await Worker(app, WorkerSettings(queues=("mail",), burst=True)).run()
    assert (seen, (await do(inspector.queues.show, "mail")).workers) == ([1], 0)


async def test_a_queue_is_paused_and_resumed(do, app, inspector):
    await do(app.queue("mail").put, 1)
    queue = await do(inspector.queues.open, "mail")
    await do(queue.pause)
    assert (await do(queue.count)).paused
    assert await do(app.queue("mail").claim) == []
    await do(queue.resume)
    assert not (await do(queue.count)).paused
    assert len(await do(app.queue("mail").claim)) == 1


async def test_a_purge_cancels_as_many_as_wait(do, app, inspector):
    queue = app.queue("mail")
    await do(queue.put_many, range(7), tenant="acme")
    await do(queue.put_many, range(5), tenant="other", delay=60)
    assert (await do(inspector.queues.waiting, "mail"), await do(inspector.queues.waiting, "mail", "acme")) == (12, 7)
    assert await do(inspector.queues.purge, "mail", "acme") == 7
    assert await do(inspector.queues.purge, "mail") == 5


async def test_a_purge_cancels_no_more_than_was_agreed_to(do, app, inspector):
    queue = app.queue("mail")
    await do(queue.put_many, range(3))
    waiting = await do(inspector.queues.waiting, "mail")
    await do(queue.put_many, range(300))
    await do(queue.put_many, range(300), delay=60)
    assert await do(inspector.queues.purge, "mail", most=waiting) == 3
    assert (await do(queue.count)).waiting == 600


async def test_cancelling_returns_the_outcome_of_each(do, app, inspector):
    queue = app.queue("mail")
    running = await do(queue.put, 1)
    (item,) = await do(queue.claim)
    waiting = await do(queue.put, 2)
    outcomes = await do(inspector.jobs.cancel, waiting.id, running.id, "mail:nobody")
    assert [(one.done, one.status) for one in outcomes] == [
        (True, Status.READY),
        (False, Status.RUNNING),
        (False, Status.UNKNOWN),
    ]
    await do(item.complete)


async def test_a_job_is_shown_and_an_unknown_one_raises(do, app, inspector):
    job = await do(app.queue("mail").put, {"to": "ada"}, tenant="acme")
    assert (await do(inspector.jobs.show, job.id)).body == {"to": "ada"}
    with pytest.raises(JobNotFound, match="mail:nobody"):
        await do(inspector.jobs.show, "mail:nobody")


async def test_dead_letters_come_in_pages(do, app, inspector):
    ids = await make_dead_letters(do, app.queue("mail"), 5)
    page = await do(inspector.queues.list_dead, "mail", 2, 1)
    assert (page.total, page.offset, len(page.letters)) == (5, 1, 2)
    assert {letter.id for letter in page.letters} < set(ids)
    assert (await do(inspector.jobs.show_dead, ids[0])).reason == "it broke"


async def test_only_a_dead_letter_is_requeued_or_removed(do, app, inspector):
    dead = await make_dead_letters(do, app.queue("mail"), 2)
    ready = await do(app.queue("mail").put, 1)
    outcomes = await do(inspector.jobs.requeue_dead, dead[0], ready.id)
    assert [(one.done, one.status) for one in outcomes] == [(True, Status.DEAD), (False, Status.READY)]
    assert [one.done for one in await do(inspector.jobs.remove_dead, dead[1], ready.id)] == [True, False]
    with pytest.raises(PenstockError, match="is not a dead letter: it is ready"):
        await do(inspector.jobs.show_dead, ready.id)


@pytest.mark.parametrize(("verb", "left"), [("requeue_all_dead", 7), ("remove_all_dead", 0)])
async def test_all_dead_letters_go_in_slices(do, app, inspector, verb, left, monkeypatch):
    monkeypatch.setattr("penstock.ops.queues._CHANGED_TOGETHER", 3)
    await make_dead_letters(do, app.queue("mail"), 7)
    assert await do(getattr(inspector.queues, verb), "mail") == 7
    counts = await do(app.queue("mail").count)
    assert (counts.dead, counts.ready) == (0, left)


@pytest.mark.parametrize("verb", ["requeue_all_dead", "remove_all_dead"])
async def test_a_job_that_died_after_the_count_stays_dead(do, app, inspector, verb):
    await make_dead_letters(do, app.queue("mail"), 3)
    dead = await do(inspector.queues.count_dead, "mail")
    await asyncio.sleep(0.01)
    later = await make_dead_letters(do, app.queue("mail"), 2)
    assert (dead.count, await do(getattr(inspector.queues, verb), "mail", dead.until)) == (3, 3)
    assert {letter.id for letter in (await do(inspector.queues.list_dead, "mail")).letters} == set(later)


@pytest.mark.damages
@pytest.mark.parametrize("place", ["valkey"])
@pytest.mark.parametrize("face", ["aio"])
@pytest.mark.parametrize("verb", ["requeue_all_dead", "remove_all_dead"])
async def test_ids_that_are_not_text_are_removed_with_the_others(do, app, inspector, raw, verb, monkeypatch):
    monkeypatch.setattr("penstock.ops.queues._CHANGED_TOGETHER", 2)
    await make_dead_letters(do, app.queue("mail"), 3)
    key = app.queue("mail").first.bindings.keys.base + "dead"
    raw.zadd(key, {b"\xff%d" % n: 1 for n in range(5)})
    with anyio.fail_after(scaled(10)):
        assert await do(getattr(inspector.queues, verb), "mail") == 3
    assert raw.exists(key) == 0


@pytest.mark.parametrize("place", ["valkey"])
@pytest.mark.parametrize("face", ["aio"])
async def test_dead_letters_that_cannot_be_removed_are_tried_once(do, app, inspector, monkeypatch):
    await make_dead_letters(do, app.queue("mail"), 3)
    monkeypatch.setattr(QueueBindings, "remove_dead", lambda self, keys: self.requeue([]))
    with anyio.fail_after(scaled(10)):
        assert await do(inspector.queues.remove_all_dead, "mail") == 0


@pytest.mark.parametrize("verb", ["requeue_all_dead", "remove_all_dead"])
async def test_an_interrupted_action_leaves_the_rest_dead_and_can_be_repeated(do, app, inspector, verb, monkeypatch):
    monkeypatch.setattr("penstock.ops.queues._CHANGED_TOGETHER", 3)
    await make_dead_letters(do, app.queue("mail"), 7)
    operation = getattr(QueueQuestioner, verb).operation(inspector.queues, "mail")

    def perform(effect):
        return (yield effect)

    answer = None
    for _ in range(3):  # does the queue exist and its shards, a page of ids, the action on them
        answer = await app._driver.aio.run(perform(operation.send(answer)))
    operation.close()
    assert (await do(app.queue("mail").count)).dead == 4
    assert await do(getattr(inspector.queues, verb), "mail") == 4


@pytest.mark.damages
@pytest.mark.parametrize("place", ["valkey"])
async def test_a_damaged_dead_letter_can_be_removed(do, app, inspector, raw):
    keys = app.queue("mail").first.bindings.keys
    ids = await make_dead_letters(do, app.queue("mail"), 3)
    raw.hset(keys.base + "jobs", ids[1].partition(":")[2], b"cut")
    assert await do(inspector.queues.remove_all_dead, "mail") == 2
    assert raw.exists(keys.base + "dead", keys.base + "jobs", keys.base + "failures") == 0
    assert (await do(app.queue("mail").count)).dead == 0


async def test_every_directory_of_the_app_is_found_with_its_names(do, app, inspector, make_app):
    assert await do(inspector.directories.all) == []
    await do(inspector.directories.open("guild:9").add_many, ["Ann", "名前"])
    await do(inspector.directories.open("guild:10", shards=3, words=True).add_many, ["Bo Lee", "Cy", "Dee"])
    await do(app.contacts("guild:11").touch, "Ann")
    other = make_app(f"{app.settings.prefix}x")
    await do(other.directory("theirs").add, "Ann")
    assert await do(inspector.directories.all) == [DirectoryView("guild:10", 3), DirectoryView("guild:9", 2)]
    for guild in (app.directory("guild:10"), other.directory("theirs")):
        await do(guild.clear)


async def test_a_server_reports_what_it_is(do, inspector, nodes):
    servers = await do(inspector.servers)
    assert len(servers) == len(nodes)
    assert all(one.name.startswith("valkey ") and one.number("used_memory") > 0 for one in servers)


async def test_every_channel_of_files_of_the_app_is_found(do, app, inspector, make_app, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    for name in ("b", "a}%/名"):
        await do(app.files(name).send, tmp_path / "a", receivers=["me"])
    await do(make_app().files("theirs").open, ["me"])
    found = await do(inspector.files.channels)
    assert [(info.name, info.bytes > 1000, info.receivers[0].behind) for info in found] == [
        ("a}%/名", True, 3),
        ("b", True, 3),
    ]
    assert await do(inspector.files.channel, "b") == found[1]
    with pytest.raises(PenstockError, match=r"no channel 'theirs' with prefix .*; there is "):
        await do(inspector.files.channel, "theirs")
