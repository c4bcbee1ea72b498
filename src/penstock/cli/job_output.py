"""`penstock job output`: what a job emits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli.job import value_text
from penstock.cli.where import HERE, AsJson, Flag, Where
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.constants import KEPT_CHUNKS
from penstock.jobs.output import JobOutput, OutputPart
from penstock.ops.wording import many, terminal_safe
from penstock.sealing import Sealed
from penstock.terminal.tables import show_json_line


def output(
    id: str,
    /,
    *,
    last: Annotated[int | None, Parameter(validator=Number(gte=1, lte=KEPT_CHUNKS))] = None,
    after: str | None = None,
    follow: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Print what a job has emitted: texts without quotes, any other value as a line of JSON.

    Remarks on standard error say where another run of the job begins, and where chunks are missing.

    Parameters
    ----------
    id
        The id as it was printed: queue:key.
    last
        Begin with this many of the latest chunks.
    after
        Begin after the chunk with this id, which --json prints.
    follow
        Wait for what the job still emits, until it is done.
    as_json
        Print each chunk as one JSON object in a line.
    """
    if after is not None and last is not None:
        raise ConfigurationError("--after and --last both say where to begin: give one of them")
    try:
        JobOutput._position("--after", after)
    except BadCall:
        raise ConfigurationError(f"--after {after}: give the id of a chunk, as --json prints it") from None
    with where.open(patient=follow) as inspector:
        parts = inspector.jobs.output(id, after=after, last=last, wait=None if follow else 0.0)
        if as_json:
            for part in parts:
                show_json_line(part)
        else:
            _print(parts)


def _print(parts: Iterable[OutputPart]) -> None:
    attempt, line_is_open = 0, False
    for part in parts:
        remarks = [f"attempt {part.attempt}"] if attempt not in (0, part.attempt) else []
        if part.missed:
            remarks.append(f"{many(part.missed, 'chunk is', 'chunks are')} gone")
        if remarks:
            if line_is_open:
                print(flush=True)
            print(f"({', '.join(remarks)})", file=sys.stderr, flush=True)
        text = _text(part.chunk)
        print(_shown(text), end="", flush=True)
        attempt, line_is_open = part.attempt, not text.endswith("\n")
    if line_is_open:
        print()


def _text(chunk: Any) -> str:
    if isinstance(chunk, str):
        return chunk
    return f"({chunk})\n" if isinstance(chunk, Sealed) else value_text(chunk) + "\n"


def _shown(text: str) -> str:
    """For a terminal, each line without what the terminal would interpret."""
    return "\n".join(map(terminal_safe, text.split("\n"))) if sys.stdout.isatty() else text
