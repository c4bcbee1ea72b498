"""A template that makes a key from the arguments of a call: `"{account}:{region}"`.

Two calls have the same key only if they have the same values. So in a template with several fields, a value has the
characters that separate them in the encoding of URLs: with `{a}:{b}`, the values `x:y` and `z` make `x%3Ay:z`. And two
calls with equal values have the same key: a moment is written in UTC, and a decimal number without zeros at its end.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import quote

from penstock import codec
from penstock.core.arguments import shown
from penstock.errors import BadCall, ConfigurationError
from penstock.models import fields_of

LONGEST_KEY: Final = 200
"""Bytes of UTF-8."""

TENANT: Final = "tenant"
"""The field for the tenant of the job, unless the task has a parameter of this name."""


def escapes(characters: str) -> dict[int, str]:
    """For `str.translate`: these characters, and `%` itself, as in a URL."""
    return {ord(one): quote(one, safe="") for one in {*characters, "%"}}


class KeyTemplate:
    """A checked template. Its fields are plain names of parameters of the task, or `tenant`.

    Raises ConfigurationError for any other field. `what`: the option that has the template, for the message.
    """

    def __init__(self, what: str, text: str, parameters: Sequence[str], mixed: Collection[str] = ()) -> None:
        """`mixed`: parameters that take text and other values, and whose text is in quotes (`Signature.mixed`)."""
        self._what = what
        self._mixed = mixed
        self.text = text
        if not isinstance(text, str):
            raise ConfigurationError(f'{what}: key={shown(text)}: a text, such as "{{account}}"')
        try:
            parsed = [*string.Formatter().parse(text)]
        except ValueError as error:
            raise ConfigurationError(f"{what}: key={text!r}: {error}; write a brace of the key itself twice") from None
        self._sections = [(before, field) for before, field, _, _ in parsed]
        for _, field, spec, conversion in parsed:
            if field is not None and (spec or conversion or not field.isidentifier()):
                raise ConfigurationError(
                    f"{what}: key={text!r}: write the name of a parameter between the braces, and nothing else"
                )
            if field is not None and field not in (*parameters, TENANT):
                names = ", ".join(parameters) or "none"
                raise ConfigurationError(
                    f"{what}: key={text!r}: the task has no parameter {field}; its parameters are: {names}"
                )
        self.fields = {field for _, field in self._sections if field is not None}
        self.uses_tenant = TENANT in self.fields and TENANT not in parameters
        self._escapes = self._escapes_of(self._separators())

    def _separators(self) -> list[str]:
        """The texts between the fields, in order."""
        separators, text = list[str](), ""
        for before, field in self._sections:
            text += before
            if field is not None:
                separators.append(text)
                text = ""
        return separators[1:]

    def _escapes_of(self, separators: list[str]) -> dict[int, str]:
        """Character -> its encoded form, for those that could make the keys of different values equal."""
        if "" in separators:
            raise ConfigurationError(
                f"{self._what}: key={self.text!r}: write something between the fields, such as a colon: otherwise "
                "different values could make the same key"
            )
        return escapes("".join(separators)) if separators else {}

    def fill(self, value_of: Callable[[str], Any], tenant: str) -> str:
        """The key of one call. Raises BadCall if it is too long. `value_of`: the argument of this name."""
        key = "".join(
            before + ("" if field is None else self._text(field, value_of, tenant).translate(self._escapes))
            for before, field in self._sections
        )
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise BadCall(f"{self._what}: the key {key!r} has half a character (a lone surrogate)") from None
        if size > LONGEST_KEY:
            raise BadCall(
                f"{self._what}: the key {key[:40]!r}… has {size} bytes: at most {LONGEST_KEY}; use a digest of it"
            )
        return key

    def _text(self, field: str, value_of: Callable[[str], Any], tenant: str) -> str:
        """Equal values have equal texts in every process: the order of a set, and of a dict, is not part of them."""
        value = self._value(field, value_of, tenant)
        if (
            isinstance(value, list | tuple | dict | set | frozenset)
            or fields_of(type(value)) is not None
            or field in self._mixed
        ):
            return codec.canonical(value, what=self._what).decode()
        try:
            return str(codec.in_one_form(value))
        except OverflowError as error:  # a moment of the first or last day that there is, which UTC does not have
            raise BadCall(f"{self._what}: {field}={shown(value)}: {error}") from None

    def _value(self, field: str, value_of: Callable[[str], Any], tenant: str) -> Any:
        return tenant if field == TENANT and self.uses_tenant else value_of(field)
