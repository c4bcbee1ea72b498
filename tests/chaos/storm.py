"""What happens when: a storm is a list of blows, made from a seed and nothing else."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

What: TypeAlias = Literal[
    "kill", "kill child", "kill supervisor", "freeze", "kill producer", "lose replies", "cut", "forget", "restart"
]

RATES: dict[What, float] = {
    "kill": 2.0,
    "kill child": 0.2,
    "kill supervisor": 0.1,
    "freeze": 0.3,
    "kill producer": 0.15,
    "lose replies": 3.0,
    "cut": 0.5,
    "forget": 0.5,
}
"""Blows a second, at random times."""

RESTARTS = (0.35, 0.7)
"""When in each minute the server is killed and started again."""


@dataclass(frozen=True, order=True, slots=True)
class Blow:
    """At `at` seconds from the start; `whom`, 0 to 1, picks the victim; `amount` seconds or replies."""

    at: float
    what: What
    whom: float
    amount: float


def seed() -> int:
    """$PENSTOCK_STORM_SEED, or a new one; it is printed, so that a failed storm can be had again."""
    given = os.environ.get("PENSTOCK_STORM_SEED")
    chosen = int(given) if given else random.SystemRandom().randrange(10**6)
    print(f"PENSTOCK_STORM_SEED={chosen}")
    return chosen


def seconds() -> float:
    """$PENSTOCK_STORM_SECONDS: `make storm` says ten minutes."""
    return float(os.environ.get("PENSTOCK_STORM_SECONDS", "60"))


def plan(seed: int, seconds: float) -> list[Blow]:
    chance = random.Random(seed)
    blows: list[Blow] = []
    for what, rate in RATES.items():
        at = chance.expovariate(rate)
        while at < seconds:
            blows.append(Blow(at, what, chance.random(), _amount(what, chance)))
            at += chance.expovariate(rate)
    minute = min(60.0, seconds)
    for start in range(max(1, int(seconds // 60))):
        blows += [Blow(minute * (start + part), "restart", 0.0, chance.uniform(0.2, 1.0)) for part in RESTARTS]
    return sorted(blows)


def _amount(what: What, chance: random.Random) -> float:
    if what == "freeze":
        return chance.uniform(1.0, 4.0)
    return float(chance.randint(1, 3))
