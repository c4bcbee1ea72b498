"""Runs the models: a few histories, always the same, or with PENSTOCK_SIMULATION=<examples> as many random ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Protocol

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("PENSTOCK_SIMULATION", "0"))


class History(Protocol):
    """A random history that its seed decides. It judges after every call, and fails where a promise is broken."""

    def run(self, steps: int) -> None: ...


def run_histories(begin: Callable[[int], History], *, quick: int, steps: int) -> None:
    """Run the histories of `quick` seeds. A failure names its seed; `begin(seed).run(steps)` repeats it."""
    first = random.randrange(1_000_000) if EXAMPLES else 0
    for seed in range(first, first + (EXAMPLES or quick)):
        try:
            begin(seed).run(steps)
        except BaseException as error:
            error.add_note(f"the seed is {seed}")
            raise


def model_settings(*, quick: int, steps: int) -> settings:
    """For a state machine of hypothesis, which prints the calls that lead to a failure.

    Only the long run shrinks a failing history, because that may take minutes.
    """
    return settings(
        max_examples=EXAMPLES or quick,
        stateful_step_count=steps,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
        suppress_health_check=list(HealthCheck),
    )
