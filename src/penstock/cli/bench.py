"""`penstock bench`: measure the cost of each operation."""

from __future__ import annotations

import json
import os
from typing import Annotated, Literal

from cyclopts import Parameter

from penstock.bench.run import BenchOptions
from penstock.bench.run import bench as measured
from penstock.bench.view import show
from penstock.cli.exits import Exit
from penstock.errors import ConfigurationError

Flag = Parameter(negative=(), show_default=False)


def bench(
    topic: str = "jobs",
    /,
    *,
    quick: Annotated[bool, Flag] = False,
    full: Annotated[bool, Flag] = False,
    only: str | None = None,
    pin: Literal["same", "split"] | None = None,
    aof: Annotated[bool, Flag] = False,
    url: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
) -> int:
    """Measure the cost of each operation, compared with bare round trips. Takes about two minutes.

    Starts a server in a temporary folder, and worker processes. A missed target is shown, but is not a failure.

    Parameters
    ----------
    topic
        What to measure: `jobs`, `powers` (limits, unique keys, flows, children, output and seals, each compared with
        plain jobs), `completion`, `locks` (with semaphores and rate limits), `messages` or `files`.
    quick
        A few seconds: enough to see that it works, too little to compare.
    full
        Some minutes: more repetitions, and a backlog of a million jobs.
    only
        Measure only these scenarios, for example `enqueue,latency`.
    pin
        Put server, workers and client on one CPU (`same`), or the server on a CPU of its own (`split`). Compare only
        figures of the same placement, because the placement changes all of them.
    aof
        Have the server write its append-only file, synced every second, as the embedded server does in normal use.
    url
        Use this server, for example valkey://host:6379/0. The bench's keys have a prefix of their own and are
        deleted at its end. Also set by PENSTOCK_URL.
    as_json
        Print everything as one JSON object.
    """
    if quick and full:
        raise ConfigurationError("--quick or --full, not both")
    options = BenchOptions(
        topic,
        tuple(name.strip() for name in (only or "").split(",") if name.strip()),
        "quick" if quick else "full" if full else "normal",
        pin or "free",
        url or os.environ.get("PENSTOCK_URL"),
        aof,
    )
    with measured(options) as run:
        if not as_json:
            show(run)
        else:
            figures = [{"scenario": one.name, **found.as_json()} for one, all_found in run for found in all_found]
            print(json.dumps({"conditions": run.conditions.as_json(), "figures": figures}, indent=2))
    return Exit.OK
