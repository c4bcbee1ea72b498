"""`penstock worker --metrics-port`: serves the metrics of a worker and of its queues for Prometheus."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.app import Penstock
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from penstock.sql import Outbox

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Where the processes of one program keep their metrics. The client of Prometheus reads this when it is imported."""


@contextlib.contextmanager
def folder_of_processes() -> Iterator[None]:
    """A folder for the metrics of the processes that are started during the block, unless the environment names one."""
    if FOLDER in os.environ:
        yield
        return
    import tempfile  # which a worker without metrics does not need

    with tempfile.TemporaryDirectory(prefix="penstock-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER]


def measure_jobs(app: Penstock) -> None:
    """Count and measure the jobs of this process. Raises ConfigurationError without the client of Prometheus."""
    _check_installed()
    from penstock.integrations.prometheus import JobMetrics

    hooks = app.middleware.finished_hooks
    if not any(isinstance(getattr(hook, "__self__", None), JobMetrics) for hook in hooks):
        app.add_middleware(JobMetrics())


def queue_text(app: Penstock) -> str:
    """The metrics of the app's queues, as Prometheus reads them."""
    _check_installed()
    from prometheus_client import CollectorRegistry, generate_latest

    from penstock.integrations.prometheus import QueueMetrics

    registry = CollectorRegistry()
    registry.register(QueueMetrics(app))
    return generate_latest(registry).decode()


@contextlib.contextmanager
def served(app: Penstock, port: int, host: str) -> Iterator[None]:
    """Serve the metrics of this process, or of the processes that it starts, and of the app's queues."""
    _check_installed()
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    from penstock.integrations.prometheus import Joined, QueueMetrics

    state = CollectorRegistry()
    state.register(QueueMetrics(app))
    if FOLDER in os.environ:
        MultiProcessCollector(state)  # type: ignore[no-untyped-call]
    registries = (state,) if FOLDER in os.environ else (REGISTRY, state)
    with _listening(Joined(registries), port, host):
        yield


@contextlib.contextmanager
def served_outbox(outbox: Outbox, port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Serve the metrics of an outbox."""
    _check_installed()
    from prometheus_client import CollectorRegistry

    from penstock.integrations.prometheus import OutboxMetrics

    registry = CollectorRegistry()
    registry.register(OutboxMetrics(outbox))
    with _listening(registry, port, host):
        yield


@contextlib.contextmanager
def _listening(registry: Collector, port: int, host: str) -> Iterator[None]:
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"--metrics-port {port}: cannot listen on {host}: {error}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _check_installed() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigurationError("metrics need prometheus-client: pip install 'penstock[prometheus]'") from None
