"""`penstock demo`: the main job, on show."""

from __future__ import annotations

import json
import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingFile, NonNegativeInt, PositiveInt

from penstock.cli.exits import Exit
from penstock.demo.run import Order, run_demo
from penstock.demo.view import show_report, watching


def demo(
    log: ExistingFile | None = None,
    /,
    *,
    jobs: PositiveInt | None = None,
    flood: NonNegativeInt = 20_000,
    seed: int = 0,
    url: str | None = None,
    live: bool = True,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
) -> int:
    """Count the requests of a web access log, one job each, while one client floods the queue.

    Starts a server in a temporary folder and a worker process; some jobs fail and are retried, one always fails, some
    are delayed. Ends with the books: exit code 1 if they do not balance.

    Parameters
    ----------
    log
        A log in the Common or Combined Log Format, plain or gzip. Without it, one is made up.
    jobs
        Read only so many requests of the log, or make up so many; 10,000 unless given.
    flood
        Jobs of one more client, put in before all others.
    seed
        Another number makes up another log, and lets other jobs fail.
    url
        Use this server, as in valkey://host:6379/0, under keys of the demo's own, deleted at its end. Also
        PENSTOCK_URL.
    live
        Whether progress is shown while it runs.
    as_json
        Print the result as one JSON object.
    """
    order = Order(log, jobs, flood, seed, url or os.environ.get("PENSTOCK_URL"))
    with watching(order, live=live) as watch:
        report = run_demo(order, watch)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        show_report(report)
    return Exit.FAILED if report.faults else Exit.OK
