"""Jobs in the application context of a real Flask application."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask, current_app

from penstock import ConfigurationError, Penstock, WorkerSettings
from penstock.integrations.flask import FlaskContext
from penstock.testing import AppUnderTest, TemporaryServer, run_jobs
from tests.integrations import flask_shop


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with pytest.MonkeyPatch.context() as environment, TemporaryServer() as server:
        environment.setenv("PENSTOCK_URL", server.address)
        yield server


@pytest.fixture
def shop(server: TemporaryServer) -> Iterator[AppUnderTest]:
    flask_shop.closed.clear()
    with AppUnderTest(flask_shop.app) as test:
        yield test
    flask_shop.app.close()


def test_a_view_enqueues_and_its_job_runs_in_the_context_of_the_application(shop: AppUnderTest):
    job_id = flask_shop.create_app().test_client().post("/greet/ada").text
    assert shop.drain().completed == 1
    assert shop.app.job(job_id).result(0) == "hello ada"
    assert flask_shop.closed[-1] == "ada"  # the end of the job was the end of its context


def test_async_jobs_that_run_side_by_side_have_contexts_of_their_own(shop: AppUnderTest):
    jobs = [flask_shop.greet_later.enqueue(str(n)) for n in range(20)]
    assert run_jobs(shop.app, settings=WorkerSettings(concurrency=5)).completed == 20
    assert [job.result(0) for job in jobs] == [f"hello {n}" for n in range(20)]
    assert sorted(flask_shop.closed, key=int) == [str(n) for n in range(20)]


def test_an_isolated_job_creates_the_application_in_its_process(shop: AppUnderTest):
    job = flask_shop.greet_alone.enqueue("bo")
    assert shop.drain().completed == 1
    assert job.result(0) == "hello bo"


def test_an_application_can_be_given_itself(server: TemporaryServer):
    flask = Flask("other")
    with Penstock(server.address, prefix="flask", middleware=[FlaskContext(flask)]) as app, AppUnderTest(app) as test:
        job = app.task(name_of_application).enqueue()
        assert test.drain().completed == 1
        assert job.result(0) == "other"


def name_of_application() -> str:
    return current_app.name


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_module:create_app", "No module named 'no_such_module'"),
        ("tests.integrations.flask_shop:nothing", "has no attribute 'nothing'"),
        ("tests.integrations.flask_shop:not_an_application", "leads to a str, not to a Flask application"),
    ],
)
def test_a_source_that_gives_no_application_is_one_clear_error(source: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        _ = FlaskContext(source).flask


def test_a_source_of_another_type_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="give a Flask application"):
        FlaskContext(17)  # type: ignore[arg-type]
