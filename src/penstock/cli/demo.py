"""`penstock demo`: see the queue work through a web access log."""

from __future__ import annotations

import json
import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingFile, NonNegativeInt, PositiveInt

from penstock.cli.exits import Exit
from penstock.demo.run import DemoOptions, run_demo
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

    Starts a server in a temporary folder and worker processes. Some jobs fail and are retried, one always fails, some
    are delayed, and one process is killed. Ends with a ledger of all jobs: exit code 1 if it does not balance.

    Parameters
    ----------
    log
        A log in the Common or Combined Log Format, plain or gzip. Without it, the demo generates one.
    jobs
        Number of requests to read from the log, or to generate (10,000 by default).
    flood
        Jobs of one more client, enqueued before all others.
    seed
        A different seed generates a different log, and makes different jobs fail.
    url
        Use this server, for example valkey://host:6379/0. The demo's keys have a prefix of their own and are deleted at
        its end. Also set by PENSTOCK_URL.
    live
        Show progress while the demo runs.
    as_json
        Print the result as one JSON object.
    """
    options = DemoOptions(log, jobs, flood, seed, url or os.environ.get("PENSTOCK_URL"))
    with watching(options, live=live) as watch:
        report = run_demo(options, watch)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        show_report(report)
    return Exit.FAILED if report.faults else Exit.OK
