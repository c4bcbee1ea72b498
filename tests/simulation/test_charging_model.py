"""Random histories of a queue whose tenants share the time of its workers, whatever their jobs take.

Two tenants always have waiting jobs, a third one comes and goes. The default run is short and always the same.
PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

from penstock.jobs.claims import Claim, Ending
from tests.jobs.stand import FakeWorker, Stand, settlement
from tests.simulation.histories import run_histories

BUSY, VISITOR = ["ann", "bob"], "eve"
LONGEST = 2.0
"""Seconds of a run."""


class ChargingHistory:
    """One random history, decided by its seed."""

    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        pick = self.random = random.Random(seed)
        self.stand = Stand(client)
        self.worker = FakeWorker(self.stand, "w", lease=100_000.0)
        self.runners = pick.choice([1, 1, 2, 4])
        self.weights = {"ann": 1.0, "bob": pick.choice([1.0, 1.0, 3.0]), VISITOR: 1.0}
        self.takes = {tenant: pick.choice([0.02, 0.2, LONGEST]) for tenant in self.weights}
        self.endings: list[Ending | None] = [None, None, pick.choice([None, "drop", "bury"])]
        self.running: dict[str, tuple[Claim, float]] = {}
        self.spent: Counter[str] = Counter()
        self.serial = 0
        self.stand.run(self.stand.bindings.set_switch("by_time", True))
        for tenant, weight in self.weights.items():
            if weight != 1.0:
                self.stand.run(self.stand.bindings.set_weight(tenant, weight))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.feed()
            for claim in self.worker.claim(self.runners - len(self.running)):
                self.running[claim.id] = claim, self.takes[claim.record.tenant] * self.random.uniform(0.5, 1.0)
            self.end_first()
            self.judge()

    def feed(self) -> None:
        """The busy tenants always have jobs for all runners. The visitor has one at a time, and not always."""
        waiting = Counter(
            self.stand.job(id.decode()).tenant for id in self.stand.client.hkeys(self.stand.base + "jobs")
        )
        waiting -= Counter(claim.record.tenant for claim, _ in self.running.values())
        for tenant in BUSY:
            self.put(tenant, max(0, self.runners + 1 - waiting[tenant]))
        if not waiting[VISITOR] and self.random.random() < 0.7:
            self.put(VISITOR, 1)

    def put(self, tenant: str, n: int) -> None:
        if n == 0:
            return
        ids = [f"{tenant}{self.serial + at}" for at in range(n)]
        self.serial += n
        self.stand.put(*ids, tenant=tenant, ttl=0)

    def end_first(self) -> None:
        """The run ends that has least time left. A part of the others has passed then."""
        id, (claim, left) = min(self.running.items(), key=lambda one: one[1][1])
        self.stand.advance(left)
        for other, (one, rest) in [*self.running.items()]:
            self.running[other] = one, rest - left
            self.spent[one.record.tenant] += left  # type: ignore[assignment]
        del self.running[id]
        ending = self.random.choice(self.endings)
        self.worker.turn(0, settlement(claim, ending))
        if ending == "bury":
            self.stand.run(self.stand.bindings.remove_dead([id]))

    def judge(self) -> None:
        """Apart from runs that are not charged yet, the busy tenants got their parts, and the visitor not more."""
        shares = {tenant: self.spent[tenant] / weight for tenant, weight in self.weights.items()}
        margin = (self.runners + 1) * LONGEST
        ann, bob = (shares[tenant] for tenant in BUSY)
        assert abs(ann - bob) <= margin, f"the shares of {BUSY} are {ann:.2f} and {bob:.2f} s"
        assert shares[VISITOR] <= min(ann, bob) + margin, f"{VISITOR} has {shares[VISITOR]:.2f} of {ann:.2f} s"


def test_tenants_share_the_time_of_the_workers(client: Any) -> None:
    run_histories(partial(ChargingHistory, client), quick=8, steps=150)
