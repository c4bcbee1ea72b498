"""`event_stream(job)`: what a job emits, as Server-Sent Events."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import Penstock, current
from penstock.integrations.starlette import app_of, event_stream, lifespan
from penstock.testing import AppUnderTest, TemporaryServer, run_jobs

with warnings.catch_warnings():  # Starlette announces another client library for its tests
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient


@pytest.fixture
def jobs() -> Iterator[Penstock]:
    with TemporaryServer() as server, Penstock(server.address, prefix="events") as app, AppUnderTest(app):
        yield app


def events(answer: Any) -> list[tuple[str, str, Any]]:
    """Type, id and data of each event."""
    found = []
    for text in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
    return found


def test_events_continue_after_the_last_id_and_end_with_the_job(jobs: Penstock):
    @jobs.task(queue="q")
    def answer() -> None:
        for word in ("a\nb", "é", {"n": 1}):
            current().emit(word)

    async def read(request: Request) -> Response:
        return event_stream(app_of(request).job(request.path_params["id"]))

    job = answer.enqueue()
    run_jobs(jobs)
    with TestClient(Starlette(routes=[Route("/{id}", read)], lifespan=lifespan(jobs))) as client:
        answered = client.get(f"/{job.id}")
        assert answered.headers["content-type"].startswith("text/event-stream")
        assert answered.headers["cache-control"] == "no-store"
        *parts, end = events(answered)
        assert [data for _, _, data in parts] == [{"chunk": chunk, "attempt": 1} for chunk in ("a\nb", "é", {"n": 1})]
        assert end == ("end", "", {"status": "completed"})
        for n, (_, last, _) in enumerate(parts):
            again = events(client.get(f"/{job.id}", headers={"Last-Event-ID": last}))
            assert again == [*parts[n + 1 :], end]
        assert client.get("/q:nobody").status_code == 404
        refused = client.get(f"/{job.id}", headers={"Last-Event-ID": "17"})
        assert (refused.status_code, "give a part of this output" in refused.text) == (400, True)


def test_headers_cookies_and_background_tasks_of_the_route_are_kept(jobs: Penstock):
    @jobs.task(queue="q")
    def answer() -> None:
        current().emit("word")

    done: list[str] = []

    async def read(request: Request) -> Response:
        stream = event_stream(jobs.job(request.path_params["id"]))
        stream.headers["X-Shop"] = "tea"
        stream.set_cookie("seen", "yes")
        stream.background = BackgroundTask(done.append, request.path_params["id"])
        return stream

    job = answer.enqueue()
    run_jobs(jobs)
    with TestClient(Starlette(routes=[Route("/{id}", read)], lifespan=lifespan(jobs))) as client:
        answered = client.get(f"/{job.id}")
        assert [data for _, _, data in events(answered)] == [{"chunk": "word", "attempt": 1}, {"status": "completed"}]
        assert (answered.headers["x-shop"], answered.cookies["seen"]) == ("tea", "yes")
        assert client.get("/q:nobody").status_code == 404
    assert done == [job.id, "q:nobody"]


def test_a_request_for_the_headers_does_not_wait_for_the_job(jobs: Penstock):
    @jobs.task(queue="q")
    def answer() -> None: ...

    job = answer.enqueue()  # no worker runs it

    async def read(request: Request) -> Response:
        return event_stream(jobs.job(job.id))

    with TestClient(Starlette(routes=[Route("/", read)], lifespan=lifespan(jobs))) as client:
        assert client.head("/").headers["content-type"].startswith("text/event-stream")


def test_a_keepalive_that_is_no_time_is_refused(jobs: Penstock):
    with pytest.raises(ValueError, match="keepalive"):
        event_stream(jobs.job("q:x"), keepalive=0)
