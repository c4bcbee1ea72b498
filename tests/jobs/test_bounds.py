"""How long one script may hold the server, whatever stands in the queue."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.core.operations import RoundTrip
from tests.jobs.stand import Hand, Stand, record, settlement
from tests.servers import Server
from tests.speed import slowdown

CHUNK = 1000
MOST_US = 25_000
"""Of server time a turn may take."""


@pytest.fixture(scope="module")
def bounds_server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def stand(bounds_server: Server) -> Stand:
    bounds_server.client.flushall()
    return Stand(bounds_server.client)


def in_bulk(stand: Stand, step: Callable[[list[str]], RoundTrip[Any]], ids: list[str]) -> None:
    """Many steps in pipelines: filling is not what is measured."""
    stand.run(step(ids[:1]))
    for start in range(1, len(ids), 20 * CHUNK):
        with stand.client.pipeline(transaction=False) as pipeline:
            for at in range(start, min(start + 20 * CHUNK, len(ids)), CHUNK):
                one = step(ids[at : at + CHUNK])
                pipeline.evalsha(one.script.sha, len(one.keys), *one.keys, *one.args)
            pipeline.execute()


def fill(stand: Stand, n: int, tenants: int) -> list[str]:
    """Jobs in turn of so many tenants; returns their ids."""
    drafts = [record(f"tenant{i}", ttl=0) for i in range(tenants)]
    ids = [f"j{i}" for i in range(n)]

    def enqueue(some: list[str]) -> RoundTrip[Any]:
        return stand.bindings.enqueue([p for key in some for p in (key, drafts[int(key[1:]) % tenants])])

    in_bulk(stand, enqueue, ids)
    return ids


def server_us(stand: Stand, act: Callable[[], Any]) -> int:
    """Server time of the one script that `act` runs."""
    stand.client.config_resetstat()
    act()
    return int(stand.client.info("commandstats")["cmdstat_evalsha"]["usec"])


def entries(stand: Stand) -> int:
    with stand.client.pipeline(transaction=False) as pipeline:
        for name in stand.names():
            if ":lane:" in name:
                pipeline.llen(name)
        return sum(pipeline.execute())


def test_what_turns_write_by_the_hundred_is_no_list_to_search_through(stand: Stand):
    fill(stand, 200, 100)
    Hand(stand, "w").claim(100)
    kinds = {name: stand.client.object("encoding", stand.base + name) for name in ("held:w", "turns:5", "tenants")}
    assert kinds == {"held:w": b"hashtable", "turns:5": b"skiplist", "tenants": b"hashtable"}
    assert len(stand.dump()["turns:5"]) == len(stand.dump()["tenants"]) == 100


@pytest.mark.parametrize(("many", "tenants"), [(500_000, 1), (200_000, 1000)])
def test_no_turn_over_half_a_million_cancelled_jobs_holds_the_server(stand: Stand, many: int, tenants: int):
    """How many entries a turn looks at is exact. What it costs: turns of one size do the same work here, so the lower
    quartile of many is right on a noisy machine, too."""
    ids = fill(stand, many, tenants)
    in_bulk(stand, stand.bindings.cancel, ids)
    assert stand.counts() == "0 0 0 0"
    hand, left = Hand(stand, "w"), many
    assert entries(stand) == left
    for want in (1, 64, 256):
        took = []
        for _ in range(100):
            took.append(server_us(stand, partial(hand.turn, want, address="p/1", sleep=50)))
            assert hand.again().more
        assert entries(stand) == left - 100 * max(4 * want, 64)
        left = entries(stand)
        assert quartile(took) <= MOST_US * slowdown(), f"want {want}: {took}"


def test_no_slice_of_a_purge_holds_the_server(stand: Stand):
    fill(stand, 20_000, 1000)
    took = []
    while stand.run(stand.bindings.counts()).waiting:
        took.append(server_us(stand, lambda: stand.run(stand.bindings.purge(None, 0, 250))))
    assert len(took) == 80
    assert quartile(took) <= MOST_US * slowdown(), took


def test_the_dearest_turn_is_bounded(stand: Stand):
    """It settles 256 jobs, promotes 100, takes back 100 and claims 256, all of different tenants at all levels."""
    took = []
    for n in range(20):
        stand.put_drafts([(f"{n}.{i}", record(f"tenant{i}", i % 10)) for i in range(500)])
        stand.put_drafts([(f"{n}.{i}.due", record(f"tenant{i}", i % 10, delay=5)) for i in range(150)])
        Hand(stand, f"lost{n}", lease=5).claim(150)
        hand = Hand(stand, f"w{n}", lease=20)
        claims = hand.claim(256)
        stand.advance(5)
        ends = [settlement(claim, "retry" if place % 2 else None, 1) for place, claim in enumerate(claims)]
        took.append(server_us(stand, partial(hand.turn, 256, *ends)))
        for list_ in ("delayed", "suspects"):
            while not stand.run(stand.bindings.purge(None, 0, 250, list_))[2]:
                pass
    assert quartile(took) <= 6 * MOST_US * slowdown(), took


def quartile(took: list[int]) -> float:
    return statistics.quantiles(took)[0]
