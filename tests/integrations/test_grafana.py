"""The Grafana board in `docs/grafana`: its schema, and every query of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock
from tests import command_line
from tests.command_line import Start
from tests.servers import Server, eventually, free_port

start = command_line.start  # a fixture

BOARD = json.loads((Path(__file__).parents[2] / "docs/grafana/penstock.json").read_text("utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
PROMETHEUS = os.environ.get("PENSTOCK_PROMETHEUS")
HOWTO = (Path(__file__).parents[2] / "docs/howto/metrics.md").read_text("utf-8")

SHOP = """
import time
from penstock import Penstock

app = Penstock()

@app.task(name="send", queue="mail")
def send(fail: bool) -> None:
    with app.lock("till", lease=10):
        time.sleep(0.01)
    if fail:
        raise ValueError

@app.task(name="order", queue="mail")
def order() -> None:
    send.enqueue(False)
"""


def test_the_board_fits_the_schema_of_grafana():
    """What the schema does not know is lost when its classes read it."""
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    read = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(BOARD)))
    assert differences(BOARD, read) == []


def differences(written: Any, read: Any, path: str = "") -> list[str]:
    """Where something that was written is missing or different. The classes add defaults."""
    match written, read:
        case dict(), dict():
            return [one for key in written for one in differences(written[key], read.get(key), f"{path}.{key}")]
        case list(), list() if len(written) == len(read):
            return [one for n, some in enumerate(written) for one in differences(some, read[n], f"{path}.{n}")]
    return [] if written == read else [path]


def test_a_misspelt_field_is_found():
    misspelt = {**BOARD, "titel": BOARD["title"]}
    assert differences(misspelt, BOARD) == [".titel"]


def test_panels_cover_each_other_nowhere():
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_queries_name_only_metrics_that_the_howto_lists():
    listed = set(re.findall(r"`(penstock_\w+)`", HOWTO))
    named = set(re.findall(r"penstock_\w+", " ".join(QUERIES)))
    assert {re.sub(r"_bucket$", "", name) for name in named} <= listed


@pytest.fixture
def scraped(start: Start, server: Server, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes a worker at work."""
    if not PROMETHEUS:
        pytest.skip("make test-metrics runs this with Debian's prometheus")
    with Penstock(server.address, prefix="board") as app:
        app.queue("unserved").put(1)  # a job that is ready at each scrape
        app.queue("unserved").bound(jobs=5)
    (tmp_path / "shop.py").write_text(SHOP)
    metrics, port = free_port(), free_port()
    words = ("worker", "shop:app", "--metrics-port", str(metrics))
    start(*words, PENSTOCK_URL=server.address, PENSTOCK_PREFIX="board")
    settings = tmp_path / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 2s}\n"
        f"scrape_configs: [{{job_name: penstock, static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    )
    options = ("--config.file", settings, "--storage.tsdb.path", tmp_path / "data")
    with subprocess.Popen(
        [PROMETHEUS, *options, "--web.listen-address", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    ) as program:
        try:
            eventually(lambda: is_ready(f"http://127.0.0.1:{port}"))
            yield f"http://127.0.0.1:{port}/api/v1/query"
        finally:
            program.kill()


def is_ready(address: str) -> bool:
    """Whether Prometheus answers queries. It opens its port earlier."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{address}/-/ready").is_success
    return False


def answer(address: str, query: str) -> list[Any]:
    """The series of a query, with the variables as Grafana sets them."""
    asked = query.replace("$queue", ".+").replace("$__rate_interval", "20s")
    got = httpx.get(address, params={"query": asked}).json()
    assert got["status"] == "success", (query, got)
    return list(got["data"]["result"])


def test_prometheus_answers_every_query_of_the_board(scraped: str, server: Server):
    with Penstock(server.address, prefix="board") as app:

        @app.task(name="order", queue="mail")
        def order() -> None: ...

        @app.task(name="send", queue="mail")
        def send(fail: bool) -> None: ...

        unanswered = dict.fromkeys(QUERIES)

        def all_are_answered() -> bool:
            app.enqueue_many([order.call(), order.call(), send.call(True)])
            for query in list(unanswered):
                if answer(scraped, query):
                    del unanswered[query]
            time.sleep(0.5)
            return not unanswered

        with contextlib.suppress(AssertionError):
            eventually(all_are_answered, within=30)
        assert list(unanswered) == []
