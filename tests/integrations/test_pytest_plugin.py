"""The plugin in a project of its own: pytest finds it by its entry point and runs the tests of a small service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.integrations.pytest_plugin import _app as find_app
from penstock.integrations.pytest_plugin import _check_server as check_server
from penstock.testing import TemporaryServer

ROOT = Path(__file__).parents[2]

SERVICE = """
from penstock import Penstock, Retry

app = Penstock()
sent = []

@app.task(queue="mail", retry=Retry(2, base=60))
def send_email(to: str, subject: str) -> str:
    if to == "down":
        raise ConnectionError("no answer")
    sent.append(to)
    return subject

@app.task(queue="users")
async def welcome(name: str) -> None:
    await send_email.enqueue.aio(f"{name}@example.com", subject="Welcome")

def sign_up(name: str):
    return welcome.enqueue(name)
"""


SETTINGS = """
[tool.pytest]
filterwarnings = ["error"]
pythonpath = ["."]
anyio_mode = "auto"
penstock_app = "service:app"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a service, its pytest settings, and the entry points of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    plugins = settings["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "site" / "penstock-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-plugin\nVersion: 0\n")
    rows = [f"{name} = {module}" for name, module in plugins.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *rows]))
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    return tmp_path


def run(project: Path, tests: str, **environment: str) -> tuple[dict[str, int], str]:
    """Run these tests, and return how many ended in each way, and the output."""
    (project / "test_service.py").write_text(tests)
    path = os.pathsep.join([str(project / "site"), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:valkey", "--color=no", "-rA"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    output = run.stdout + run.stderr
    words = output.splitlines()[-1].strip("= ").partition(" in ")[0].split(", ") if output else []
    counts = {word.split()[1].rstrip("s"): int(word.split()[0]) for word in words if word[:1].isdigit()}
    return counts, output


TESTS = """
import os
import pytest
from penstock import Status
from penstock.testing import AppUnderTest
from service import app, send_email, sent, sign_up, welcome

def test_tests_that_use_no_fixture_reach_the_test_server_too():
    assert os.environ["PENSTOCK_URL"].startswith("unix:")
    sign_up("left over")

def test_calls_are_found(penstock: AppUnderTest):
    sign_up("ada")
    penstock.assert_enqueued(welcome, "ada")
    assert [call.task for call in penstock.enqueued()] == ["welcome"]
    with pytest.raises(AssertionError, match="no such call waits"):
        penstock.assert_enqueued(send_email, "ada@example.com", "Welcome")

def test_the_next_test_finds_nothing_of_it_and_drains(penstock):
    assert penstock.enqueued() == []
    sign_up("bo")
    assert penstock.drain().completed == 2
    assert sent.pop() == "bo@example.com"

def test_the_clock_moves(penstock):
    send_email.using(delay=3600).enqueue("cy", "Later")
    assert penstock.drain().completed == 0
    penstock.clock.advance(3600)
    assert penstock.drain().completed == 1

def test_retries_take_no_time(penstock):
    send_email.enqueue("down", "?")
    ran = penstock.drain(delayed=True, dead=True)
    assert (ran.retried, ran.failed) == (2, 1)

def test_after_a_test_the_clock_is_that_of_the_server_again(penstock):
    assert app.clock.now_ms == 0

def test_inline_jobs_have_run_when_enqueue_returns(penstock):
    with penstock.inline():
        job = sign_up("di")
        assert job.status() is Status.COMPLETED
        assert sent.pop() == "di@example.com"
        assert app.enqueue_many([send_email.call("a", "b"), send_email.call("c", "d")])[1].result(0) == "d"
    assert sign_up("ed").status() is Status.READY

def test_inline_jobs_that_fail_fail_the_enqueue(penstock):
    with penstock.inline():
        send_email.enqueue("down", "?")
        with pytest.raises(AssertionError, match="no answer"):
            send_email.using(priority=1).enqueue("down", "?")
            penstock.drain(delayed=True)

async def test_the_same_in_asyncio(penstock):
    await welcome.enqueue.aio("flo")
    assert (await penstock.drain.aio()).completed == 2
    with pytest.raises(RuntimeError, match=r"await penstock\\.drain\\.aio"):
        penstock.drain()
    with penstock.inline():
        job = await welcome.enqueue.aio("gus")
    assert await job.status.aio() is Status.COMPLETED

def test_a_leak_fails_the_test(penstock):
    app._driver.connector.blocking_client().set(f"{{{app.settings.prefix}:q:mail}}:nonsense", 1)

def test_a_failed_test_reports_no_leak(penstock):
    app._driver.connector.blocking_client().set(f"{{{app.settings.prefix}:q:mail}}:nonsense", 1)
    assert not "its own failure"
"""


def test_each_test_has_a_server_a_fresh_key_space_a_clock_and_ways_to_run_jobs(project: Path):
    counts, output = run(project, TESTS, PENSTOCK_URL="valkey://production:6379")
    assert counts == {"passed": 10, "failed": 1, "error": 1}, output
    assert "ERROR test_service.py::test_a_leak_fails_the_test" in output
    assert "left in the server" in output
    assert "FAILED test_service.py::test_a_failed_test_reports_no_leak" in output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("", "the fixture `penstock` needs an app"),
        ("no_such_service:app", "No module named 'no_such_service'"),
        ("tests.integrations.apps:nothing", "has no attribute 'nothing'"),
        ("tests.integrations.apps:send_email", "is a PlainTask, not a Penstock app"),
    ],
)
def test_a_setting_that_cannot_work_is_one_clear_error(setting: str, message: str):
    with pytest.raises(pytest.UsageError, match=re.escape(message)):
        find_app(setting)


def test_an_app_on_another_server_is_refused_before_its_data_is_deleted():
    with TemporaryServer() as server, pytest.raises(pytest.UsageError, match="create it without an address"):
        check_server(Penstock("valkey://production:6379"), server)
