"""The commands of a queue act on all its shards, and ask for no more than its name."""

from __future__ import annotations

import json

import pytest

from penstock import ConfigurationError, Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command

TENANTS = [f"t{n}" for n in range(12)]


def test_commands_act_on_all_shards(shop: Penstock, penstock: Command):
    queue = shop.queue("mail", shards=3)
    assert queue.parts is not None
    for tenant in TENANTS:
        queue.put_many([1, 2], tenant=tenant)
    assert all(part.count().ready for part in queue.parts)  # so that a command that forgets a shard fails

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
