"""The backend of Django's tasks, under the real Django, with its transactions, signals and results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django_site.settings"

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import TestCase

django.setup()

from penstock import BadCall, ConfigurationError, Penstock
from penstock.integrations.django import PenstockBackend, _path_in, _priority, app_of
from penstock.testing import AppUnderTest, TemporaryServer
from tests.integrations.django_site import tasks
from tests.speed import scaled

# Django does not close a connection to a database in memory, and Python 3.13 reports it when a thread of a worker ends.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")

names = PenstockBackend._django
Status = names.TaskResultStatus
# What it returns is a context manager or a decorator, and Django has no types that say which.
atomic = cast("Callable[[], AbstractContextManager[None]]", transaction.atomic)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[TemporaryServer]:
    with pytest.MonkeyPatch.context() as environment, TemporaryServer() as server:
        environment.setenv("PENSTOCK_URL", server.address)
        yield server


@pytest.fixture(scope="module", autouse=True)
def orders() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("create table orders (id integer)")
    yield
    connection.close()


@pytest.fixture
def jobs() -> Iterator[AppUnderTest]:
    with AppUnderTest(app_of()) as test:
        yield test
    test.app.close()


def test_a_task_runs_in_a_worker_and_its_result_has_everything(jobs: AppUnderTest):
    result = tasks.greet.enqueue("ada", greeting="hi")
    assert (result.status, result.attempts) == (Status.READY, 0)
    (call,) = jobs.enqueued()
    assert (call.task, call.priority) == ("tests.integrations.django_site.tasks.greet", 2)
    assert result.id == call.job
    assert jobs.drain().completed == 1
    result.refresh()
    assert result.status == Status.SUCCESSFUL
    assert result.return_value == {"text": "hi ada", "letters": [1, 2]}
    again = tasks.greet.get_result(result.id)
    assert (again.task, again.args, again.kwargs) == (tasks.greet, ["ada"], {"greeting": "hi"})
    assert again.attempts == 1
    assert again.started_at <= again.finished_at
    with pytest.raises(Exception, match="does not match"):
        tasks.fail.get_result(result.id)


async def test_coroutines_and_the_asyncio_verbs(jobs: AppUnderTest):
    result = await tasks.greet_later.aenqueue("bo")
    assert (await jobs.drain.aio()).completed == 1
    await result.arefresh()
    assert result.return_value == "hello bo"


def test_a_task_gets_its_context(jobs: AppUnderTest):
    result = tasks.attempts.enqueue(7)
    jobs.drain()
    result.refresh()
    assert result.return_value == 7


def test_a_failure_has_its_exception_and_its_traceback(jobs: AppUnderTest):
    result = tasks.fail.enqueue("lost")
    assert jobs.drain(dead=True).failed == 1
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (Status.FAILED, 1, True)
    (error,) = result.errors
    assert error.exception_class is LookupError
    assert "raise LookupError(text)" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_backend_with_retries_has_failed_after_the_last_one():
    seen: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        seen.append((task_result.status, task_result.attempts))

    names.task_started.connect(note)
    names.task_finished.connect(note)
    app = app_of("retrying")
    try:
        with AppUnderTest(app) as jobs:
            result = tasks.fail_twice.enqueue()
            jobs.drain()
            result.refresh()
            assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
            jobs.drain(delayed=True, dead=True)
    finally:
        names.task_started.disconnect(note)
        names.task_finished.disconnect(note)
        app.close()
    assert seen == [(Status.RUNNING, 1), (Status.RUNNING, 2), (Status.FAILED, 2)]


def test_a_call_is_enqueued_when_the_transaction_commits(jobs: AppUnderTest):
    enqueued: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.id)

    names.task_enqueued.connect(note)
    try:
        with atomic():
            with connection.cursor() as cursor:
                cursor.execute("insert into orders values (1)")
            result = tasks.rows.enqueue()
            assert (jobs.enqueued(), enqueued, result.enqueued_at) == ([], [], None)
        assert [call.job for call in jobs.enqueued()] == enqueued == [result.id]
        assert result.enqueued_at is not None
    finally:
        names.task_enqueued.disconnect(note)
    jobs.drain()
    result.refresh()
    assert result.return_value == 1


def test_a_transaction_that_is_rolled_back_enqueues_nothing(jobs: AppUnderTest):
    with atomic():
        tasks.rows.enqueue()
        transaction.set_rollback(True)
    assert jobs.enqueued() == []


def test_a_test_case_that_never_commits_runs_what_waits_for_the_commit(jobs: AppUnderTest):
    with atomic():
        with TestCase.captureOnCommitCallbacks(execute=True):
            tasks.greet.enqueue("ada")
            assert jobs.enqueued() == []
        assert [call.task for call in jobs.enqueued()] == ["tests.integrations.django_site.tasks.greet"]
        transaction.set_rollback(True)
    assert jobs.drain().completed == 1


def test_a_scheduled_task_enqueues_tasks_of_django(jobs: AppUnderTest):
    definition = jobs.app.registry.find(tasks.remind.name)
    assert definition.timing is not None
    tasks.remind.enqueue()
    assert jobs.drain().completed == 2


def test_without_on_commit_a_call_is_enqueued_inside_the_transaction():
    with AppUnderTest(app_of("retrying")) as jobs, atomic():
        tasks.fail_twice.enqueue()
        assert len(jobs.enqueued()) == 1
    jobs.app.close()


def test_options_of_using_apply(jobs: AppUnderTest):
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.greet.using(queue_name="reports", priority=-100, run_after=later).enqueue("cy")
    (call,) = jobs.enqueued()
    assert (call.job.partition(":")[0], call.priority, round(call.due or 0)) == ("reports", 9, round(later.timestamp()))
    # The drain moves the clock by an hour, and so past a tick of the site's schedule at some hours of the day.
    jobs.drain(delayed=True)
    done = tasks.greet.get_result(result.id)
    assert (done.status, done.task.queue_name) == (Status.SUCCESSFUL, "reports")


@pytest.mark.parametrize(("django_priority", "priority"), [(-100, 9), (-1, 6), (0, 5), (1, 4), (50, 2), (100, 0)])
def test_priorities_become_levels(django_priority: int, priority: int):
    assert _priority(django_priority) == priority


def test_arguments_that_do_not_fit_are_refused_where_the_task_is_enqueued(jobs: AppUnderTest):
    with pytest.raises(BadCall, match=r"tasks.greet\(\): missing a required argument: 'name'"):
        tasks.greet.enqueue()
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.greet.enqueue(object())
    assert jobs.enqueued() == []


@pytest.mark.parametrize("result_id", ["nonsense", "mail:nothing"])
def test_an_unknown_result_does_not_exist(result_id: str):
    with pytest.raises(names.TaskResultDoesNotExist):
        tasks.greet.get_result(result_id)


def test_a_cancelled_job_has_no_result(jobs: AppUnderTest):
    result = tasks.greet.enqueue("di")
    assert jobs.app.job(result.id).cancel()
    with pytest.raises(names.TaskResultDoesNotExist, match="its job is cancelled"):
        result.refresh()


def test_settings_that_cannot_work_are_one_clear_error():
    with pytest.raises(ImproperlyConfigured, match="has RETRIES; Penstock knows DATABASE, ON_COMMIT"):
        PenstockBackend("default", {"OPTIONS": {"RETRIES": 3}})
    with pytest.raises(ConfigurationError, match="set BACKEND to penstock"):
        app_of("other")
    with pytest.raises(ConfigurationError, match="no TASKS"):
        app_of("nothing")


def test_a_worker_finds_the_app_and_its_tasks():
    from penstock.integrations import django_worker

    assert isinstance(django_worker.app, Penstock)
    assert django_worker.app.registry.get("tests.integrations.django_site.tasks.greet") is not None
    assert django_worker.app.registry.queues() == ("default", "mail", "reports")
    assert django_worker.retrying is app_of("retrying")
    with pytest.raises(AttributeError, match="set BACKEND"):
        _ = django_worker.other


def test_a_worker_shows_each_queue_that_it_serves_and_what_to_do_without_a_task(tmp_path: Path):
    """A call may choose any queue of the settings, so a worker serves those without a task as well."""
    backend = {"BACKEND": "penstock.integrations.django.PenstockBackend", "QUEUES": ["default", "mail"]}
    (tmp_path / "bare.py").write_text(f"SECRET_KEY = 'x'\nTASKS = {{'default': {backend!r}}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "worker", "penstock.integrations.django_worker:app", "--burst"],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "bare"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0
    assert re.findall(r"^(?:  queues)? +(\w+) +-$", done.stderr, re.MULTILINE) == ["default", "mail"]
    assert "INSTALLED_APPS" in done.stderr


def test_the_class_of_an_exception_is_read_from_its_traceback():
    text = "Traceback (most recent call last):\n  File\npkg.mod.Refused: no\nmore: text\n"
    assert _path_in(f"{text}\nDuring handling of …\n\n{text.replace('pkg.mod.', '')}") == "builtins.Refused"
    assert _path_in(text) == "pkg.mod.Refused"
    assert _path_in("") == "builtins.Exception"
