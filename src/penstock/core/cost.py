"""What a call costs in a rate: a number, a parameter of its function, or a function of its arguments."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from penstock.core.arguments import is_number, shown
from penstock.errors import BadCall, ConfigurationError

MOST_UNITS: Final = 1_000_000_000
"""The most units of a rate, and the highest cost. A record stores them in four bytes."""

Cost: TypeAlias = float | str | Callable[..., float]
"""Units: a number; the name of a parameter in braces; or a function that has some of the parameters."""

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_RULE: Final = f"a number of units from 0 to {MOST_UNITS:,}"


def check_cost(what: str, cost: Any) -> None:
    """Raises ValueError for a cost that no function can have."""
    if isinstance(cost, str):
        if not (found := _FIELD.fullmatch(cost)) or not found[1].isidentifier():
            raise ValueError(
                f"{what}(cost={shown(cost)}): the name of one parameter in braces, as in '{{tokens}}'; to combine "
                "several, give a function of them"
            )
    elif inspect.iscoroutinefunction(cost):
        raise ValueError(
            f"{what}(cost={shown(cost)}): a `def` function, because an enqueue in blocking code calls it too"
        )
    elif not callable(cost) and not is_number(cost, 0, MOST_UNITS):
        raise ValueError(f"{what}(cost={shown(cost)}): {_RULE}, a parameter in braces, or a function")


def whole_units(cost: Any) -> int | None:
    """The cost as whole units, a part of one rounded up; None if it is no cost."""
    return math.ceil(cost) if is_number(cost, 0, MOST_UNITS) else None


class CallCost:
    """The cost of the calls of one function. `what`: the limit, for messages.

    Raises ConfigurationError for a parameter that the function does not have.
    """

    def __init__(self, what: str, cost: Cost, parameters: Sequence[str]) -> None:
        self._what = what
        self._function = cost if callable(cost) else None
        self._fixed = whole_units(cost) if isinstance(cost, int | float) else None
        self._field = cost[1:-1] if isinstance(cost, str) else None
        self._fields = [] if self._function is None else self._parameters_of(self._function)
        for name in self._fields if self._field is None else [self._field]:
            if name not in parameters:
                names = ", ".join(parameters) or "none"
                raise ConfigurationError(
                    f"{what}: its cost needs {name}, which is no parameter of the function; its parameters are: {names}"
                )

    def _parameters_of(self, function: Callable[..., Any]) -> list[str]:
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            found = None
        if found is None or any(one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in found):
            raise ConfigurationError(
                f"{self._what}: the function that gives its cost has parameters of the function by their names, as in "
                "cost=lambda prompt: len(prompt) / 4"
            )
        return [one.name for one in found]

    def of_call(self, value_of: Callable[[str], Any]) -> int:
        """The units that a call costs. Raises BadCall unless that is a number from 0 to a billion."""
        if self._fixed is not None:
            return self._fixed
        if self._function is None:
            assert self._field is not None
            cost = value_of(self._field)
        else:
            cost = self._function(**{name: value_of(name) for name in self._fields})
        units = whole_units(cost)
        if units is None:
            source = f"its parameter {self._field}" if self._function is None else "the function that gives its cost"
            raise BadCall(f"{self._what}: {source} gave {shown(cost)}: a cost is {_RULE}")
        return units
