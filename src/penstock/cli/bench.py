"""`penstock bench`: what each verb costs here."""

from __future__ import annotations

import json
import os
from typing import Annotated, Literal

from cyclopts import Parameter

from penstock.bench.run import Order
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
    """Measure what each verb costs, beside the bare round trips of the same client. Two minutes or so.

    Starts a server in a temporary folder, and worker processes. Shows a target where there is one; missing one is
    told and is no failure.

    Parameters
    ----------
    topic
        What to measure: `jobs`, `completion`, `locks` (with semaphores, rate limits and transactions), `messages`
        or `files`.
    quick
        Some seconds: enough to see that it works, too little to compare.
    full
        Minutes: more repetitions, and a backlog of a million jobs.
    only
        Some scenarios, as in `enqueue,latency`.
    pin
        Put server, workers and client on one CPU (`same`), or the server on a CPU of its own (`split`). Compare
        figures of one placement only: it changes all of them.
    aof
        Have the server write its append-only file, synced every second, as Penstock's server for use does.
    url
        Measure on this server, as in valkey://host:6379/0, under keys of the bench's own, deleted at its end. Also
        PENSTOCK_URL.
    as_json
        Print everything as one JSON object.
    """
    if quick and full:
        raise ConfigurationError("--quick or --full, not both")
    order = Order(
        topic, tuple(name.strip() for name in (only or "").split(",") if name.strip()),
        "quick" if quick else "full" if full else "normal", pin or "free", url or os.environ.get("PENSTOCK_URL"), aof,
    )  # fmt: skip
    with measured(order) as run:
        if not as_json:
            show(run)
        else:
            figures = [{"scenario": one.name, **found.as_json()} for one, all_found in run for found in all_found]
            print(json.dumps({"conditions": run.conditions.as_json(), "figures": figures}, indent=2))
    return Exit.OK
