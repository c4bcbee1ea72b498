"""`penstock worker` as a process: it works, logs what it does, and stops on signals."""

import json
import signal
import uuid
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from tests.command_line import RECORD_START
from tests.servers import Server, eventually, handling
from tests.speed import scaled

TASKS = (
    RECORD_START
    + """
import asyncio, os, time
from penstock import Penstock, Settings

app = Penstock(prefix=os.environ.get("SHOP"), settings=Settings(give_up_after=0.3))

@app.task(queue="mail")
async def add(a: int, b: int) -> int:
    return a + b

@app.task(queue="raw")
async def nap(seconds: float) -> str:
    record_start()
    await asyncio.sleep(seconds)
    return "rested"

@app.task(queue="raw")
def nap_in_a_thread(seconds: float) -> str:
    record_start()
    time.sleep(seconds)
    return "rested"
"""
)


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path):
    (tmp_path / "tasks.py").write_text(TASKS)


@pytest.fixture
def shop(server: Server):
    """The app on the producer's side, where its tasks are only names."""
    with Penstock(server.address, prefix=f"shop-{uuid.uuid4().hex[:8]}") as app:
        yield app


@pytest.fixture
def where(server: Server, shop: Penstock):
    """The environment that leads a worker to the same place."""
    return {"PENSTOCK_URL": server.address, "SHOP": shop.settings.prefix}


def declare(app: Penstock):
    @app.task(queue="mail")
    async def add(a: int, b: int) -> int:
        return 0

    @app.task(queue="raw")
    async def nap(seconds: float) -> str:
        return ""

    @app.task(queue="raw")
    def nap_in_a_thread(seconds: float) -> str:
        return ""

    return add, nap, nap_in_a_thread


def test_a_burst_does_all_there_is_and_ends(run, shop, where):
    add, nap, nap_in_a_thread = declare(shop)
    sums = shop.enqueue_many(add.call(n, n) for n in range(200))
    rests = [nap.enqueue(0.01), nap_in_a_thread.enqueue(0.01)]
    done = run("worker", "tasks:app", "--burst", "-c", "20", **where)
    assert done.returncode == Exit.OK
    assert [job.result(timeout=0) for job in sums] == [2 * n for n in range(200)]
    assert [job.result(timeout=0) for job in rests] == ["rested", "rested"]
    assert "Traceback" not in done.stderr


def test_the_start_up_screen_says_who_works_where_at_what(run, where, server):
    done = run("worker", "tasks.py", "--burst", "-c", "7", "--queues", "raw,mail,odd", **where)
    assert f"at {server.address}" in done.stderr
    assert "runs     7 jobs" in done.stderr
    assert [line.split()[-3:] for line in done.stderr.splitlines() if "1. " in line] == [
        ["raw", "nap,", "nap_in_a_thread"]
    ]
    assert "2. mail  add" in done.stderr
    assert "queue odd has no task in this app" in done.stderr
    assert done.stdout == ""


def test_queues_that_are_not_named_take_turns_and_have_no_numbers(run, where, server):
    done = run("worker", "tasks.py", "--burst", **where)
    assert "queues   mail  add" in done.stderr or "\n           mail  add" in done.stderr
    assert "1. " not in done.stderr


def test_the_password_is_shown_nowhere(run):
    done = run("worker", "tasks.py", "--url", "valkey://ann:secret@127.0.0.1:1/0")
    assert "127.0.0.1:1" in done.stderr
    assert "secret" not in done.stderr


def test_only_the_named_queues_are_served_in_their_order(run, shop, where):
    add, nap, _ = declare(shop)
    left, served = add.enqueue(1, 1), nap.enqueue(0)
    run("worker", "tasks:app", "--burst", "--queues", "raw", **where)
    assert served.result(timeout=0) == "rested"
    assert left.status() == "ready"


def test_every_log_line_is_json_when_asked_for(run, shop, where):
    declare(shop)[0].enqueue(1, 2)
    shop.queue("mail").put("no call of a task")
    done = run("worker", "tasks:app", "--burst", "--log-format", "json", "--queues", "mail,odd", **where)
    report = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"ts", "level", "logger", "event"} <= set(line) for line in report)
    started = next(line for line in report if line["event"] == "started")
    assert started["queues"] == ["mail", "odd"]
    assert started["tasks"] == {"mail": ["add"], "odd": []}
    assert [line["level"] for line in report].count("warning") >= 2
    assert report[-1]["event"] == "stopped"


def test_settings_come_from_the_project_when_nobody_nearer_says_otherwise(run, shop, where, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.penstock]\nurl = '{where['PENSTOCK_URL']}'\nconcurrency = 3\nqueues = ['raw']\nlog-format = 'json'\n"
    )
    done = run("worker", "tasks:app", "--burst", SHOP=where["SHOP"], PENSTOCK_QUEUES="mail")
    started = next(line for line in map(json.loads, done.stderr.splitlines()) if line["event"] == "started")
    assert (started["concurrency"], started["queues"]) == (3, ["mail"])
    assert where["PENSTOCK_URL"] in started["server"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_running_jobs_finish(start, shop, where, begun, number):
    _, nap, nap_in_a_thread = declare(shop)
    jobs = [nap.enqueue(2.5), nap_in_a_thread.enqueue(2.5)]
    worker = start("worker", "tasks:app", "-c", "2", **where)
    eventually(lambda: begun(2))
    later = nap.enqueue(0)
    worker.send_signal(number)
    assert worker.wait(timeout=scaled(30)) == Exit.OK
    assert [job.result(timeout=0) for job in jobs] == ["rested", "rested"]
    assert later.status() == "ready"


def test_a_second_signal_hands_running_jobs_back(start, shop, where, begun):
    _, nap, _ = declare(shop)
    nap.enqueue(60)
    worker = start("worker", "tasks:app", **where)
    eventually(begun)
    worker.send_signal(signal.SIGINT)
    assert worker.stderr is not None
    assert any("stop again to hand them back now" in line for line in worker.stderr)  # two at once would be one
    worker.send_signal(signal.SIGINT)
    _, errors = worker.communicate(timeout=scaled(30))
    counts = shop.queue("raw").count()
    assert worker.returncode == Exit.OK
    assert (counts.ready, counts.running, counts.retried) == (1, 0, 0)
    assert "handing back jobs that still run: 1" in errors


def test_a_stop_has_the_patience_it_was_given(start, shop, where, begun):
    _, nap, _ = declare(shop)
    nap.enqueue(60)
    worker = start("worker", "tasks:app", "--stop-timeout", "0.2", **where)
    eventually(begun)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=scaled(30)) == Exit.OK
    assert shop.queue("raw").count().ready == 1


def test_a_worker_in_the_background_of_a_script_ignores_ctrl_c_and_obeys_sigterm(start, shop, where, begun):
    _, nap, _ = declare(shop)
    nap.enqueue(60)
    with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGHUP):
        worker = start("worker", "tasks:app", "-c", "2", "--stop-timeout", "0.2", **where)
    eventually(begun)
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGHUP)
    assert nap.enqueue(0).result(timeout=scaled(30)) == "rested"  # a stopping worker takes no new job
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=scaled(30)) == Exit.OK


@pytest.mark.parametrize("style", ["plain", "json"])
def test_an_unreachable_server_is_reported_in_one_line(run, tmp_path, style):
    done = run("worker", "tasks:app", "--log-format", style, PENSTOCK_URL=f"unix://{tmp_path}/gone")
    assert done.returncode == Exit.SERVER
    assert done.stderr.count("\n") == 1
    errors = json.loads(done.stderr)["event"] if style == "json" else done.stderr
    assert f"no server answers at unix://{tmp_path}/gone" in errors


@pytest.mark.parametrize("processes", ["1", "0"])
def test_a_server_that_refuses_writes_is_reported_before_the_start_up_screen(run, processes):
    with Server() as own:
        own.client.config_set("min-replicas-to-write", 1)
        done = run("worker", "tasks:app", "--processes", processes, PENSTOCK_URL=own.address)
    assert done.returncode == Exit.SERVER
    assert "min-replicas-to-write" in done.stderr.splitlines()[-1]
    assert "Ctrl-C" not in done.stderr


def test_an_app_without_an_address_has_a_server_of_its_own(run, tmp_path):
    done = run("worker", "tasks:app", "--burst")
    assert done.returncode == Exit.OK
    assert "embedded valkey" in done.stderr
    assert (tmp_path / ".penstock").is_dir()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-c", "0"), "concurrency=0"),
        (("-c", "-1", "--processes", "2"), "concurrency=-1"),
        (("-c", "0", "--reload"), "concurrency=0"),
        (("--stop-timeout", "-3"), "stop_timeout=-3"),
        (("--stop-timeout", "nan", "--processes", "2"), "stop_timeout=nan"),
    ],
)
def test_settings_that_cannot_work_are_refused(run, where, words, expected):
    done = run("worker", "tasks:app", "--burst", *words, **where)
    assert (done.returncode, done.stderr.count("\n")) == (Exit.USAGE, 1)
    assert expected in done.stderr
