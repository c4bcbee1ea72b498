"""The kinds of numbers that an aggregate's tables may have. Each kind defines how two values are combined.

Several processes may count batches in any order, so no result depends on that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from penstock.errors import ConfigurationError

Number: TypeAlias = int | Decimal
Ordered: TypeAlias = tuple[int | float, str]

EXACT = 2**53
"""Integers below this are exact as floating-point numbers, which the server's sorted sets have."""

_LARGEST_SUM = 2**62


@dataclass(frozen=True, slots=True)
class Count:
    """Integers that are added up: exact up to 2**53 for each key, and refused above."""

    places: int = 0

    word = "count"

    def fault(self, value: object) -> str | None:
        """The reason why this cannot be a value of such a table, or None."""
        if type(value) is int and abs(value) < EXACT:
            return None
        return "is not a text with its count, an int below 2**53"

    def combine(self, before: Any, value: Any) -> Any:
        """Combine two values of a key. `before`: the value so far, None at first."""
        return value if before is None else before + value

    def pack(self, value: Any) -> object:
        """The value as counts.lua expects it."""
        return value

    def read(self, reply: Any) -> Any:
        """The value in a reply of the server, and for a key without a value, 0 or None."""
        return int(reply or 0)


@dataclass(frozen=True, slots=True)
class Sum(Count):
    """Integers, or decimals with this many `places`, that are added up exactly. All numbers of a table together may
    have a magnitude of 2**62 units of the last place."""

    word = "sum"

    def fault(self, value: object) -> str | None:
        return _number_fault(value, self.places, _LARGEST_SUM)

    def combine(self, before: Any, value: Any) -> Any:
        return _units(value, self.places) + (before or 0)

    def pack(self, value: Any) -> object:
        return str(value)

    def read(self, reply: Any) -> Any:
        return _number(int(reply or 0), self.places)


@dataclass(frozen=True, slots=True)
class Min(Count):
    """The lowest of the integers, or of the decimals with this many `places`."""

    word = "min"

    def fault(self, value: object) -> str | None:
        return _number_fault(value, self.places, EXACT)

    def combine(self, before: Any, value: Any) -> Any:
        units = _units(value, self.places)
        return units if before is None else min(before, units)

    def read(self, reply: Any) -> Any:
        return None if reply is None else _number(int(float(reply)), self.places)


@dataclass(frozen=True, slots=True)
class Max(Min):
    """The highest of the integers, or of the decimals with this many `places`."""

    word = "max"

    def combine(self, before: Any, value: Any) -> Any:
        units = _units(value, self.places)
        return units if before is None else max(before, units)


@dataclass(frozen=True, slots=True)
class Last(Count):
    """The text that comes last in an order that the function states, such as the time in the line: it returns (order,
    text). Of two texts with the same order, the greater one is kept."""

    word = "last"

    def fault(self, value: object) -> str | None:
        match value:
            case (int() | float() as order, text) if abs(order) < EXACT and type(order) is not bool and is_text(text):
                return None
            case _:
                return "is not (order, text), where order is a number below 2**53"

    def combine(self, before: Any, value: Any) -> Any:
        return value if before is None else max(before, value, key=_by_order)

    def read(self, reply: Any) -> Any:
        return None if reply is None else reply.decode()


@dataclass(frozen=True, slots=True)
class First(Last):
    """The text that comes first; otherwise as `Last`."""

    word = "first"

    def combine(self, before: Any, value: Any) -> Any:
        if before is None or value[0] < before[0]:
            return value
        return max(before, value, key=_by_order) if value[0] == before[0] else before


@dataclass(frozen=True, slots=True)
class Uniques(Count):
    """How many different texts a key has, by a HyperLogLog: within 2 %, in at most 12 KiB for each of at most 1,000
    keys. The function returns the texts, as a set or list."""

    word = "uniques"

    def fault(self, value: object) -> str | None:
        if isinstance(value, set | frozenset | list | tuple) and all(map(is_text, value)):
            return None
        return "is not a set of texts"

    def combine(self, before: Any, value: Any) -> Any:
        texts = before or set()
        texts.update(value)
        return texts

    def pack(self, value: Any) -> object:
        return list(value)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A table for each interval of `every` seconds, which the server forgets when nothing was added to it for `keep`
    seconds. The function returns a table for each moment that it has counts for: {1772445903: {"key": 1}}, in seconds
    since 1970; all moments of an interval are added up."""

    every: float
    keep: float
    of: Count = Count()

    def start(self, moment: float) -> int:
        """The beginning of the interval of this moment."""
        return int(moment // self.every * self.every)


Kind: TypeAlias = Count | Sum | Min | Max | First | Last | Uniques
Declared: TypeAlias = Mapping[str, "Kind | TimeWindow"]

_KINDS: dict[str, type[Count]] = {kind.word: kind for kind in (Count, Sum, Min, Max, First, Last, Uniques)}


def is_text(value: object) -> bool:
    """Whether this is a str of whole characters: half of one (a lone surrogate) cannot be sent."""
    return type(value) is str and (value.isascii() or value.encode(errors="ignore").decode() == value)


def _by_order(value: Ordered) -> tuple[int | float, bytes]:
    return value[0], value[1].encode()


def stored_name(kind: Count) -> str:
    """The kind as the server stores it."""
    return f"{kind.word} {kind.places}"


def read_stored(stored: str, reply: Any) -> Any:
    """The value for a reply of the server, given the kind that is stored with the table."""
    word, _, places = stored.partition(" ")
    return _KINDS[word](int(places)).read(reply)


def _number_fault(value: object, places: int, limit: int) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return "is neither an int nor a Decimal"
    if (isinstance(value, Decimal) and not value.is_finite()) or abs(value) * 10**places >= limit:
        return f"is out of range: numbers are below {limit:,} units of the last place"
    if isinstance(value, Decimal) and value != round(value, places):
        return f"has more than the {places} decimal places that were declared"
    return None


def _units(value: Number, places: int) -> int:
    return int(value.scaleb(places)) if isinstance(value, Decimal) else value * 10**places


def _number(units: int, places: int) -> Number:
    return Decimal(units).scaleb(-places) if places else units


def check_kind(name: str, kind: Kind | TimeWindow) -> None:
    """Raise ConfigurationError for a kind that cannot be stored."""
    if isinstance(kind, TimeWindow):
        if not (kind.every >= 1 and kind.keep >= 1) or isinstance(kind.of, Uniques):
            raise ConfigurationError(
                f"table {name!r}: TimeWindow(every, keep) are seconds, 1 or more, and its numbers cannot be Uniques()"
            )
        kind = kind.of
    if not isinstance(kind, Count) or not 0 <= kind.places <= 12:
        raise ConfigurationError(
            f"table {name!r}: declare Count(), Sum(), Min(), Max(), First(), Last(), Uniques() or a TimeWindow() of "
            "one, with 0 to 12 places"
        )
