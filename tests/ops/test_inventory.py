"""The read-only check of every key: a busy app has no problems, and each key that does not belong is reported."""

import struct

import pytest

from penstock.errors import FileNotSaved
from penstock.ops.inspect import Inspector
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker


@pytest.fixture(params=["valkey", "cluster"])
def place(request):
    return request.param


@pytest.fixture
def inspector(app):
    return Inspector(app)


@pytest.fixture
def keys(app):
    return app.queue("mail").first.bindings.keys


async def fill(app):
    """Puts jobs of several tenants into every state; returns the one that is still claimed."""
    queue = app.queue("mail")
    queue_of_tenant = {"": 2, "Zoë 名前": 2, "a:b": 1}
    for tenant, n in queue_of_tenant.items():
        await queue.put_many.aio(range(n), tenant=tenant)
    await queue.put.aio(1, delay=60)
    done, dead, back, held = await queue.claim.aio(4)
    await done.complete.aio({"n": 1})
    await dead.fail.aio("it broke")
    await back.release.aio()
    return held


async def test_a_busy_app_has_no_problems(app, inspector, raw, keys):
    held = await fill(app)
    raw.set(keys.user("mine"), 1)
    found = await inspector.inventory.aio()
    assert (found.problems, found.complete) == ([], True)
    assert found.keys > 8
    raw.delete(keys.user("mine"))
    await held.complete.aio()


async def test_while_a_worker_runs_there_are_no_problems(app, inspector):
    @app.task(queue="mail")
    async def work(n: int) -> None: ...

    worker = Worker(app, WorkerSettings(burst=True))
    await app.enqueue_many.aio(work.using(tenant=f"t{n % 50}", delay=n % 3 / 100).call(n) for n in range(3000))
    import asyncio

    running = asyncio.create_task(worker.run())
    inventories = 0
    while not running.done():
        assert (await inspector.inventory.aio()).problems == []
        inventories += 1
    await running
    assert inventories > 2


async def test_the_keys_of_another_app_are_not_counted(app, inspector, make_app):
    await make_app(f"{app.settings.prefix}2").queue("mail").put.aio(1)
    assert (await inspector.inventory.aio()).keys == 0


@pytest.mark.damages
@pytest.mark.parametrize(
    ("suffix", "write", "message"),
    [
        ("nonsense", ("SET", 1), "Penstock has no key of this name"),
        ("nonsense:x", ("SET", 1), "Penstock has no key of this name"),
        ("jobs", ("SET", 1), "a string, not a hash"),
        ("replay:x", ("SET", "c1"), "has no TTL"),
        ("held:gone", ("HSET", "id", "x"), "'gone' is not in leases"),
        ("batches:gone", ("HSET", "id", "x"), "'gone' is not in leases"),
        ("lane:5:Zoë 名前", ("RPUSH", "x"), "'Zoë 名前' is not in rotation:5"),
        ("front:0:a:b", ("RPUSH", "x"), "'a:b' is not in rotation:0"),
        ("failures", ("HSET", "id", "x"), "the queue has no meta"),
    ],
)
async def test_a_key_that_does_not_belong_is_reported(app, inspector, raw, keys, suffix, write, message):
    verb, *values = write
    raw.execute_command(verb, keys.base + suffix, *values)
    (problem,) = (await inspector.inventory.aio()).problems
    assert problem.key == keys.base + suffix
    assert message in problem.problem
    assert raw.delete(keys.base + suffix) == 1


@pytest.mark.damages
async def test_a_key_that_is_not_text_is_reported(app, inspector, raw, keys):
    raw.rpush(keys.base.encode() + b"lane:5:\xff", "x")
    (problem,) = (await inspector.inventory.aio()).problems
    assert problem.key.endswith("lane:5:\\xff")
    assert "left behind" in problem.problem


@pytest.mark.damages
@pytest.mark.parametrize(("suffix", "field"), [("jobs", "nobody"), ("delayed", "0000000nobody"), ("dead", "nobody")])
async def test_wrong_counts_are_reported(app, inspector, raw, keys, suffix, field):
    held = await fill(app)
    add = raw.hset if suffix == "jobs" else lambda key, member, score: raw.zadd(key, {member: score})
    add(keys.base + suffix, field, struct.pack(">I", 9) if suffix == "jobs" else 1e15)
    (problem,) = (await inspector.inventory.aio()).problems
    assert problem.key == keys.base + suffix
    assert "the counters say" in problem.problem
    await held.complete.aio()


@pytest.mark.damages
async def test_a_claim_that_is_stored_and_not_counted_is_reported(app, inspector, raw, keys):
    """An error has ended its script before that wrote the row. The sum of all jobs is right."""
    held = await fill(app)
    row = raw.hget(keys.base + "meta", "row")
    (second,) = await app.queue("mail").claim.aio()
    raw.hset(keys.base + "meta", "row", row)
    (problem,) = (await inspector.inventory.aio()).problems
    assert (problem.key, problem.problem) == (keys.base + "owners", "has 2 entries, but the counters say 1")
    await second.complete.aio()
    await held.complete.aio()


async def test_it_stops_at_the_limit_and_is_incomplete(app, inspector, monkeypatch):
    monkeypatch.setattr("penstock.ops.probe.KEYS_PER_SCAN", 10)
    for n in range(100):
        await app.mailbox(f"user:{n}").post.aio(1)
    found = await inspector.inventory.aio(20)
    assert not found.complete
    assert 20 < found.keys < 100
    assert found.problems == []


async def test_it_only_reads(app, inspector, raw, nodes):
    held = await fill(app)

    def written() -> int:
        return sum(int(node.info("persistence")["rdb_changes_since_last_save"]) for node in nodes)

    before = written()
    await inspector.inventory.aio()
    assert written() == before
    await held.complete.aio()


async def test_messages_and_files_in_every_state_have_no_problems(app, inspector, tmp_path, raw):
    """Some of their keys have the names of keys of a queue."""
    box = app.mailbox("m")
    await box.post.aio("the last one")
    (item,) = await box.claim.aio()
    await item.reject.aio("no use")
    chat = await app.chats.create.aio(["ada", "bo"], sender="ada", message="a")
    await chat.edit.aio("ada", (await chat.reader("bo", "phone").pull.aio())[0], "b")
    await app.chats.of("bo").pull.aio()
    channel = app.files("logs")
    (tmp_path / "in" / "a.log").mkdir(parents=True)
    log = tmp_path / "a.log"
    log.write_bytes(b"x\n")

    @app.aggregate("logs", receiver="counts", max_attempts=1)
    def fails(lines):
        raise ValueError

    await channel.send_lines.aio(log, receivers=["counts", "saves", "waits"])
    await fails.run.aio(wait=0)
    async with channel.receiver("waits").blocks(wait=0) as blocks:
        await anext(blocks)
        with pytest.raises(FileNotSaved):
            await anext(channel.receiver("saves").save(tmp_path / "in", wait=0))
        names = {key.decode().rpartition(":")[2] for key in raw.scan_iter(match="*")}
        assert {"dead", "letters", "owners", "dead_files"} <= names
        assert (await inspector.inventory.aio()).problems == []
    await channel.delete.aio()
    await box.delete.aio()
    await chat.delete.aio()
