"""Bounds of the server time of one script, whatever the queue contains."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.core.operations import RoundTrip
from tests.jobs.stand import FakeWorker, Stand, record, settlement
from tests.servers import Server
from tests.speed import slowdown

CHUNK = 1000
MOST_US = 25_000
"""Server time that a turn may take."""


@pytest.fixture(scope="module")
def bounds_server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def stand(bounds_server: Server) -> Iterator[Stand]:
    bounds_server.client.flushall()
    with contextlib.closing(Stand(bounds_server.client)) as made:
        yield made


def in_bulk(stand: Stand, call: Callable[[list[str]], RoundTrip[Any]], ids: list[str], size: int = CHUNK) -> None:
    """Send many calls in pipelines, because filling the queue is not measured."""
    stand.run(call(ids[:1]))
    for start in range(1, len(ids), 20 * size):
        with stand.client.pipeline(transaction=False) as pipeline:
            for at in range(start, min(start + 20 * size, len(ids)), size):
                one = call(ids[at : at + size])
                pipeline.evalsha(one.script.sha, len(one.keys), *one.keys, *one.args)
            pipeline.execute()


def fill(stand: Stand, n: int, tenants: int) -> list[str]:
    """Enqueue jobs of so many tenants in turn. Returns their ids."""
    drafts = [record(f"tenant{i}", ttl=0) for i in range(tenants)]
    ids = [f"j{i}" for i in range(n)]

    def enqueue(some: list[str]) -> RoundTrip[Any]:
        return stand.bindings.enqueue([p for key in some for p in (key, drafts[int(key[1:]) % tenants])])

    in_bulk(stand, enqueue, ids)
    return ids


def server_us(stand: Stand, act: Callable[[], Any]) -> int:
    """Server time, in microseconds, of the one script that `act` runs."""
    stand.client.config_resetstat()
    act()
    return int(stand.client.info("commandstats")["cmdstat_evalsha"]["usec"])


def test_hashes_that_turns_write_by_the_hundred_are_not_encoded_as_lists(stand: Stand):
    fill(stand, 200, 100)
    FakeWorker(stand, "w").claim(100)
    tables = ("held:w", "owners", "heads:5", "rotation:5", "tenants")
    kinds = {name: stand.client.object("encoding", stand.base + name) for name in tables}
    assert kinds == dict.fromkeys(tables, b"hashtable") | {"rotation:5": b"skiplist"}
    assert len(stand.dump()["rotation:5"]) == len(stand.dump()["tenants"]) == 100


@pytest.mark.parametrize(("many", "tenants"), [(100_000, 1), (100_000, 1000)])
def test_turns_past_a_hundred_thousand_cancelled_jobs_stay_short(stand: Stand, many: int, tenants: int):
    """A turn looks at an exact number of entries. All turns of one size do the same work here, so the lower quartile of
    many is the cost of one, even on a noisy machine."""
    ids = fill(stand, many, tenants)
    in_bulk(stand, stand.bindings.cancel, ids, 25)
    assert stand.counts() == "0 0 0 0"
    worker, left = FakeWorker(stand, "w"), many
    assert stand.entries() == left
    for want in (1, 64, 256):
        took = []
        for _ in range(60):
            took.append(server_us(stand, partial(worker.turn, want, address="p/1", sleep=50)))
            assert worker.repeat_turn().more
        assert stand.entries() == left - 60 * max(4 * want, 64)
        left = stand.entries()
        assert quartile(took) <= MOST_US * slowdown(), f"want {want}: {took}"


def test_each_slice_of_a_purge_is_short(stand: Stand):
    fill(stand, 20_000, 1000)
    took = []
    while stand.run(stand.bindings.counts()).waiting:
        took.append(server_us(stand, lambda: stand.run(stand.bindings.purge(None, 0, 250))))
    assert len(took) == 80
    assert quartile(took) <= MOST_US * slowdown(), took


def test_the_most_expensive_turn_is_bounded(stand: Stand):
    """A turn that settles 256 jobs, promotes 100, takes back 100 and claims 256, of different tenants at all levels."""
    took = []
    for n in range(20):
        stand.put_drafts([(f"{n}.{i}", record(f"tenant{i}", i % 10)) for i in range(500)])
        stand.put_drafts([(f"{n}.{i}.due", record(f"tenant{i}", i % 10, delay=5)) for i in range(150)])
        FakeWorker(stand, f"lost{n}", lease=5).claim(150)
        worker = FakeWorker(stand, f"w{n}", lease=20)
        claims = worker.claim(256)
        stand.advance(5)
        ends = [settlement(claim, "retry" if place % 2 else None, 1) for place, claim in enumerate(claims)]
        took.append(server_us(stand, partial(worker.turn, 256, *ends)))
        for list_ in ("delayed", "suspects"):
            while not stand.run(stand.bindings.purge(None, 0, 250, list_))[2]:
                pass
    assert quartile(took) <= 6 * MOST_US * slowdown(), took


def test_no_script_notifies_more_than_a_slice_of_ten_thousand_processes(stand: Stand):
    processes = [f"penstock:wake:process-{n:05}" for n in range(10_000)]
    stand.start_processes(*processes)
    stand.put("j")
    added = []
    for at, name in enumerate(processes):
        call = partial(stand.run, stand.bindings.result("j", f"{name}/1"))
        if at % 100:
            call()
        else:
            added.append(server_us(stand, call))
    worker = FakeWorker(stand, "w")
    took = [server_us(stand, partial(worker.settle, *worker.claim()))]
    while stand.client.exists(stand.base + "unnotified"):
        took.append(server_us(stand, lambda: stand.run(stand.bindings.result("j", ""))))
    assert len(took) >= 40
    assert quartile(took) <= 5_000 * slowdown(), took
    assert quartile(added) <= 500 * slowdown(), added


def quartile(took: list[int]) -> float:
    return statistics.quantiles(took)[0]
