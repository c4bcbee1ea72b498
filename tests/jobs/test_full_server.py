"""A server at `maxmemory` refuses new work and lets running work finish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from valkey.exceptions import ResponseError

from penstock.driver.retrying import error_code
from penstock.jobs.finished import CompletedRows, read_block
from penstock.jobs.retention import Retention
from tests.jobs.stand import FakeWorker, Stand, every_script, ids, record, settlement
from tests.servers import Server

ADDS_WORK = {
    "accept",
    "requeue_edited",
    "take_in",
    "enqueue",
    "take_in_shard",
    "enqueue_in_shard",
    "enqueue_flow",
    "requeue",
    "define_schedules",
    "tick",
    "deliver",
    "signal",
    "requeue_jobs",
}


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    with Server("--maxmemory-policy", "noeviction") as started:
        yield started


@pytest.fixture
def full(small_server: Server) -> Iterator[Stand]:
    """A queue with jobs in every state, on a server that accepts not one byte more."""
    small_server.client.flushall()
    stand = Stand(small_server.client)
    stand.put("dead", "j", tenant="ada")
    worker = FakeWorker(stand, "v", lease=1000)
    worker.settle(worker.claim()[0], ending="bury", text="why")
    stand.put("a", "b", tenant="ada")
    stand.put("s", delay=5)
    stand.put("lost", priority=0)
    FakeWorker(stand, "lost", lease=1).claim(1)
    small_server.client.config_set("maxmemory", 1)
    yield stand
    small_server.client.config_set("maxmemory", 0)


def test_new_work_is_refused_before_anything_is_written(full: Stand):
    before = full.dump()
    for name in sorted(ADDS_WORK):
        with pytest.raises(ResponseError) as refused:
            full.run(every_script(full.bindings)[name])
        assert error_code(refused.value) == "OOM"
    assert full.dump() == before


def test_running_work_is_claimed_renewed_and_finished(full: Stand):
    full.advance(5)
    worker = FakeWorker(full, "w")
    claims = worker.claim(9)
    assert sorted(ids(claims)) == ["a", "b", "j", "lost", "s"]
    assert worker.heartbeat()
    done, failed, unused = claims[:3]
    assert not worker.turn(
        0, settlement(done), settlement(failed, "retry", 3, "boom"), settlement(unused, "release")
    ).stale
    assert worker.settle_alone(claims[3], "bury", text="boom")
    assert full.counts() == "1 1 1 2"


def test_jobs_end_on_a_full_server_and_leave_their_rows(full: Stand):
    worker = FakeWorker(full, "w")
    claims = {claim.id: claim for claim in worker.claim(9)}
    rows = CompletedRows()
    rows.add(claims["a"])
    worker.turn(0, settlement(claims["a"]), rows=rows.take)
    assert worker.settle_alone(claims["b"], "bury", text="x" * 5000)
    assert worker.settle_alone(claims["j"], "drop", text="not needed")
    assert full.run(full.bindings.cancel(["s"])) == ["cancelled"]
    assert ended(full) == {"a": "completed", "b": "failed", "j": "dropped", "s": "cancelled", "dead": "failed"}
    full.run(Retention(finished=0).store(full.bindings))
    assert ended(full) == {}
    assert not {"finished", "failed", "finished:blocks", "failed:blocks"} & full.dump().keys()


def ended(stand: Stand) -> dict[str, str]:
    """Id -> outcome of each row."""
    found = [row for name in ("finished", "failed") for row in read_block("q", stand.dump().get(name, b"")) if row]
    assert all(row.jobs == 1 for row in found)
    return {row.id.partition(":")[2]: row.outcome for row in found}


@pytest.mark.parametrize("name", sorted(every_script(Stand(None).bindings).keys() - ADDS_WORK))
def test_all_other_operations_work(full: Stand, name: str):
    full.run(every_script(full.bindings)[name])


def test_the_queue_works_again_when_memory_is_free(full: Stand):
    full.client.config_set("maxmemory", 0)
    assert full.put_drafts([("new", record())]) == []
    assert full.run(full.bindings.requeue(["dead"])) == 1
    assert full.counts() == "5 1 1 0"
