"""Shares over long runs: a tenant with a huge backlog, tenants that return after each claim, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.jobs.claims import Settlement
from tests.jobs.stand import FakeWorker, Stand, record, settlement
from tests.servers import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def stand(server: Server) -> Stand:
    server.client.flushall()
    return Stand(server.client)


def fill(stand: Stand, tenant: str, n: int) -> None:
    drafted = record(tenant, ttl=0)
    for start in range(0, n, 2000):
        stand.put_drafts([(f"{tenant}.{i}", drafted) for i in range(start, min(n, start + 2000))])


def serve(stand: Stand, n: int, batch: int) -> Iterator[str]:
    """Claim the next `n` jobs, and complete each in the following turn. Yields their tenants."""
    worker = FakeWorker(stand, "w")
    settled: list[Settlement] = []
    for _ in range(0, n, batch):
        claims = worker.turn(batch, *settled).claims
        settled = [settlement(claim) for claim in claims]
        yield from (claim.record.tenant for claim in claims)


def serve_returning(stand: Stand, n: int, tenants: set[str]) -> Iterator[str]:
    """Claim the next `n` jobs, one per turn. Yields their tenants. `tenants` enqueue another job after each claim."""
    for tenant in tenants:
        stand.put(f"{tenant}-first", tenant=tenant)
    worker = FakeWorker(stand, "w")
    for i in range(n):
        (claim,) = worker.claim(1)
        tenant = claim.record.tenant
        yield tenant
        if tenant in tenants:
            stand.put(f"{tenant}-{i}", tenant=tenant)


@pytest.mark.parametrize("batch", [64, 1])
def test_a_hundred_small_tenants_are_done_within_two_rounds_of_a_huge_backlog(stand: Stand, batch: int):
    fill(stand, "m-flood", 100_000)
    small = {f"{'az'[i % 2]}{i}" for i in range(100)}
    for tenant in small:
        fill(stand, tenant, 10)
    served = Counter(serve(stand, 2 * 1000 + batch, batch))
    assert {tenant for tenant in served if served[tenant] == 10} == small


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_tenant_that_returns_after_each_claim_gets_its_share_and_not_more(stand: Stand, names: str):
    backlog, back = names[0], names[1]
    fill(stand, backlog, 1000)
    served = Counter(serve_returning(stand, 1000, {back}))
    assert abs(served[back] - served[backlog]) <= 10


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("weight", [5, 0.2])
def test_shares_are_proportional_to_weights(stand: Stand, names: str, weight: float):
    heavy, light = names[0], names[1]
    fill(stand, heavy, 3000)
    fill(stand, light, 3000)
    stand.run(stand.bindings.set_weight(heavy if weight > 1 else light, weight))
    served = Counter(serve(stand, 3000, 8))
    assert served[heavy] / served[light] == pytest.approx(5, rel=0.03)


def test_three_returning_tenants_and_three_with_backlogs_get_equal_shares(stand: Stand):
    names = ["a", "d", "f"], ["b", "c", "e"]
    for tenant in names[1]:
        fill(stand, tenant, 1000)
    served = Counter(serve_returning(stand, 3000, set(names[0])))
    assert all(abs(n - 500) <= 5 for n in served.values()), served


def test_virtual_times_stay_exact_after_a_thousand_million_turns(stand: Stand):
    """Virtual time grows as long as a level is not empty. The smallest difference must still decide the order."""
    stand.put("x", tenant="m")
    stand.change_row(levels=[5, 1, 2.0**66])
    stand.client.zadd(stand.base + "rotation:5", {"m": 2.0**66 + 2.0**35})
    fill(stand, "m", 20)
    for tenant in "az":
        stand.put(tenant, tenant=tenant)
    assert list(serve(stand, 4, 1)) == ["m", "a", "z", "m"]
