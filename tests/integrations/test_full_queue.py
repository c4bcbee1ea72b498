"""A full queue becomes an answer of HTTP: the code on the pages of the web frameworks runs here as it is shown."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.errors import QueueFull
from penstock.testing import TemporaryServer

with warnings.catch_warnings():  # Starlette announces another client library for its tests
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def shown(page: str) -> dict[str, Any]:
    """The names of the program in the section of a page."""
    section = (HOWTO / page).read_text("utf-8").partition("## A full queue\n")[2].partition("\n## ")[0]
    (program,) = re.findall(r"^```python[^\n]*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(program, names)
    return names


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        monkeypatch.setenv("PENSTOCK_URL", server.address)
        yield server


def answers(jobs: Penstock, post: Any) -> list[tuple[int, str | None]]:
    """Status and Retry-After of a job that is taken, of one beyond the bound of its tenant, and of one beyond all."""
    found = [post("/events/acme/1")]
    jobs.queue("webhooks").bound(jobs=2, per_tenant=1)
    found += [post("/events/acme/2"), post("/events/bolt/3"), post("/events/core/4")]
    jobs.close()
    return [(one.status_code, one.headers.get("Retry-After")) for one in found]


EXPECTED = [(202, None), (429, "30"), (202, None), (503, "30")]


def test_fastapi_answers_with_429_and_503(server: TemporaryServer):
    names = shown("fastapi.md")
    with TestClient(names["web"]) as client:
        assert answers(names["jobs"], client.post) == EXPECTED


def test_flask_answers_with_429_and_503(server: TemporaryServer):
    names = shown("flask.md")
    assert answers(names["jobs"], names["web"].test_client().post) == EXPECTED


@pytest.mark.parametrize(("tenant", "status"), [("acme", 429), (None, 503)])
def test_django_answers_with_429_and_503(tenant: str | None, status: int):
    from tests.integrations import test_django  # noqa: F401 - sets Django up

    middleware = shown("django.md")["FullQueue"](lambda request: "response")
    assert middleware("request") == "response"
    answer = middleware.process_exception("request", QueueFull("full", tenant=tenant))
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "30")
    assert middleware.process_exception("request", ValueError()) is None
