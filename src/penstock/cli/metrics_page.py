"""`penstock metrics`: serves the metrics of the queues without a worker, or prints them."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli.exits import Exit
from penstock.cli.metrics import queue_text, served
from penstock.cli.where import HERE, Flag, Where
from penstock.terminal.tables import show


def metrics(
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 9464,
    host: str = "127.0.0.1",
    once: Flag = False,
    where: Where = HERE,
) -> Exit:
    """Serve the metrics of all queues, also of those without a worker, for Prometheus until Ctrl-C.

    The page has no password, so let only Prometheus reach the port.

    Parameters
    ----------
    port
        The port.
    host
        The address to listen on.
    once
        Print the metrics once instead.
    """
    with where.connect(patient=True) as app:
        if once:
            print(queue_text(app), end="")
            return Exit.OK
        with served(app, port, host):
            show(f"metrics at http://{host}:{port}/metrics   (Ctrl-C ends it)")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return Exit.OK
