"""Fairness by time: tenants share the time of the workers, whatever their jobs take."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.jobs.stand import FakeWorker, Stand


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=3600)


def by_time(stand: Stand, on: bool = True) -> None:
    stand.run(stand.bindings.set_switch("by_time", on))


def seconds_of_tenants(stand: Stand, worker: FakeWorker, runs: int) -> Counter[str]:
    """One runner runs the jobs of the tenants `slow`, which take 1 s each, and `fast`, which take 50 ms."""
    spent: Counter[str] = Counter()
    for _ in range(runs):
        (claim,) = worker.claim()
        tenant = claim.record.tenant
        seconds = {"slow": 1.0, "fast": 0.05}[tenant]
        stand.advance(seconds)
        spent[tenant] += seconds  # type: ignore[assignment]
        worker.settle(claim)
    return spent


def test_tenants_share_the_time_of_a_runner(stand: Stand, worker: FakeWorker) -> None:
    by_time(stand)
    stand.put(*(f"s{i}" for i in range(20)), tenant="slow")
    stand.put(*(f"f{i}" for i in range(300)), tenant="fast")
    spent = seconds_of_tenants(stand, worker, 150)
    assert abs(spent["slow"] - spent["fast"]) <= 1.0
    by_time(stand, on=False)
    seconds_of_tenants(stand, worker, 101)  # a tenant owes one run at most: 1 s stands for 100 jobs
    assert seconds_of_tenants(stand, worker, 10) == {"slow": pytest.approx(5.0), "fast": pytest.approx(0.25)}


def test_without_the_setting_tenants_share_the_number_of_jobs(stand: Stand, worker: FakeWorker) -> None:
    stand.put(*(f"s{i}" for i in range(20)), tenant="slow")
    stand.put(*(f"f{i}" for i in range(20)), tenant="fast")
    spent = seconds_of_tenants(stand, worker, 20)
    assert spent == {"slow": pytest.approx(10.0), "fast": pytest.approx(0.5)}


def test_a_weight_gives_a_tenant_more_time(stand: Stand, worker: FakeWorker) -> None:
    by_time(stand)
    stand.run(stand.bindings.set_weight("fast", 3))
    stand.put(*(f"s{i}" for i in range(10)), tenant="slow")
    stand.put(*(f"f{i}" for i in range(200)), tenant="fast")
    spent = seconds_of_tenants(stand, worker, 125)
    assert 2.0 <= spent["fast"] / spent["slow"] <= 4.0


def test_a_tenant_that_enqueues_one_job_at_a_time_keeps_what_it_owes(stand: Stand, worker: FakeWorker) -> None:
    by_time(stand)
    stand.put(*(f"f{i}" for i in range(200)), tenant="fast")
    spent: Counter[str] = Counter()
    serial = 0
    for _ in range(80):
        if not any(key.startswith(b"s") for key in stand.client.hkeys(stand.base + "jobs")):
            serial += 1
            stand.put(f"s{serial}", tenant="slow")
        spent += seconds_of_tenants(stand, worker, 1)
    assert spent["slow"] <= spent["fast"] + 1.1
    stand.advance(61)
    owed = [name for name in stand.names() if ":owed:" in name]
    assert owed
    assert all(stand.client.pttl(name) > 0 for name in owed)


@pytest.mark.parametrize("ending", ["retry", "bury", "drop"])
def test_a_run_that_fails_is_charged_as_well(stand: Stand, worker: FakeWorker, ending: str) -> None:
    by_time(stand)
    stand.put("s1", "s2", tenant="slow")
    stand.put(*(f"f{i}" for i in range(9)), tenant="fast")
    first, second = worker.claim(2)
    slow, fast = (first, second) if first.id == "s1" else (second, first)
    worker.settle(fast)
    stand.advance(1)
    worker.settle(slow, ending=ending)  # type: ignore[arg-type]
    assert {claim.record.tenant for claim in worker.claim(8)} == {"fast"}
