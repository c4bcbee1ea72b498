"""A topic is a list of scenarios; a scenario is a function that measures on a stand and yields figures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

from penstock.bench.figures import Figure
from penstock.bench.stand import Stand
from penstock.errors import ConfigurationError

Figures: TypeAlias = Generator[Figure, None, None]
Measure: TypeAlias = Callable[[Stand], Figures]

TOPICS = ("jobs", "completion", "locks", "messages", "files")
"""Modules of `topics/`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`summary` is the function's docstring."""

    name: str
    summary: str
    measure: Measure


class Topic:
    """`@TOPIC.scenario` adds a function to it; they run in the order in which they are written."""

    def __init__(self) -> None:
        self._scenarios: list[Scenario] = []

    def scenario(self, measure: Measure) -> Measure:
        name = measure.__name__.replace("_", "-")
        self._scenarios.append(Scenario(name, inspect.getdoc(measure) or "", measure))
        return measure

    def chosen(self, only: Sequence[str]) -> list[Scenario]:
        """Those named, or all. Raises ConfigurationError for a name that is none of them."""
        known = [scenario.name for scenario in self._scenarios]
        if unknown := [name for name in only if name not in known]:
            raise ConfigurationError(f"--only {unknown[0]!r} is none of: {', '.join(known)}")
        return [scenario for scenario in self._scenarios if not only or scenario.name in only]


def load_topic(name: str) -> Topic:
    """Raises ConfigurationError for a name that is none."""
    if name not in TOPICS:
        raise ConfigurationError(f"no topic {name!r}: there is {', '.join(TOPICS)}")
    topic: Topic = import_module(f"penstock.bench.topics.{name}").TOPIC
    return topic
