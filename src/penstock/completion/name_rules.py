"""The settings of a component that decide what it stores: fixed when the first name goes in, known to every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

from penstock.core.operations import Operation, RoundTrip
from penstock.errors import ConfigurationError, FormatTooNew, ServerError

R = TypeVar("R")

FORMAT = 1


@dataclass(frozen=True)
class Shape:
    """Kept as a line such as `1 accents=1 words=0`: the format, then every setting."""

    @property
    def line(self) -> str:
        settings = (f"{field.name}={_word(getattr(self, field.name))}" for field in fields(self))
        return " ".join((str(FORMAT), *settings))

    def read(self, line: bytes, what: str) -> Self:
        """The shape of that line. Raises FormatTooNew for one that a newer Penstock wrote."""
        number, *rest = line.decode(errors="replace").split(" ")
        said = dict(word.split("=", 1) for word in rest if "=" in word)
        if number != str(FORMAT) or said.keys() != {field.name for field in fields(self)}:
            raise FormatTooNew(f"{what} is stored in format {number}, this Penstock reads {FORMAT}: update it")
        settings: dict[str, Any] = {name: type(getattr(self, name))(_value(word)) for name, word in said.items()}
        return replace(self, **settings)


def _word(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _value(word: str) -> int | str:
    return int(word) if word.isdigit() else word


class OtherShape(Exception):
    """A step named a shape that is not the stored one; it did nothing."""

    def __init__(self, line: bytes) -> None:
        self.line = line


def answer(step: RoundTrip[Any]) -> Operation[Any]:
    """The reply of a step; a script that found another shape answers with its line, and nothing else with a string."""
    reply = yield step
    if isinstance(reply, bytes):
        raise OtherShape(reply)
    return reply


S = TypeVar("S", bound=Shape)


class Shaped(Generic[S]):
    """Something with a shape: what the program said of it must fit what is stored, the rest is taken from there."""

    def __init__(self, what: str, shape: S, said: dict[str, Any]) -> None:
        self._what = what
        self._said = {name: value for name, value in said.items() if value is not None}
        self._shape = replace(shape, **self._said)

    def _with_shape(self, work: Callable[[S], Operation[R]]) -> Operation[R]:
        """Do `work`; where another shape is stored, do it again with that one."""
        for _ in range(3):
            try:
                return (yield from work(self._shape))
            except OtherShape as other:
                self._adopt(other.line)
        raise ServerError(f"{self._what} is made anew again and again")

    def _adopt(self, line: bytes) -> None:
        stored = self._shape.read(line, self._what)
        for name, value in self._said.items():
            if (held := getattr(stored, name)) != value:
                raise ConfigurationError(
                    f"{self._what} was made with {name}={held!r}, this program says {value!r}: leave it out, or "
                    "take another name, or remove all that is in it first"
                )
        self._shape = stored
