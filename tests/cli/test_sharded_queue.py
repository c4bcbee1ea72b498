"""The commands of a queue act on all its shards, and ask for no more than its name."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock import Concurrency, ConfigurationError, Penstock, Queue, Worker, WorkerSettings
from penstock.cli.exits import Exit
from penstock.ops.inspect import Inspector
from tests.command_line import Command

TENANTS = [f"t{n}" for n in range(12)]


def each_shard(app: Penstock, queue: Queue) -> list[Queue]:
    """A queue of the name of each shard, which acts on that shard alone."""
    return [app.queue(shard.name) for shard in queue.shards.current.known]


def test_commands_act_on_all_shards(shop: Penstock, penstock: Command):
    queue = shop.queue("mail", shards=3)
    for tenant in TENANTS:
        queue.put_many([1, 2], tenant=tenant)
    assert all(one.count().ready for one in each_shard(shop, queue))  # so that a command that forgets a shard fails

    def read(*words: str) -> object:
        code, out, err = penstock(*words, "--json")
        assert code == Exit.OK, err
        return json.loads(out)

    def counts() -> dict[str, int]:
        code, out, err = penstock("queue", "show", "mail", "--json")
        assert code == Exit.OK, err
        found: dict[str, int] = json.loads(out)["counts"]
        return found

    assert counts()["ready"] == 24
    assert len(read("queue", "ls")) == 1  # type: ignore[arg-type]
    assert len(read("job", "ls", "mail", "--limit", "100")["jobs"]) == 24  # type: ignore[index]

    assert penstock("queue", "pause", "mail")[0] == Exit.OK
    assert queue.claim(100) == []
    assert penstock("queue", "resume", "mail")[0] == Exit.OK

    for item in queue.claim(24):
        item.fail("no") if item.body == 1 else item.retry(0)
    dead = read("dead", "ls", "mail")
    assert len(dead["letters"] if isinstance(dead, dict) else dead) == 12  # type: ignore[arg-type]
    assert penstock("dead", "retry", "--all", "mail", "--yes")[0] == Exit.OK
    assert (counts()["ready"], counts()["dead"]) == (24, 0)

    job = queue.put(3, tenant="t5")
    assert penstock("job", "show", job.id)[0] == Exit.OK
    assert penstock("job", "cancel", job.id, "--yes")[0] == Exit.OK
    assert job.status() == "cancelled"

    assert penstock("queue", "purge", "mail", "--tenant", "t5", "--yes")[0] == Exit.OK
    assert counts()["ready"] == 22
    assert penstock("queue", "purge", "mail", "--yes")[0] == Exit.OK
    assert counts()["ready"] == 0


def test_a_queue_cannot_have_the_name_of_a_shard(shop: Penstock):
    with pytest.raises(ConfigurationError, match="is the name of a shard: name the whole queue, 'mail'"):
        shop.task(queue="mail~1")(lambda: None)
    for name in ("mail~", "mail~0", "mail~x", "~1", "mail~1~1"):
        with pytest.raises(ConfigurationError, match="use 1 to 100 letters"):
            shop.queue(name)


def test_a_tenant_is_spread_and_its_jobs_are_found(shop: Penstock, penstock: Command):
    queue = shop.queue("mail", shards=4)
    queue.put(0, tenant="acme")
    code, out, _ = penstock("queue", "spread", "mail", "--tenant", "acme", "--shards", "4")
    assert (code, out) == (Exit.OK, "New jobs of acme go to 4 shards of mail.\n")
    jobs = queue.put_many(range(1, 40), tenant="acme")
    assert len({job.id.partition(":")[0] for job in jobs}) == 4
    code, out, _ = penstock("queue", "show", "mail")
    assert "4; acme uses 4" in out
    code, out, _ = penstock("job", "ls", "mail", "--tenant", "acme", "--limit", "100", "--json")
    assert len(json.loads(out)["jobs"]) == 40
    assert penstock("queue", "pause", "mail", "--tenant", "acme")[0] == Exit.OK
    assert queue.claim(5) == []
    assert penstock("queue", "resume", "mail", "--tenant", "acme")[0] == Exit.OK
    code, out, _ = penstock("queue", "purge", "mail", "--tenant", "acme", "--yes")
    assert (code, queue.count().waiting) == (Exit.OK, 0)
    code, _, err = penstock("queue", "spread", "mail", "--tenant", "acme", "--shards", "5")
    assert code != Exit.OK
    assert "takes 1 to 4" in err


@pytest.fixture
def filled(shop: Penstock) -> Queue:
    """A queue with three shards, in each of which several tenants have two jobs."""
    queue = shop.queue("mail", shards=3)
    for tenant in TENANTS:
        queue.put_many([1, 2], tenant=tenant)
    return queue


def ran(penstock: Command, *words: str) -> str:
    code, out, err = penstock(*words)
    assert code == Exit.OK, err
    return out


def test_jobs_are_cancelled_retried_removed_and_moved_by_filter_in_all_shards(filled: Queue, penstock: Command):
    for item in filled.claim(6):
        item.fail("no")
    ran(penstock, "job", "retry", "--queue", "mail", "--state", "dead", "--yes")
    assert (filled.count().dead, filled.count().ready) == (0, 24)
    for item in filled.claim(5):
        item.fail("no")
    ran(penstock, "job", "rm", "--queue", "mail", "--state", "dead", "--yes")
    assert (filled.count().dead, filled.count().ready) == (0, 19)
    tenant = next(one for one in TENANTS if filled.tenant(one).count().ready == 2)
    ran(penstock, "job", "cancel", "--queue", "mail", "--tenant", tenant, "--yes")
    assert filled.tenant(tenant).count().ready == 0
    before = filled.count().ready
    ran(penstock, "job", "move", "--queue", "mail", "--to", "other", "--yes")
    assert (filled.count().ready, before) == (0, 17)
    assert json.loads(ran(penstock, "queue", "show", "other", "--json"))["counts"]["ready"] == 17
    ran(penstock, "job", "move", "--queue", "other", "--to", "mail", "--yes")
    assert filled.count().ready == 17
    listed = json.loads(ran(penstock, "job", "ls", "--queue", "mail", "--limit", "100", "--json"))["jobs"]
    places = [(job["id"].partition(":")[0], job["tenant"]) for job in listed]
    assert len(places) == 17
    assert places == [(filled.shard_for(tenant).name, tenant) for _, tenant in places]
    assert len({place for place, _ in places}) > 1


def test_dead_letters_of_all_shards_are_removed(filled: Queue, penstock: Command):
    items = filled.claim(24)
    for item in items:
        item.fail("no")
    assert "no" in ran(penstock, "dead", "show", items[-1].id)
    ran(penstock, "dead", "rm", items[0].id, "--yes")
    assert filled.count().dead == 23
    ran(penstock, "dead", "rm", "--all", "mail", "--yes")
    assert filled.count().dead == 0


def test_settings_reach_all_shards(filled: Queue, shop: Penstock, penstock: Command):
    ran(penstock, "queue", "weigh", "mail", "--tenant", "t5", "--weight", "4")
    assert {one.tenant("t5").count().weight for one in each_shard(shop, filled)} == {4.0}
    code, _, err = penstock("queue", "weigh", "mail", "--tenant", "t5", "--weight", "0")
    assert code != Exit.OK
    assert "from 0.001 to 1000" in err
    ran(penstock, "queue", "order", "mail", "--by-time", "--due-first")
    assert all(one.count().by_time and one.count().due_first for one in each_shard(shop, filled))
    ran(penstock, "queue", "keep", "mail", "--dead-letters", "3")
    assert "3" in ran(penstock, "queue", "show", "mail")
    ran(penstock, "queue", "pause", "mail", "--tenant", "t5")
    assert len(filled.claim(30)) == 22
    ran(penstock, "queue", "resume", "mail", "--tenant", "t5")
    assert len(filled.claim(30)) == 2


def test_limits_of_all_shards_are_listed_and_changed(shop: Penstock, penstock: Command):
    queue = shop.queue("mail", shards=3)

    @shop.task(queue="mail", limit=Concurrency(1, key="{tenant}", name="one"))
    def work() -> None: ...

    for tenant in TENANTS:
        work.using(tenant=tenant).enqueue()
        work.using(tenant=tenant).enqueue()
    (limit,) = json.loads(ran(penstock, "queue", "limits", "mail", "--json"))
    assert [usage["parked"] for usage in limit["keys"]] == [1] * 12
    ran(penstock, "queue", "limit", "mail", "one", "--most", "2")
    assert queue.count().parked == 0


def test_the_history_of_a_queue_is_that_of_all_its_shards(filled: Queue, shop: Penstock, penstock: Command):
    for n in range(3):
        shop.clock.now_ms = 4_000_000_000_000 + 10_000 * n  # in the future
        for tenant in sorted(TENANTS, key=lambda one: filled.shard_for(one).name):
            shop.clock.now_ms += 100
            filled.put_many([n], tenant=tenant)
            assert shop.queue(filled.shard_for(tenant).name).count().ready
    shop.clock.now_ms = 0
    moments = json.loads(ran(penstock, "queue", "history", "mail", "--json"))
    assert [(moment["ready"], moment["entered"]) for moment in moments][-1] == (24 + 24, 12)
    usage = Inspector(shop).history.usage("mail")
    assert (usage.tenants, usage.largest.ready) == (12, 5)


def test_a_worker_of_all_shards_is_one_worker(shop: Penstock, penstock: Command):
    shop.queue("mail", shards=3)

    @shop.task(queue="mail")
    async def slow() -> None:
        seen.append((await Inspector(shop).history.usage.aio("mail")).workers)

    seen = list[int]()
    job = slow.using(tenant="t1").enqueue()
    asyncio.run(Worker(shop, WorkerSettings(burst=True)).run())
    assert job.status() == "completed"
    assert seen == [1]
