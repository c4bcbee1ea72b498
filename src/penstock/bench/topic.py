"""A topic is a list of scenarios; a scenario is a function that measures on a rig and yields figures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

from penstock.bench.figures import Figure
from penstock.bench.rig import Rig
from penstock.errors import ConfigurationError

Figures: TypeAlias = Generator[Figure, None, None]
Measure: TypeAlias = Callable[[Rig], Figures]

TOPICS = {
    name: f"penstock.bench.topics.{name}" for name in ("jobs", "powers", "completion", "locks", "messages", "files")
}
"""Name -> module. `benchmarks/own.py` adds those that only developers of Penstock measure."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement. `summary` is the docstring of its function."""

    name: str
    summary: str
    measure: Measure


class Topic:
    """A list of scenarios in the order of their definition. `@TOPIC.scenario` adds a function."""

    def __init__(self) -> None:
        self._scenarios: list[Scenario] = []

    def scenario(self, measure: Measure) -> Measure:
        name = measure.__name__.replace("_", "-")
        self._scenarios.append(Scenario(name, inspect.getdoc(measure) or "", measure))
        return measure

    def chosen(self, only: Sequence[str]) -> list[Scenario]:
        """The named scenarios, or all. Raises ConfigurationError for an unknown name."""
        known = [scenario.name for scenario in self._scenarios]
        if unknown := [name for name in only if name not in known]:
            raise ConfigurationError(f"--only {unknown[0]!r} is not one of: {', '.join(known)}")
        return [scenario for scenario in self._scenarios if not only or scenario.name in only]


def load_topic(name: str) -> Topic:
    """The topic of this name. Raises ConfigurationError for an unknown name."""
    if name not in TOPICS:
        raise ConfigurationError(f"no topic {name!r}: choose one of {', '.join(TOPICS)}")
    topic: Topic = import_module(TOPICS[name]).TOPIC
    return topic
