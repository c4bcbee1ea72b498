"""`penstock job output`: what a job emits."""

from __future__ import annotations

import sys
from typing import Any

from penstock.cli.job import value_text
from penstock.cli.where import HERE, Flag, Where
from penstock.ops.wording import many, terminal_safe
from penstock.sealing import Sealed


def output(id: str, /, *, follow: Flag = False, where: Where = HERE) -> None:
    """Print what a job has emitted: texts without quotes, any other value as a line of JSON.

    Remarks on standard error say where another run of the job begins, and where chunks are gone.

    Parameters
    ----------
    id
        The id as it was printed: queue:key.
    follow
        Wait for what the job still emits, until it is done.
    """
    attempt, line_is_open = 0, False
    with where.open(patient=follow) as inspector:
        for part in inspector.jobs.output(id, wait=None if follow else 0.0):
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
