"""The public names as text, one a line, and what a later release would break of them.

The list is made from the living objects, as the reference is: a verb has the parameters that a caller writes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from tests.pages.api import call_of, names_of_fields
from tests.pages.public import everything, members_of


def listed() -> list[str]:
    """`penstock.Queue.claim(n: int = 1, …) -> list[Item]` and so on, sorted."""
    return sorted(line for one in everything() for line in _lines(f"{one.module}.{one.name}", one.thing))


def _lines(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{call_of(thing)}" if callable(thing) else name
        return
    yield f"{name}{call_of(thing)}"
    if issubclass(thing, Enum):
        yield from (f"{name}.{one.name}" for one in thing)
        return
    yield from (f"{name}.{field}" for field in names_of_fields(thing))
    for member_name, member in members_of(thing):
        if isinstance(member, property):
            yield f"{name}.{member_name}"
        else:
            is_method = not isinstance(member, (staticmethod, classmethod))
            yield f"{name}.{member_name}{call_of(getattr(thing, member_name), is_method=is_method)}"


class Parameter(NamedTuple):
    kind: str
    is_required: bool


def breaks(before: list[str], after: list[str]) -> list[str]:
    """What a program that was written for `before` cannot do any more."""
    now = {_name(line): line for line in after}
    faults = []
    for line in before:
        name = _name(line)
        if name not in now:
            faults.append(f"{name} is gone")
            continue
        had, has = _parameters(line), _parameters(now[name])
        if had is None or has is None:
            if had is not has:
                faults.append(f"{name} was {'a value' if had is None else 'called'}")
            continue
        faults += _narrowed(name, had, has)
    return faults


def _narrowed(name: str, had: dict[str, Parameter], has: dict[str, Parameter]) -> Iterator[str]:
    takes_any = any(one.kind == "**" for one in has.values())
    for parameter, old in had.items():
        new = has.get(parameter)
        if new is None and not (takes_any and old.kind == "keyword"):
            yield f"{name} takes no {parameter} any more"
        elif new is not None and (new.kind == "keyword" != old.kind or (new.is_required and not old.is_required)):
            yield f"{name} takes {parameter} in fewer ways"
    for parameter, new in has.items():
        if parameter not in had and new.is_required:
            yield f"{name} requires {parameter}"
    plain = {one for one in had if one in has and had[one].kind == has[one].kind == "any"}
    shared = [[one for one in params if one in plain] for params in (had, has)]
    if shared[0] != shared[1]:
        yield f"{name} has its parameters in another order"


def _name(line: str) -> str:
    return line.partition("(")[0]


def _parameters(line: str) -> dict[str, Parameter] | None:
    """By name, in order; None for what is not called."""
    _, found, rest = line.partition("(")
    if not found:
        return None
    text = f"def f({rest.replace('…', '...')}: ..."
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    given, result = function.args, dict[str, Parameter]()
    plain = [*given.posonlyargs, *given.args]
    for place, one in enumerate(plain):
        kind = "positional" if one in given.posonlyargs else "any"
        result[one.arg] = Parameter(kind, place < len(plain) - len(given.defaults))
    if given.vararg:
        result[given.vararg.arg] = Parameter("*", False)
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        result[one.arg] = Parameter("keyword", default is None)
    if given.kwarg:
        result[given.kwarg.arg] = Parameter("**", False)
    return result
