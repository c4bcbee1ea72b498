"""The signature of a verb as a person calls it, for `inspect.signature`, `help()` and editors that run the code.

It is imported only when somebody asks: a program that calls verbs does not pay for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from inspect import Signature, formatannotation, signature
from typing import Any

# What a verb is made of; its caller gets what is inside of the brackets.
EFFECTS = {"RoundTrip", "Operation"}


def result_of(annotation: str) -> str:
    """What a call returns: "Job[R]" of "RoundTrip[Job[R]] | Operation[Job[R]]"."""
    match ast.parse(annotation, mode="eval").body:
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in EFFECTS:
            return ast.unparse(inner)
        case ast.BinOp(left=ast.Subscript(value=ast.Name(id=name)) as left, op=ast.BitOr()) if name in EFFECTS:
            return result_of(ast.unparse(left))
        case other:
            return ast.unparse(other)


class Written(str):
    """An annotation, shown without the quotes that Python shows around a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def unbound(make: Callable[..., Any]) -> Signature:
    """The signature of a verb of a class, with `self`."""
    found = signature(make)
    parameters = [
        one if one.annotation is one.empty else one.replace(annotation=Written(one.annotation))
        for one in found.parameters.values()
    ]
    return found.replace(parameters=parameters, return_annotation=Written(result_of(found.return_annotation)))


def bound(make: Callable[..., Any], owner: object) -> Signature:
    """The signature of a verb of an object: without `self`. A verb of a task has the parameters of its function."""
    found = unbound(make)
    _, *parameters = found.parameters.values()
    if not any(one.annotation == "P.args" for one in parameters):
        return found.replace(parameters=parameters)
    function = signature(owner)  # type: ignore[arg-type]
    returned = function.return_annotation
    shown = "Any" if returned is Signature.empty else formatannotation(returned).strip("'\"")
    return function.replace(return_annotation=Written(re.sub(r"\bR\b", lambda _: shown, found.return_annotation)))
