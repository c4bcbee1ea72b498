"""FastAPI and Starlette applications that enqueue, answer with results, and run a worker."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock import ConfigurationError, Penstock, Status, WorkerSettings
from penstock.integrations.fastapi import PenstockDep, app_of, lifespan
from penstock.testing import AppUnderTest, TemporaryServer

with warnings.catch_warnings():  # Starlette announces another client library for its tests
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        yield server


@pytest.fixture
def jobs(server: TemporaryServer) -> Iterator[Penstock]:
    with Penstock(server.address, prefix="fastapi") as app, AppUnderTest(app):
        yield app


def test_a_path_operation_gets_the_app_and_enqueues(jobs: Penstock):
    @jobs.task
    async def double(n: int) -> int:
        return 2 * n

    web = FastAPI(lifespan=lifespan(jobs))

    @web.post("/double/{n}")
    async def enqueue(n: int) -> str:
        return (await double.enqueue.aio(n)).id

    @web.get("/jobs/{job_id}")
    def status(job_id: str, app: PenstockDep) -> Status:  # FastAPI calls a `def` in a thread
        return app.job(job_id).status()

    with TestClient(web) as client:
        job_id = client.post("/double/21").json()
        assert client.get(f"/jobs/{job_id}").json() == "ready"
    assert jobs.job(job_id).status() is Status.READY  # after the end of the lifespan, the app connects again


def test_a_worker_runs_inside_the_web_process_and_finishes_its_jobs(jobs: Penstock):
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    web = FastAPI(lifespan=lifespan(jobs, worker=WorkerSettings(concurrency=2)))

    @web.get("/double/{n}")
    async def run(n: int) -> int:
        return await (await double.enqueue.aio(n)).result.aio(timeout=30)

    with TestClient(web) as client:
        assert client.get("/double/21").json() == 42
    assert jobs.queue("default").workers() == []


def test_a_lifespan_of_the_users_own_is_entered_inside_and_its_state_is_kept(jobs: Penstock):
    events: list[str] = []

    @asynccontextmanager
    async def own(web: Starlette) -> AsyncIterator[dict[str, str]]:
        events.append(f"with {type(web).__name__}")
        yield {"greeting": "hello"}
        await jobs.queue("default").count.aio()  # the app is still open
        events.append("ended")

    async def greet(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.state.greeting} {app_of(request).settings.prefix}")

    with TestClient(Starlette(routes=[Route("/", greet)], lifespan=lifespan(jobs, inner=own))) as client:
        assert client.get("/").text == "hello fastapi"
    assert events == ["with Starlette", "ended"]


def test_without_the_lifespan_the_error_names_the_fix():
    web = FastAPI()

    @web.get("/")
    async def look(app: PenstockDep) -> None: ...

    with TestClient(web) as client, pytest.raises(ConfigurationError, match=r"lifespan=lifespan\(app\)"):
        client.get("/")


def test_a_worker_that_fails_is_reported(caplog: pytest.LogCaptureFixture):
    nowhere = Penstock("unix:///nowhere")
    nowhere.task(print_nothing)
    web = FastAPI(lifespan=lifespan(nowhere, worker=WorkerSettings()))
    with caplog.at_level(logging.CRITICAL), pytest.raises(Exception, match="nowhere"), TestClient(web):
        pass
    assert "no job runs here" in caplog.text


async def print_nothing() -> None: ...
