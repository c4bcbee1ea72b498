"""Rules of contacts and directories: the settings that decide what is stored for a name.

They are fixed when the first name is stored. Each call sends the rules that its program uses. If the stored rules
differ, the script changes nothing and returns the stored ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from penstock.completion.fold import NEWEST_FOLD
from penstock.core.arguments import check_flag
from penstock.core.operations import Operation, RoundTrip
from penstock.errors import ConfigurationError, FormatTooNew, ServerError

T = TypeVar("T")

FORMAT = 2


@dataclass(frozen=True)
class NameRules:
    """Stored as a text such as `2 by=recency accents=1`: the format, then every setting."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    """Settings that are not stored while they have their default."""

    def encode(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        omitted = {field.name for field in fields(self) if field.default == values[field.name]} & self.OPTIONAL
        settings = (f"{name}={_encode_value(value)}" for name, value in values.items() if name not in omitted)
        return " ".join((str(FORMAT), *settings))

    def decode(self, stored: bytes, what: str) -> Self:
        """The rules in a stored text. Raises FormatTooNew if a newer Penstock wrote it. `what`: for the error."""
        number, *rest = stored.decode(errors="replace").split(" ")
        settings = dict(word.split("=", 1) for word in rest if "=" in word)
        if number.isdigit() and int(number) < FORMAT:
            raise ServerError(
                f"{what} is stored in format {number} of an older Penstock, and this one reads {FORMAT}: remove its "
                f"names with the older one, and add them again with this one"
            )
        known = {field.name: field.default for field in fields(self)}
        if number != str(FORMAT) or not known.keys() - self.OPTIONAL <= settings.keys() <= known.keys():
            raise FormatTooNew(f"{what} is stored in format {number}, this Penstock reads {FORMAT}: update it")
        if int(settings.get("fold", "1")) > NEWEST_FOLD:
            raise FormatTooNew(
                f"{what} is stored with fold {settings['fold']}, this Penstock knows {NEWEST_FOLD}: update it"
            )
        values: dict[str, Any] = {
            name: type(getattr(self, name))(_decode_value(text)) for name, text in settings.items()
        }
        return replace(self, **{**known, **values})


def _encode_value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _decode_value(text: str) -> int | str:
    return int(text) if text.isdigit() else text


class OtherRules(Exception):
    """A script was sent rules that differ from the stored ones. It did nothing."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored


def or_other_rules(decode: Callable[[Any], T]) -> Callable[[Any], T | OtherRules]:
    """Wrap `decode`: a reply that is a string holds the stored rules, which differ, and becomes OtherRules."""
    return lambda reply: OtherRules(reply) if isinstance(reply, bytes) else decode(reply)


def checked(call: RoundTrip[T | OtherRules]) -> Operation[T]:
    """Call a script that compares the rules. Raises OtherRules.

    `RoundTrip.read` must not raise it: the driver would take that for a failed effect, and would retry the calls that
    follow for only a few seconds.
    """
    reply = yield call
    if isinstance(reply, OtherRules):
        raise reply
    answer: T = reply
    return answer


R = TypeVar("R", bound=NameRules)


class NameCollection(Generic[R]):
    """Names stored under rules. The program's settings must equal the stored ones; those it leaves open are adopted.

    what    the collection's kind and name, for errors
    chosen  settings by name; None for one that the program leaves open
    """

    def __init__(self, what: str, default: R, chosen: dict[str, Any]) -> None:
        for name, value in chosen.items():
            if value is not None and isinstance(getattr(default, name), bool):
                check_flag(what.partition(" ")[0], name, value)
        self._what = what
        self._chosen = {name: value for name, value in chosen.items() if value is not None}
        self._rules = replace(default, **self._chosen)

    def _with_rules(self, work: Callable[[R], Operation[T]]) -> Operation[T]:
        """Do `work` with the rules assumed so far. If others are stored, adopt them and do it again."""
        for _ in range(3):
            try:
                return (yield from work(self._rules))
            except OtherRules as other:
                self._adopt(other.stored)
        raise ServerError(
            f"{self._what}: its stored rules changed at each attempt; is it deleted and created again and again?"
        )

    def _adopt(self, stored: bytes) -> None:
        rules = self._rules.decode(stored, self._what)
        for name, value in self._chosen.items():
            if (held := getattr(rules, name)) != value:
                raise ConfigurationError(
                    f"{self._what} was created with {name}={held!r}, and this program passes {value!r}: leave out this "
                    f"setting, or use another name, or remove everything from {self._what} first"
                )
        self._rules = rules
