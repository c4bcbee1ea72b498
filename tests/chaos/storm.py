"""The plan of a storm: a list of failures, made from a seed and nothing else."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "kill worker",
    "kill supervised worker",
    "kill supervisor",
    "freeze",
    "kill producer",
    "lose replies",
    "cut connections",
    "flush scripts",
    "restart server",
]

RATES: dict[Kind, float] = {
    "kill worker": 2.0,
    "kill supervised worker": 0.2,
    "kill supervisor": 0.1,
    "freeze": 0.3,
    "kill producer": 0.15,
    "lose replies": 3.0,
    "cut connections": 0.5,
    "flush scripts": 0.5,
}
"""Failures a second, at random times."""

RESTARTS = (0.35, 0.7)
"""When in each minute the server is killed and started again, as parts of the minute."""


@dataclass(frozen=True, order=True, slots=True)
class Failure:
    """One failure of a storm."""

    at: float
    """Seconds from the start."""
    kind: Kind
    victim: float
    """From 0 to 1: which of the possible processes it hits."""
    amount: float
    """Seconds of a freeze or an outage, or the number of lost replies."""


def seed() -> int:
    """$PENSTOCK_STORM_SEED, or a new one. It is printed, so that a storm that failed can be repeated."""
    given = os.environ.get("PENSTOCK_STORM_SEED")
    chosen = int(given) if given else random.SystemRandom().randrange(10**6)
    print(f"PENSTOCK_STORM_SEED={chosen}")
    return chosen


def seconds(short: float = 20) -> float:
    """$PENSTOCK_STORM_SECONDS, or those of the short form; `make storm` sets ten minutes."""
    return float(os.environ.get("PENSTOCK_STORM_SECONDS", short))


def plan(seed: int, seconds: float) -> list[Failure]:
    """The failures of a storm, in order of time."""
    chance = random.Random(seed)
    failures: list[Failure] = []
    for kind, rate in RATES.items():
        at = chance.expovariate(rate)
        while at < seconds:
            failures.append(Failure(at, kind, chance.random(), _amount(kind, chance)))
            at += chance.expovariate(rate)
    minute = min(60.0, seconds)
    for start in range(max(1, int(seconds // 60))):
        failures += [
            Failure(minute * (start + part), "restart server", 0.0, chance.uniform(0.2, 1.0)) for part in RESTARTS
        ]
    return sorted(failures)


def _amount(kind: Kind, chance: random.Random) -> float:
    if kind == "freeze":
        return chance.uniform(1.0, 4.0)
    return float(chance.randint(1, 3))
