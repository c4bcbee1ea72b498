"""One run of the bench: a server, a placement, and the scenarios one after another, each on a clean rig."""

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
from penstock.bench.rig import Pace, Rig
from penstock.bench.topic import Scenario, load_topic
from penstock.core.ids import mint_id
from penstock.errors import ConfigurationError
from penstock.ops.raw_client import disable_persistence, raw_client
from penstock.settings import Settings
from penstock.terminal.signals import interrupted_by, uninterrupted
from penstock.testing.server import given_or_temporary_server

PREFIX = "penstock-bench"


@dataclass(frozen=True)
class BenchOptions:
    """The options of one run."""

    topic: str = "jobs"
    only: tuple[str, ...] = ()
    """Names of scenarios; empty: all."""
    pace: Pace = "normal"
    pin: Pin = "free"
    url: str | None = None
    """None: an embedded server in a temporary folder."""
    aof: bool = False
    """Whether the embedded server writes its append-only file, as it does in normal use."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of a run, without which its figures mean nothing."""

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
    """The machine's load average of the last minute at the start of the run."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BenchRun:
    """A prepared run. Iterating over it measures."""

    conditions: Conditions
    scenarios: list[Scenario]
    _rig: Rig
    _ends: contextlib.ExitStack

    def __iter__(self) -> Iterator[tuple[Scenario, Iterator[Figure]]]:
        """Yield each scenario with an iterator that measures its figures. Exhaust it before the next scenario."""
        for scenario in self.scenarios:
            # Closed before the keys are deleted, even if the caller does not take the rest of the figures.
            yield scenario, self._ends.enter_context(contextlib.closing(scenario.measure(self._rig)))
            self._rig.clear()


@contextlib.contextmanager
def bench(options: BenchOptions) -> Iterator[BenchRun]:
    """Prepare a run. Afterwards no process, file or key is left, even if a signal interrupts the run.

    Raises PenstockError before anything is measured.
    """
    scenarios = load_topic(options.topic).chosen(options.only)
    if options.url and options.aof:
        raise ConfigurationError("--aof is for the bench's own server; a server at --url keeps its configuration")
    with (
        interrupted_by(signal.SIGTERM, signal.SIGHUP),
        given_or_temporary_server(options.url) as server,
        placed(options.pin, server),
        Penstock(server.address, prefix=f"{PREFIX}-{mint_id()}", settings=Settings(give_up_after=5)) as app,
    ):
        if app._driver.connector.is_cluster:
            raise ConfigurationError("a cluster cannot be measured yet: name one server with --url")
        rig = Rig(app, server.address, options.pace, options.pin)
        rig.tasks.queue.count()
        if server.pid is not None and not options.aof:
            disable_persistence(app)
        try:
            with contextlib.ExitStack() as ends:
                yield BenchRun(_conditions(options, app), scenarios, rig, ends)
        finally:
            with uninterrupted():
                rig.clear()


def _conditions(options: BenchOptions, app: Penstock) -> Conditions:
    connector = app._driver.connector
    name, number = connector.version or ("unknown", ())
    with raw_client(app) as client:
        writes = client.info("persistence").get("aof_enabled")
        library = type(client).__module__.partition(".")[0]
    return Conditions(
        options.topic,
        options.pace,
        options.pin,
        f"{name} {'.'.join(map(str, number))}",
        connector.address,
        "yes" if writes else "no",
        f"{platform.python_implementation()} {platform.python_version()}",
        _installed(library),
        _installed("libvalkey" if library == "valkey" else "hiredis"),
        _installed("uvloop", or_else="asyncio"),
        os.cpu_count() or 1,
        round(os.getloadavg()[0], 2),
    )


def _installed(package: str, or_else: str = "none") -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return or_else
