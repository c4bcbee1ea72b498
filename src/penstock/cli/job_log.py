"""`penstock job log`: what a job logs."""

from __future__ import annotations

import sys
import time
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli.where import HERE, AsJson, Flag, Where
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.constants import LOG_BYTES
from penstock.jobs.log_lines import JobLines
from penstock.ops.wording import terminal_safe
from penstock.terminal.tables import show_json_line


def log(
    id: str,
    /,
    *,
    last: Annotated[int | None, Parameter(validator=Number(gte=1, lte=LOG_BYTES))] = None,
    after: str | None = None,
    follow: Flag = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """Print what a job has logged with `current().log`, the oldest line first: the last 16 KiB are kept.

    Parameters
    ----------
    id
        The id as it was printed: queue:key.
    last
        Begin with this many of the latest lines.
    after
        Begin after the line with this id, which --json prints.
    follow
        Wait for what the job still logs, until it is done.
    as_json
        Print each line as one JSON object.
    """
    if after is not None and last is not None:
        raise ConfigurationError("--after and --last both say where to begin: give one of them")
    try:
        JobLines._position("--after", after)
    except BadCall:
        raise ConfigurationError(f"--after {after}: give the id of a line, as --json prints it") from None
    with where.open(patient=follow) as inspector:
        for line in inspector.jobs.log(id, after=after, last=last, wait=None if follow else 0.0):
            if as_json:
                show_json_line(line)
                continue
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
            text = terminal_safe(line.text) if sys.stdout.isatty() else line.text
            print(f"{at}  {text}", flush=True)
