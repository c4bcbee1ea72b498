"""Metrics for Prometheus, by its own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import LockTimeout, Penstock, WorkerSettings
from penstock.integrations.prometheus import SECONDS, JobMetrics, QueueMetrics, metrics
from penstock.jobs.claims import Registration
from penstock.locks import wait_times
from penstock.testing import TemporaryServer
from penstock.worker.worker import Worker
from tests import command_line
from tests.command_line import Start
from tests.speed import scaled

start = command_line.start  # a fixture


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        yield server


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    before = list(wait_times.observers)
    yield CollectorRegistry()
    wait_times.observers[:] = before


@pytest.fixture
def app(server: TemporaryServer, registry: CollectorRegistry, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    prefix = f"p{abs(hash(request.node.nodeid)) % 10**9}"
    with Penstock(server.address, prefix=prefix, middleware=[JobMetrics(registry)]) as app:
        yield app


def samples(text: str) -> dict[tuple[str, ...], float]:
    """(name, label values…) -> value, as a client of Prometheus reads the text."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(asgi: Any) -> dict[tuple[str, ...], float]:
    return samples(scraped_text(asgi))


def scraped_text(asgi: Any) -> str:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test") as http:
            return await http.get("/")

    answer = asyncio.run(ask())
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


def test_runs_and_queues_are_measured(app: Penstock, registry: CollectorRegistry):
    @app.task(queue="mail")
    def send(fail: bool) -> None:
        if fail:
            raise ValueError

    send.enqueue(False)
    app.enqueue_many(send.using(tenant="acme").call(fail) for fail in (False, True))
    asyncio.run(Worker(app, WorkerSettings(burst=True)).run())
    send.using(tenant="acme", delay=60).enqueue(False)
    app.queue("mail").pause()
    found = scraped(metrics(app, registry=registry))
    task = next(key[3] for key in found if key[0] == "penstock_runs_total")
    assert found["penstock_enqueued_jobs_total", "mail"] == 4
    assert found["penstock_runs_total", "completed", "mail", task] == 2
    assert found["penstock_runs_total", "dead", "mail", task] == 1
    assert found["penstock_run_duration_seconds_count", "mail", task] == 3
    assert found["penstock_start_delay_seconds_count", "mail"] == 3
    assert found["penstock_queue_jobs", "mail", "delayed"] == found["penstock_queue_jobs", "mail", "dead"] == 1
    assert found["penstock_queue_entered_jobs_total", "mail"] == 4
    assert found["penstock_queue_ended_runs_total", "completed", "mail"] == 2
    assert (found["penstock_up",], found["penstock_queue_paused", "mail"]) == (1, 1)
    assert (found["penstock_queue_tenants", "mail"], found["penstock_queue_workers", "mail"]) == (1, 0)
    assert found["penstock_queue_largest_tenant_jobs", "mail", "waiting"] == 1


def test_waiting_jobs_and_busy_workers_are_seen(app: Penstock, registry: CollectorRegistry):
    @app.task(queue="mail")
    def part() -> None: ...

    @app.task(queue="mail")
    def whole() -> None: ...

    whole.using(after=part.enqueue()).enqueue()
    bindings = app.queue("mail").first.bindings
    app._driver.blocking.run(bindings.turn("inc", 1, lease=60, want=1, registration=Registration("host:7", 10)))
    found = scraped(metrics(app, registry=registry))
    assert found["penstock_queue_jobs", "mail", "waiting"] == 1
    assert (found["penstock_queue_workers_busy", "mail"], found["penstock_queue_workers_capacity", "mail"]) == (1, 10)
    assert found["penstock_info", penstock.__version__] == 1
    assert ("penstock_queue_workers_memory_bytes", "mail") not in found, "it reports none"
    app._driver.blocking.run(bindings.heartbeat("inc", 60, 2048))
    found = scraped(metrics(app, registry=registry))
    assert found["penstock_queue_workers_memory_bytes", "mail"] == 2 * 1024 * 1024


def test_the_board_asks_only_for_metrics_labels_and_values_that_are_served(app: Penstock, registry: CollectorRegistry):
    @app.task(queue="mail")
    def send() -> None: ...

    app.queue("mail").bound(jobs=5)
    send.enqueue()
    asyncio.run(Worker(app, WorkerSettings(burst=True)).run())
    bindings = app.queue("mail").first.bindings  # a worker that stays, because only one that lives has memory
    app._driver.blocking.run(bindings.turn("inc", 1, lease=60, want=1, registration=Registration("host:7", 10)))
    app._driver.blocking.run(bindings.heartbeat("inc", 60, 2048))
    with app.lock("a"):
        pass
    labels: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(scraped_text(metrics(app, registry=registry))):
        for sample in family.samples:
            values = labels.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    board = json.loads((Path(__file__).parents[2] / "docs/grafana/penstock.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = [found for query in queries for found in re.findall(r"(penstock_\w+)(?:\{(.*?)\})?", query)]
    assert len(asked) > 20
    for name, selector in asked:
        for label, values in re.findall(r'(\w+)!?=~?"(.*?)"', selector):
            wanted = set() if values == "$queue" else set(values.split("|"))
            assert wanted <= labels[name][label], (name, label)
        assert name in labels


def test_no_bucket_between_5_ms_and_a_minute_is_much_wider_than_the_one_before():
    fine = [second for second in SECONDS if 0.005 <= second <= 60]
    assert (fine[0], fine[-1]) == (0.005, 60)
    assert max(after / before for before, after in pairwise(fine)) <= 2.5


def test_waits_for_locks_and_permits_are_measured(app: Penstock, registry: CollectorRegistry):
    with app.lock("a"), pytest.raises(LockTimeout):
        app.lock("a", wait=0).acquire()
    with app.semaphore("s", limit=1):
        pass
    found = scraped(metrics(app, registry=registry))
    assert found["penstock_lock_wait_seconds_count", "true", "lock"] == 1
    assert found["penstock_lock_wait_seconds_count", "false", "lock"] == 1
    assert found["penstock_lock_wait_seconds_count", "true", "semaphore"] == 1


def test_labels_are_bounded(app: Penstock, registry: CollectorRegistry):
    queue = app.queue("mail")
    for tenant in range(50):
        queue.put(tenant, tenant=f"t{tenant}")
        with app.lock(f"lock-{tenant}"):
            pass
    few = len(scraped(metrics(app, registry=registry)))
    for tenant in range(50, 100):
        queue.put(tenant, tenant=f"t{tenant}")
        with app.lock(f"lock-{tenant}"):
            pass
    assert len(scraped(metrics(app, registry=registry))) == few


def test_a_server_that_does_not_answer_is_reported():
    from penstock.settings import Settings

    settings = Settings(reply_timeout=0.2, give_up_after=0.2, connect_timeout=0.2)
    app = Penstock("valkey://127.0.0.1:1/0", settings=settings)
    registry = CollectorRegistry()
    registry.register(QueueMetrics(app))
    assert registry.get_sample_value("penstock_up") == 0


APP = """
from penstock import Penstock
app = Penstock()

@app.task(queue="mail", name="shop.nothing")
def nothing(): ...
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_worker_serves_the_metrics_of_all_its_processes(
    start: Start, server: TemporaryServer, tmp_path: Any, processes: str
):
    (tmp_path / "shop.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prefix = f"served{processes}"
    with Penstock(server.address, prefix=prefix) as app:
        worker = start(
            "worker",
            "shop.py:app",
            "--processes",
            processes,
            "--metrics-port",
            str(port),
            PENSTOCK_URL=server.address,
            PENSTOCK_PREFIX=prefix,
            PYTHONDONTWRITEBYTECODE="1",
        )
        nothing = app.task(queue="mail", name="shop.nothing")(_nothing)
        for job in [nothing.enqueue() for _ in range(20)]:
            job.result(timeout=scaled(10))
        key = ("penstock_runs_total", "completed", "mail", "shop.nothing")
        found: dict[tuple[str, ...], float] = {}
        deadline = time.monotonic() + scaled(20)
        while found.get(key, 0) < 20 and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
                found = samples(text)
            time.sleep(0.1)
    assert found[key] == 20
    assert found["penstock_queue_workers", "mail"] in range(1, max(1, int(processes)) + 1)
    worker.terminate()
    assert worker.wait(scaled(30)) == 0


def _nothing() -> None: ...


def test_the_command_prints_the_metrics_of_a_queue_without_a_worker(app: Penstock):
    app.queue("mail").put("a")
    where = ["--url", str(app._driver.connector.address), "--prefix", app.settings.prefix]
    words = [sys.executable, "-m", "penstock", "metrics", "--once", *where]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert 'penstock_queue_jobs{queue="mail",state="ready"} 1.0' in done.stdout
