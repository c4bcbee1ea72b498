"""Isolated runs: whatever happens in its process, a run ends with one clear settlement, and no process is left."""

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, Task, Worker, WorkerSettings
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.constants import CALL
from penstock.jobs.dependencies import Lifecycle, ProcessLifetime
from penstock.jobs.record import Record, draft
from penstock.worker.execution import Execution
from penstock.worker.isolation import Isolation
from penstock.worker.run import JobRun
from tests.conftest import until
from tests.servers import eventually
from tests.speed import scaled
from tests.worker import isolated_tasks
from tests.worker.isolated_tasks import is_alive

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


def run_of(task: Task[..., Any], *args: Any, ttl: int = 60_000, by: Execution | None = None) -> JobRun:
    """A claimed call of the task, prepared as a worker would."""
    header = draft(
        flags=CALL, how=0, priority=5, tenant=b"", task=task.name.encode(), delay_ms=0, expires_ms=0, ttl_ms=ttl
    )
    token = next(_numbers).to_bytes(6) + b"job"
    run = (by or execution).prepare(Claim(token, Record(header + task.call(*args).payload)), "q")
    assert isinstance(run, JobRun)
    return run


execution = Execution(isolated_tasks.app.registry, WorkerSettings(), 4000, "worker", ProcessLifetime(Lifecycle(), ()))


@contextlib.asynccontextmanager
async def isolation_of(size: int = 2, **more: Any) -> AsyncIterator[Isolation]:
    made = Isolation(size, execution, isolated_tasks.app.registry, max_payload=4000, worker="worker", **more)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def isolation() -> AsyncIterator[Isolation]:
    async with isolation_of() as made:
        yield made


Do = Callable[..., Awaitable[Settlement]]


@pytest.fixture
def do(isolation: Isolation) -> Do:
    """Runs a task in a process of its own, and returns the settlement."""

    async def run_isolated(task: Any, *args: Any) -> Settlement:
        run = run_of(task, *args)
        settlement = await asyncio.wait_for(isolation.run(run), scaled(20))
        assert settlement.token == run.claim.token
        return settlement

    return run_isolated


def reason(settlement: Settlement) -> str:
    return json.loads(settlement.data)["reason"]


# --- settlements ---


async def test_a_task_is_run_with_its_arguments_in_another_process(do: Do):
    assert (await do(isolated_tasks.add, 2)).data == b"3"
    assert (await do(isolated_tasks.add, 2, 5)).data == b"7"
    assert (await do(isolated_tasks.Shop.sell)).data == b'"sold"'


async def test_an_async_task_has_a_loop_of_its_own(do: Do):
    assert (await do(isolated_tasks.name_of_loop)).data == b'"uvloop"'


async def test_a_large_result_arrives_complete(isolation: Isolation):
    big = Isolation(1, execution, isolated_tasks.app.registry, max_payload=10**7, worker="worker")
    settlement = await big.run(run_of(isolated_tasks.large, 5_000_000))
    big.close()
    assert len(settlement.data) == 5_000_002


@pytest.mark.parametrize(
    ("how", "ending", "words"),
    [
        ("unpicklable", "bury", "Unpicklable: cannot travel"),
        ("sys.exit", "bury", "the task called sys.exit('bye'); raise an exception instead"),
        ("large", "bury", "the result of fail is 5,002 bytes, the limit is 4,000"),
        ("object", "bury", "the result of fail: a object cannot be written as JSON"),
    ],
)
async def test_a_result_or_error_that_cannot_be_sent_ends_as_in_a_thread(do: Do, how: str, ending: str, words: str):
    settlement = await do(isolated_tasks.fail, how)
    assert settlement.ending == ending
    assert reason(settlement).startswith(words)


async def test_a_task_can_drop_its_job(do: Do):
    assert (await do(isolated_tasks.fail, "drop")).ending == "drop"


@pytest.mark.parametrize(
    ("how", "number", "words"),
    [
        ("os._exit", 3, "its process ended with exit code 3"),
        ("os._exit", 0, "its process ended with exit code 0"),
        ("signal", signal.SIGKILL, "its process was killed by SIGKILL"),
        ("signal", signal.SIGRTMIN + 3, f"its process was killed by signal {signal.SIGRTMIN + 3}"),
        ("segfault", 0, "its process was killed by SIGSEGV"),
    ],
)
async def test_a_process_that_dies_without_an_answer_is_a_crash(do: Do, how: str, number: int, words: str):
    settlement = await do(isolated_tasks.die, how, number)
    assert (settlement.ending, reason(settlement)) == ("contained", words)
    assert (await do(isolated_tasks.add, 1)).data == b"2"


async def test_a_task_that_closes_the_channel_is_a_crash(do: Do, capfd: pytest.CaptureFixture[str]):
    settlement = await do(isolated_tasks.close_all_files)
    assert (settlement.ending, reason(settlement)) == ("contained", "its process ended with exit code 1")
    assert "Bad file descriptor" in capfd.readouterr().err


async def test_output_of_a_task_appears_in_the_workers_output(do: Do, capfd: pytest.CaptureFixture[str]):
    assert (await do(isolated_tasks.print_much, 1_000_000)).ending is None
    assert capfd.readouterr().out == "!" * 1_000_000 + "\nthe last words"


def _log_plainly() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level="INFO", stream=sys.stderr, force=True)


async def test_start_logging_sets_up_the_logging_of_isolated_runs(capfd: pytest.CaptureFixture[str]):
    async with isolation_of(start_logging=functools.partial(_log_plainly)) as isolation:
        await isolation.run(run_of(isolated_tasks.log_a_line, "hello"))
    assert "INFO tasks hello\n" in capfd.readouterr().err


# --- time ---


async def test_a_timeout_ends_a_loop_in_c(do: Do, tmp_path: Path):
    began = time.monotonic()
    settlement = await do(isolated_tasks.spin_in_c, str(tmp_path / "pid"))
    assert time.monotonic() - began < scaled(15)
    assert (settlement.ending, reason(settlement)) == ("bury", "TimeoutError: ran longer than its timeout of 0.3 s")
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_timeout_is_retried_by_the_tasks_policy(do: Do):
    assert (await do(isolated_tasks.sleep_long)).ending == "retry"


async def test_a_timeout_ends_a_frozen_process(do: Do):
    assert "timeout of 0.3 s" in reason(await do(isolated_tasks.freeze))


async def test_a_cancelled_run_leaves_no_process(isolation: Isolation, tmp_path: Path):
    note = tmp_path / "pids"
    run = asyncio.create_task(isolation.run(run_of(isolated_tasks.start_a_process_and_spin_in_c, str(note))))
    await until(note.exists, 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    child, _, grandchild = map(int, note.read_text().split())
    assert not is_alive(child)
    await until(lambda: not is_alive(grandchild))


async def test_no_more_processes_run_at_once_than_allowed(isolation: Isolation):
    settlements = await asyncio.gather(*(isolation.run(run_of(isolated_tasks.start_and_end, 0.4)) for _ in range(5)))
    times = [json.loads(settlement.data) for settlement in settlements]
    most = max(sum(began <= at < ended for began, ended in times) for at, _ in times)
    assert most == 2


async def test_a_run_that_waits_for_a_free_process_can_be_cancelled(isolation: Isolation, tmp_path: Path):
    runs = [asyncio.create_task(isolation.run(run_of(isolated_tasks.start_and_end, 0.3))) for _ in range(3)]
    await asyncio.sleep(0.1)
    runs[2].cancel()
    done = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(one) for one in done] == [Settlement, Settlement, asyncio.CancelledError]


# --- processes and files ---


async def test_threads_and_processes_that_a_run_started_end_with_it(do: Do):
    left = json.loads((await do(isolated_tasks.leave_processes_behind)).data)
    assert len(left) == 3
    await until(lambda: not any(map(is_alive, left)))


async def test_a_fork_made_by_the_task_does_not_answer_for_it(do: Do):
    assert (await do(isolated_tasks.return_in_a_fork_too)).data == b'"the task"'


async def test_a_process_holds_no_file_of_the_worker(do: Do):
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        ours.set_inheritable(True)
        open_files = json.loads((await do(isolated_tasks.open_files)).data)
    assert sum(name.startswith("socket:") for name in open_files) == 1  # the channel
    assert len(open_files) == 4  # and stdin, stdout, stderr


async def test_stop_signals_are_for_the_worker_alone(do: Do):
    assert json.loads((await do(isolated_tasks.receive_stop_signals)).data) == [-signal.SIGTERM, -signal.SIGTERM, 0]
    assert (await do(isolated_tasks.add, 1)).data == b"2"


async def test_close_ends_the_fork_server_at_once(isolation: Isolation):
    await isolation.run(run_of(isolated_tasks.add, 1))
    server = isolation._server
    assert server is not None
    isolation.close()
    assert server._process.returncode == 0  # a fork server that did not end by itself would have been killed


async def test_closing_a_frozen_fork_server_ends_its_runs(isolation: Isolation, tmp_path: Path):
    note = tmp_path / "pids"
    run = asyncio.create_task(isolation.run(run_of(isolated_tasks.start_a_process_and_spin_in_c, str(note))))
    await until(note.exists, 20)
    pids = _read(note)
    os.kill(pids[1], signal.SIGSTOP)
    isolation.close()
    assert (await run).ending == "loss"
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_killed_fork_server_is_started_again(do: Do, tmp_path: Path):
    note = tmp_path / "pid"
    settlement = await do(isolated_tasks.kill_the_fork_server, str(note))
    assert (settlement.ending, reason(settlement)) == ("loss", "its process ended together with the fork server")
    await until(lambda: not is_alive(int(note.read_text())))
    assert (await do(isolated_tasks.add, 1)).data == b"2"


WORKER = """
import asyncio, os, sys, time
from tests.worker.test_isolation import isolation_of, run_of
from tests.worker import isolated_tasks
from tests.worker.isolated_tasks import is_alive

async def main():
    async with isolation_of() as isolation:
        await isolation.run(run_of(isolated_tasks.add, 1))
        if sys.argv[2] == "forked" and os.fork() == 0:  # this copy holds every file and socket that the worker holds
            open(sys.argv[1] + "-fork", "w").write(str(os.getpid()))
            time.sleep(600)
        await isolation.run(run_of(isolated_tasks.start_a_process_and_spin_in_c, sys.argv[1]))

asyncio.run(main())
"""


def _read(note: Path | str) -> list[int]:
    return [int(word) for word in Path(note).read_text().split()] if Path(note).exists() else []


@pytest.mark.parametrize("how", ["alone", "forked", "with its fork server"])
def test_nothing_outlives_a_killed_worker(tmp_path: Path, how: str):
    """Even if a fork of the worker holds its sockets. A grandchild ends only if the fork server could still kill it."""
    note = tmp_path / "pids"
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(note), how], env=where)
    left: list[int] = []
    try:
        eventually(lambda: note.exists() and (how != "forked" or _read(f"{note}-fork")), 30)
        child, server, grandchild = _read(note)
        left = {"alone": [], "forked": _read(f"{note}-fork"), "with its fork server": [grandchild]}[how]
        assert all(map(is_alive, [child, server, grandchild, *left]))
        if how == "with its fork server":
            os.kill(worker.pid, signal.SIGSTOP)
            os.kill(server, signal.SIGKILL)
        worker.kill()
        worker.wait()
        eventually(lambda: not any(map(is_alive, {child, server, grandchild} - {*left})))
    finally:
        worker.kill()
        worker.wait()
        for pid in left:
            os.kill(pid, signal.SIGKILL)


# --- which tasks can be isolated ---


def test_a_function_that_another_process_could_not_find_is_refused():
    app = Penstock("unix:///nowhere")

    def inside() -> None: ...

    for function in (inside, lambda: None, isolated_tasks.Shop().method, functools.partial(isolated_tasks.plain)):
        with pytest.raises(ConfigurationError, match="at the top of a module"):
            app.task(name="task", isolate=True)(function)


def test_can_isolate_knows_which_tasks_another_process_finds():
    def can(task: Any) -> bool:
        return Isolation.can_isolate(task.definition)

    @isolated_tasks.app.task
    def inside() -> None: ...

    assert can(isolated_tasks.add)
    assert can(isolated_tasks.in_a_thread)
    assert can(isolated_tasks.Shop.sell)
    assert not can(inside)
    assert not can(isolated_tasks.renamed)


def test_a_task_that_is_not_found_under_its_functions_name_is_refused():
    app = Penstock("unix:///nowhere")
    app.task(isolate=True)(isolated_tasks.plain)
    with pytest.raises(ConfigurationError, match=r"task plain: isolate=True, but another process could not find it"):
        Worker(app)
    with pytest.raises(ConfigurationError, match="isolated=0"):
        Worker(isolated_tasks.app, WorkerSettings(isolated=0))
    with pytest.raises(ConfigurationError, match=r"start_logging=<function .*: give a function at the top"):
        Worker(isolated_tasks.app, start_logging=lambda: None)


MODULE = """
import os
from penstock import Penstock
app = Penstock("unix:///nowhere")
{trouble}

@app.task(isolate=True)
def one() -> int:
    return 1
"""


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("assert os.getpid() == {pid}", "troubled cannot be imported in a process of its own: AssertionError"),
        ("if os.getpid() != {pid}: raise SystemExit(4)", "troubled cannot be imported in a process of its own: Sys"),
        ("if os.getpid() != {pid}: os._exit(5)", "a process of its own ended with exit code 5"),
    ],
)
async def test_a_module_that_cannot_be_imported_again_fails_only_its_own_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, words: str
):
    (tmp_path / "troubled.py").write_text(MODULE.format(trouble=trouble.format(pid=os.getpid())))
    monkeypatch.syspath_prepend(tmp_path)
    import troubled  # type: ignore[import-not-found]

    try:
        registry = troubled.app.registry
        mine = Execution(registry, WorkerSettings(), 4000, "worker", ProcessLifetime(Lifecycle(), ()))
        isolation = Isolation(1, mine, [*registry, isolated_tasks.add.definition], max_payload=4000, worker="worker")
        claim = run_of(isolated_tasks.add, 1).claim
        settlement = await isolation.run(JobRun(claim, troubled.one.definition, None, "q"))  # type: ignore[arg-type]
        # A module that ends the process may do so for lack of memory: then the job is handed back.
        assert settlement.ending == ("unknown" if "_exit" in trouble else "bury")
        assert words in reason(settlement)
        if "_exit" not in trouble:
            assert (await isolation.run(run_of(isolated_tasks.add, 1))).data == b"2"
        isolation.close()
    finally:
        del sys.modules["troubled"]


# --- a fork server that fails ---

FUSSY = """
import os, sys, time
from penstock import Penstock
app = Penstock("unix:///nowhere")
in_fork_server = "forkserver import serve" in " ".join(sys.orig_argv)
if in_fork_server:
    {trouble}

@app.task(isolate=True, timeout=30)
def parent() -> int:
    return os.getppid()

@app.task(isolate=True)
def die() -> None:
    os.kill(os.getpid(), 9)
"""


@contextlib.asynccontextmanager
async def fussy_isolation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> AsyncIterator[tuple[Isolation, Any]]:
    (folder / "fussy.py").write_text(FUSSY.format(trouble=trouble))
    monkeypatch.syspath_prepend(folder)
    import fussy  # type: ignore[import-not-found]

    mine = Execution(fussy.app.registry, WorkerSettings(), 4000, "worker", ProcessLifetime(Lifecycle(), ()))
    isolation = Isolation(2, mine, fussy.app.registry, max_payload=4000, worker="worker")
    try:
        yield isolation, fussy
    finally:
        isolation.close()
        del sys.modules["fussy"]


@pytest.mark.parametrize(
    "trouble",
    [
        "raise OSError('the port is taken')",
        "os._exit(7)",
        "time.sleep(600)",
        "os.register_at_fork(before=lambda: time.sleep(600))",
        "os.register_at_fork(after_in_child=lambda: time.sleep(600))",
        "os.register_at_fork(after_in_child=lambda: os._exit(8))",
    ],
    ids=[
        "cannot import",
        "cannot start",
        "hangs in the import",
        "hangs in the fork",
        "its child hangs",
        "its child ends",
    ],
)
async def test_a_fork_server_that_fails_is_replaced_by_a_fresh_process_for_each_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
):
    monkeypatch.setattr("penstock.worker.isolation._IMPORT_LIMIT", scaled(3))
    monkeypatch.setattr("penstock.worker.isolation._BIRTH_LIMIT", 1.0)
    async with fussy_isolation(tmp_path, monkeypatch, trouble) as (isolation, fussy):
        for _ in range(3):
            settlement = await isolation.run(run_of(fussy.parent, by=isolation._execution))
            assert (settlement.ending, settlement.data) == (None, str(os.getpid()).encode()), settlement.data
        crash = await isolation.run(run_of(fussy.die, by=isolation._execution))
        assert (crash.ending, reason(crash)) == ("contained", "its process was killed by SIGKILL")
    assert caplog.text.count("isolated jobs run in processes that are started one by one") == 1


async def test_a_cancelled_run_in_a_fresh_process_leaves_no_process(tmp_path: Path):
    isolation = Isolation(1, execution, isolated_tasks.app.registry, max_payload=4000, worker="worker")
    isolation.spawns_only = True
    note = tmp_path / "pids"
    run = asyncio.create_task(isolation.run(run_of(isolated_tasks.start_a_process_and_spin_in_c, str(note))))
    await until(note.exists, 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    child, _, grandchild = _read(note)
    await until(lambda: not is_alive(child) and not is_alive(grandchild))


async def test_a_fresh_process_ends_a_loop_in_c_at_its_timeout(tmp_path: Path):
    isolation = Isolation(1, execution, isolated_tasks.app.registry, max_payload=4000, worker="worker")
    isolation.spawns_only = True
    settlement = await isolation.run(run_of(isolated_tasks.spin_in_c, str(tmp_path / "pid")))
    assert (settlement.ending, reason(settlement)) == ("bury", "TimeoutError: ran longer than its timeout of 0.3 s")
    assert not is_alive(int((tmp_path / "pid").read_text()))
