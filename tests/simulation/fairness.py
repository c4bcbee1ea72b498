"""Judges whether tenants get fair turns, from nothing but the order in which they are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

LEVELS = range(10)


@dataclass
class Services:
    """How often one tenant was served at one level since it arrived there, and how often the others."""

    services: int = 0
    others: Counter[str] = field(default_factory=Counter)
    exempt: bool = False


class Fairness:
    """Judges the order of services.

    While a tenant waits for its first service at a level, each other tenant is served at most once; before its k-th
    service, at most k + 1 times. So its share is fair at any time. A tenant of n times the weight may be served n times
    as often, and once more.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, Services]] = {level: {} for level in LEVELS}

    def present(self, level: int, tenants: Iterable[str]) -> None:
        """These tenants have entries at the level now. Those that had entries before keep their numbers."""
        known = self._levels[level]
        self._levels[level] = {tenant: known.get(tenant) or Services() for tenant in tenants}

    def weights_changed(self) -> None:
        """Turns that are set keep their virtual times, so the services so far prove nothing."""
        for level in self._levels.values():
            for seen in level.values():
                seen.exempt = True

    def served(self, level: int, tenant: str, waiting: set[str], weights: dict[str, float]) -> None:
        """`tenant` was served while the tenants in `waiting` had jobs that could have been served."""
        present = self._levels[level]
        for other in waiting - {tenant}:
            seen = present.setdefault(other, Services())
            seen.others[tenant] += 1
            limit = self._limit(seen.services, weights.get(tenant, 1.0) / weights.get(other, 1.0))
            assert seen.exempt or seen.others[tenant] <= limit, (
                f"{other!r}, served {seen.services} times at level {level}, was passed over "
                f"{seen.others[tenant]} times for {tenant!r}"
            )
        own = present.setdefault(tenant, Services())
        if own.exempt:
            present[tenant] = Services(services=1)
        own.services += 1

    @staticmethod
    def _limit(services: int, ratio: float) -> int:
        if services == 0 and ratio <= 1:
            return 1
        return 1 + int((services + 1) * ratio + 0.01)
