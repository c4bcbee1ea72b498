"""One run of the bench: a server, a placement, and the scenarios one after the other, each on a clean stand."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from penstock.app import Penstock
from penstock.bench.figures import Figure
from penstock.bench.placement import Pin, placed
from penstock.bench.stand import Pace, Stand
from penstock.bench.topic import Scenario, load_topic
from penstock.core.ids import mint_id
from penstock.errors import ConfigurationError
from penstock.ops.raw_client import disable_persistence, raw_client
from penstock.settings import Settings
from penstock.terminal.signals import interrupted_by, undisturbed
from penstock.testing.server import given_or_temporary_server

PREFIX = "penstock-bench"


@dataclass(frozen=True)
class Order:
    """What the bench is asked to measure."""

    topic: str = "jobs"
    only: tuple[str, ...] = ()
    """Names of scenarios; none: all."""
    pace: Pace = "normal"
    pin: Pin = "free"
    url: str | None = None
    """None: an embedded server in a temporary folder."""
    aof: bool = False
    """Whether that server writes its append-only file, as one for use does."""


@dataclass(frozen=True)
class Conditions:
    """Without these a figure says nothing."""

    topic: str
    pace: str
    pin: str
    server: str
    at: str
    appendonly: str
    python: str
    client: str
    parser: str
    worker_loop: str
    cpus: int
    load: float
    """The machine's load average of the last minute, when the run began."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """Iterate over it to measure."""

    conditions: Conditions
    scenarios: list[Scenario]
    _stand: Stand
    _ends: contextlib.ExitStack

    def __iter__(self) -> Iterator[tuple[Scenario, Iterator[Figure]]]:
        """Each scenario with its figures, which come as they are measured; take them before the next one."""
        for scenario in self.scenarios:
            # Closed before the keys are cleared away, even if nobody takes the rest of the figures.
            yield scenario, self._ends.enter_context(contextlib.closing(scenario.measure(self._stand)))
            self._stand.clear()


@contextlib.contextmanager
def bench(order: Order) -> Iterator[Run]:
    """Set everything up; afterwards no process, no file and no key is left, also when a signal interrupts it.

    Raises PenstockError; nothing is measured then.
    """
    scenarios = load_topic(order.topic).chosen(order.only)
    if order.url and order.aof:
        raise ConfigurationError("--aof is for the bench's own server; the one at that address stays as it is set up")
    with (
        interrupted_by(signal.SIGTERM, signal.SIGHUP),
        given_or_temporary_server(order.url) as server,
        placed(order.pin, server),
        Penstock(server.address, prefix=f"{PREFIX}-{mint_id()}", settings=Settings(give_up_after=5)) as app,
    ):
        if app._driver.connector.is_cluster:
            raise ConfigurationError("a cluster cannot be measured yet: name one server with --url")
        stand = Stand(app, server.address, order.pace, order.pin)
        stand.tasks.queue.count()
        if server.pid is not None and not order.aof:
            disable_persistence(app)
        try:
            with contextlib.ExitStack() as ends:
                yield Run(_conditions(order, app), scenarios, stand, ends)
        finally:
            with undisturbed():
                stand.clear()


def _conditions(order: Order, app: Penstock) -> Conditions:
    connector = app._driver.connector
    name, number = connector.version or ("unknown", ())
    with raw_client(app) as client:
        writes = client.info("persistence").get("aof_enabled")
        library = type(client).__module__.partition(".")[0]
    return Conditions(
        order.topic, order.pace, order.pin, f"{name} {'.'.join(map(str, number))}", connector.address,
        "yes" if writes else "no", f"{platform.python_implementation()} {platform.python_version()}",
        _installed(library), _installed("libvalkey" if library == "valkey" else "hiredis"),
        _installed("uvloop", or_else="asyncio"), os.cpu_count() or 1, round(os.getloadavg()[0], 2),
    )  # fmt: skip


def _installed(package: str, or_else: str = "none") -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return or_else
