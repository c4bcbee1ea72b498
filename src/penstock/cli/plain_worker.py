"""`penstock worker` without cyclopts: the same options, read by argparse from the same function.

cyclopts costs a process 70 ms of CPU and 4 MB, and a worker has a supervisor and at least one process. So cyclopts is
imported only for what argparse does not accept, because its help and its errors are better. Where the extra `cli` is
missing, argparse reports errors too.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from penstock.cli.worker import worker


class Refused(Exception):
    """The words are not a call of the command, or ask for help."""


class _QuietParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def run_worker(words: Sequence[str], *, quiet: bool = False) -> int:
    """Run `penstock worker` with these arguments. Returns its exit code.

    Wrong ones end the program with code 2. With `quiet` they, and `--help`, raise Refused.
    """
    parser = parser_of(worker, "penstock worker", _QuietParser if quiet else argparse.ArgumentParser)
    chosen = vars(parser.parse_args(words))
    app = chosen.pop("app")
    return worker(app, **chosen)


def parser_of(
    function: Callable[..., Any], name: str, kind_of_parser: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> argparse.ArgumentParser:
    """A parser for the parameters of a command, with the texts of its docstring."""
    summary, _, sections = inspect.getdoc(function).partition("Parameters\n----------\n")  # type: ignore[union-attr]
    found = re.finditer(r"^(\w+)\n((?:    .+\n?)+)", sections, re.MULTILINE)
    texts = {one[1]: " ".join(one[2].split()) for one in found}
    parser = kind_of_parser(
        name, description=summary.strip(), allow_abbrev=False, add_help=kind_of_parser is argparse.ArgumentParser
    )
    for key, parameter in inspect.signature(function, eval_str=True).parameters.items():
        text = texts[key].replace("%", "%%")
        kind, names = parameter.annotation, (f"--{key.replace('_', '-')}",)
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            names = next((tuple(note.name) for note in notes if note.name), names)
        if get_origin(kind) in (UnionType, Union):
            (kind,) = [one for one in get_args(kind) if one is not type(None)]
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parser.add_argument(key, help=text)
        elif kind is bool:
            parser.add_argument(*names, dest=key, action="store_true", help=text)
        elif get_origin(kind) is Literal:
            parser.add_argument(*names, dest=key, choices=get_args(kind), default=parameter.default, help=text)
        else:
            parser.add_argument(*names, dest=key, type=kind, default=parameter.default, help=text)
    return parser
