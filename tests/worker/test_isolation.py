"""A process of its own for a run: whatever happens in it, the worker gets one clear settlement, and nothing remains."""

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

from penstock import ConfigurationError, JobFailed, Penstock, Status, Task, Worker, WorkerSettings
from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.record import CALL, Record, draft
from penstock.worker.execution import Execution, JobRun
from penstock.worker.isolation import Isolation
from tests.conftest import until
from tests.servers import Server, eventually
from tests.speed import scaled
from tests.worker import isolated
from tests.worker.work import at_work, burst

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


def run_of(task: Task[..., Any], *args: Any, ttl: int = 60_000) -> JobRun:
    """A claimed call, as the worker would have it."""
    header = draft(flags=CALL, priority=5, tenant=b"", delay_ms=0, expires_ms=0, ttl_ms=ttl)
    token = b"%012d" % next(_numbers) + b"job"
    run = execution.prepare(Claim(token, Record(header + task.call(*args).payload)))
    assert isinstance(run, JobRun)
    return run


execution = Execution(isolated.app.registry, WorkerSettings(), 4000, "worker")


@contextlib.asynccontextmanager
async def isolation_of(size: int = 2, **more: Any) -> AsyncIterator[Isolation]:
    made = Isolation(size, execution, isolated.app.registry, max_payload=4000, worker="worker", **more)
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
    """Run a task in a process of its own."""

    async def run(task: Any, *args: Any) -> Settlement:
        run = run_of(task, *args)
        settlement = await asyncio.wait_for(isolation.run(run), scaled(20))
        assert settlement.token == run.claim.token
        return settlement

    return run


def reason(settlement: Settlement) -> str:
    return json.loads(settlement.data)["reason"]


def is_alive(pid: int) -> bool:
    """Zombies are not: nobody reaps an orphan in a container without an init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- what a run gives ---


async def test_a_task_is_run_with_its_arguments_in_another_process(do: Do):
    assert (await do(isolated.add, 2)).data == b"3"
    assert (await do(isolated.add, 2, 5)).data == b"7"
    assert (await do(isolated.Shop.sell)).data == b'"sold"'


async def test_an_async_task_has_a_loop_of_its_own(do: Do):
    assert (await do(isolated.name_of_loop)).data == b'"uvloop"'


async def test_a_large_result_passes_whole(isolation: Isolation):
    big = Isolation(1, execution, isolated.app.registry, max_payload=10**7, worker="worker")
    settlement = await big.run(run_of(isolated.large, 5_000_000))
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
async def test_what_cannot_travel_ends_as_it_does_elsewhere(do: Do, how: str, ending: str, words: str):
    settlement = await do(isolated.fail, how)
    assert settlement.ending == ending
    assert reason(settlement).startswith(words)


async def test_a_task_decides_its_end_itself(do: Do):
    assert (await do(isolated.fail, "drop")).ending == "drop"


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
    settlement = await do(isolated.die, how, number)
    assert (settlement.ending, reason(settlement)) == ("crash", words)
    assert (await do(isolated.add, 1)).data == b"2"


async def test_a_task_that_closes_the_way_back_is_a_crash(do: Do, capfd: pytest.CaptureFixture[str]):
    settlement = await do(isolated.close_all_files)
    assert (settlement.ending, reason(settlement)) == ("crash", "its process ended with exit code 1")
    assert "Bad file descriptor" in capfd.readouterr().err


async def test_what_a_task_prints_comes_out_of_the_worker(do: Do, capfd: pytest.CaptureFixture[str]):
    assert (await do(isolated.shout, 1_000_000)).ending is None
    assert capfd.readouterr().out == "!" * 1_000_000 + "\nthe last words"


def _log_plainly() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level="INFO", stream=sys.stderr, force=True)


async def test_logging_is_set_up_as_the_worker_was_told(capfd: pytest.CaptureFixture[str]):
    async with isolation_of(start_logging=functools.partial(_log_plainly)) as isolation:
        await isolation.run(run_of(isolated.say, "hello"))
        await isolation.run(run_of(isolated.fail, "sys.exit"))
    said = capfd.readouterr().err
    assert "INFO tasks hello\n" in said
    assert "ERROR penstock.worker job job (fail) is a dead letter" in said


# --- time ---


async def test_a_timeout_ends_a_loop_in_c(do: Do, tmp_path: Path):
    began = time.monotonic()
    settlement = await do(isolated.spin_in_c, str(tmp_path / "pid"))
    assert time.monotonic() - began < scaled(15)
    assert (settlement.ending, reason(settlement)) == ("bury", "TimeoutError: ran longer than its timeout of 0.3 s")
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_timeout_is_judged_by_the_policy(do: Do):
    assert (await do(isolated.sleep_long)).ending == "retry"


async def test_a_timeout_ends_a_frozen_process(do: Do):
    assert "timeout of 0.3 s" in reason(await do(isolated.freeze))


async def test_a_cancelled_run_leaves_no_process(isolation: Isolation, tmp_path: Path):
    note = tmp_path / "pids"
    run = asyncio.create_task(isolation.run(run_of(isolated.spin_in_c_for_ever, str(note))))
    await until(note.exists, 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    child, _, grandchild = map(int, note.read_text().split())
    assert not is_alive(child)
    await until(lambda: not is_alive(grandchild))


async def test_no_more_run_at_once_than_allowed(isolation: Isolation):
    settlements = await asyncio.gather(*(isolation.run(run_of(isolated.stamp, 0.4)) for _ in range(5)))
    times = [json.loads(settlement.data) for settlement in settlements]
    most = max(sum(began <= at < ended for began, ended in times) for at, _ in times)
    assert most == 2


async def test_a_run_that_waits_for_a_place_can_be_cancelled(isolation: Isolation, tmp_path: Path):
    runs = [asyncio.create_task(isolation.run(run_of(isolated.stamp, 0.3))) for _ in range(3)]
    await asyncio.sleep(0.1)
    runs[2].cancel()
    done = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(one) for one in done] == [Settlement, Settlement, asyncio.CancelledError]


# --- what it leaves, and what it holds ---


async def test_what_a_run_started_ends_with_it(do: Do):
    left = json.loads((await do(isolated.leave_things_behind)).data)
    assert len(left) == 3
    await until(lambda: not any(map(is_alive, left)))


async def test_a_copy_of_the_process_does_not_answer_for_it(do: Do):
    assert (await do(isolated.come_back_twice)).data == b'"the task"'


async def test_a_process_holds_no_file_of_the_worker(do: Do):
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        ours.set_inheritable(True)
        open_files = json.loads((await do(isolated.files)).data)
    assert sum(name.startswith("socket:") for name in open_files) == 1  # the channel
    assert len(open_files) == 4  # and 0, 1, 2


async def test_stop_signals_are_for_the_worker_alone(do: Do):
    assert json.loads((await do(isolated.heed_no_signal)).data) == [-signal.SIGTERM, -signal.SIGTERM, 0]
    assert (await do(isolated.add, 1)).data == b"2"


async def test_a_fork_server_ends_at_once_when_it_is_told(isolation: Isolation):
    await isolation.run(run_of(isolated.add, 1))
    server = isolation._server
    assert server is not None
    isolation.close()
    assert server._process.returncode == 0  # one that lingers is killed


async def test_the_end_of_a_frozen_fork_server_ends_its_runs(isolation: Isolation, tmp_path: Path):
    note = tmp_path / "pids"
    run = asyncio.create_task(isolation.run(run_of(isolated.spin_in_c_for_ever, str(note))))
    await until(note.exists, 20)
    pids = _read(note)
    os.kill(pids[1], signal.SIGSTOP)
    isolation.close()
    assert (await run).ending == "crash"
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_killed_fork_server_is_started_again(do: Do, tmp_path: Path):
    note = tmp_path / "pid"
    settlement = await do(isolated.kill_the_fork_server, str(note))
    assert (settlement.ending, reason(settlement)) == ("crash", "its process ended together with the fork server")
    await until(lambda: not is_alive(int(note.read_text())))
    assert (await do(isolated.add, 1)).data == b"2"


WORKER = """
import asyncio, os, sys, time
from tests.worker.test_isolation import isolation_of, run_of
from tests.worker import isolated

async def main():
    async with isolation_of() as isolation:
        await isolation.run(run_of(isolated.add, 1))
        if sys.argv[2] == "forked" and os.fork() == 0:  # holds all that the worker holds
            open(sys.argv[1] + "-fork", "w").write(str(os.getpid()))
            time.sleep(600)
        await isolation.run(run_of(isolated.spin_in_c_for_ever, sys.argv[1]))

asyncio.run(main())
"""


def _read(note: Path | str) -> list[int]:
    return [int(word) for word in Path(note).read_text().split()] if Path(note).exists() else []


@pytest.mark.parametrize("how", ["alone", "forked", "with its fork server"])
def test_nothing_outlives_a_killed_worker(tmp_path: Path, how: str):
    """Also while a fork of the worker holds its sockets; a grandchild only if the fork server could still end it."""
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


# --- which tasks ---


def test_what_another_process_could_not_find_is_refused():
    app = Penstock("unix:///nowhere")

    def inside() -> None: ...

    for function in (inside, lambda: None, isolated.Shop().method, functools.partial(isolated.plain)):
        with pytest.raises(ConfigurationError, match="at the top of a module"):
            app.task(name="task", isolate=True)(function)


def test_it_is_known_beforehand_which_can_be_isolated():
    def can(task: Any) -> bool:
        return Isolation.can_isolate(task.definition)

    @isolated.app.task
    def inside() -> None: ...

    assert can(isolated.add)
    assert can(isolated.in_a_thread)
    assert can(isolated.Shop.sell)
    assert not can(inside)
    assert not can(isolated.renamed)


def test_a_task_that_does_not_stand_where_its_function_says_is_refused():
    app = Penstock("unix:///nowhere")
    app.task(isolate=True)(isolated.plain)
    with pytest.raises(ConfigurationError, match=r"task plain: isolate=True, but another process could not find it"):
        Worker(app)
    with pytest.raises(ConfigurationError, match="isolated=0"):
        Worker(isolated.app, WorkerSettings(isolated=0))
    with pytest.raises(ConfigurationError, match=r"start_logging=<function .*: give a function at the top"):
        Worker(isolated.app, start_logging=lambda: None)


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
        ("if os.getpid() != {pid}: os._exit(5)", "the fork server ended while it loaded the tasks' modules"),
    ],
)
async def test_a_module_that_cannot_be_imported_again_fails_its_own_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, words: str
):
    (tmp_path / "troubled.py").write_text(MODULE.format(trouble=trouble.format(pid=os.getpid())))
    monkeypatch.syspath_prepend(tmp_path)
    import troubled  # type: ignore[import-not-found]

    try:
        registry = troubled.app.registry
        mine = Execution(registry, WorkerSettings(), 4000, "worker")
        isolation = Isolation(1, mine, [*registry, isolated.add.definition], max_payload=4000, worker="worker")
        settlement = await isolation.run(JobRun(run_of(isolated.add, 1).claim, troubled.one.definition, None))  # type: ignore[arg-type]
        assert settlement.ending == "bury"
        assert words in reason(settlement)
        if "_exit" not in trouble:
            assert (await isolation.run(run_of(isolated.add, 1))).data == b"2"
        isolation.close()
    finally:
        del sys.modules["troubled"]


# --- in a worker ---


def adopt(app: Penstock, task: Any, **options: Any) -> Any:
    """The same task on a queue of the test's own app."""
    return app.task(queue="q", isolate=True, name=task.name, **options)(task.__wrapped__)


async def test_a_worker_runs_isolated_jobs_beside_the_others(app: Penstock):
    add = adopt(app, isolated.add)

    @app.task(queue="q")
    async def here(n: int) -> int:
        return n

    jobs = await app.enqueue_many.aio(task.call(n) for n in range(10) for task in (add, here))
    await burst(app, concurrency=3)
    assert [await job.result.aio(0) for job in jobs] == [value for n in range(10) for value in (n + 1, n)]


async def test_a_timeout_in_a_worker_makes_a_dead_letter(app: Penstock, tmp_path: Path):
    job = await adopt(app, isolated.spin_in_c, timeout=0.2).enqueue.aio(str(tmp_path / "pid"))
    await burst(app)
    with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.2 s"):
        await job.result.aio(0)


async def test_a_job_that_kills_its_process_again_and_again_is_a_dead_letter_and_the_worker_lives_on(app: Penstock):
    job = await adopt(app, isolated.die).enqueue.aio("signal", signal.SIGKILL)
    other = await adopt(app, isolated.add).enqueue.aio(1)
    await burst(app)
    with pytest.raises(JobFailed, match="its process was killed by SIGKILL"):
        await job.result.aio(0)
    assert await other.result.aio(0) == 2


async def test_a_graceful_stop_lets_isolated_jobs_finish(app: Penstock):
    job = await adopt(app, isolated.stamp).enqueue.aio(0.5)
    async with at_work(app) as worker:
        await until(lambda: worker._inflight.running)
        await asyncio.sleep(0.1)
    assert await job.status.aio() is Status.COMPLETED


async def test_a_second_stop_kills_them_and_hands_them_back(app: Penstock, tmp_path: Path):
    note = tmp_path / "pids"
    job = await adopt(app, isolated.spin_in_c_for_ever).enqueue.aio(str(note))
    async with at_work(app) as worker:
        await until(note.exists, 20)
        worker.stop()
    assert await job.status.aio() is Status.READY
    await until(lambda: not any(map(is_alive, map(int, note.read_text().split()))))


async def test_a_lost_lease_kills_its_isolated_jobs(app: Penstock, raw: Any, tmp_path: Path):
    note = tmp_path / "pids"
    job = await adopt(app, isolated.spin_in_c_for_ever).enqueue.aio(str(note))
    async with at_work(app) as worker:
        await until(note.exists, 20)
        child = int(note.read_text().split()[0])
        (feed,) = worker._feeds
        await app._driver.aio.run(feed.queue.bindings.abandon(feed.incarnation))
        worker._lease_lost(feed, feed.incarnation)
        await until(lambda: not is_alive(child))
        await job.cancel.aio()
        worker.stop()


PROGRAM = """
import asyncio, os, sys
from penstock import Penstock, Worker, WorkerSettings

app = Penstock(os.environ["URL"], prefix=os.environ["PREFIX"])

@app.task(isolate=True)
def who(n: int) -> list[int]:
    return [n, os.getpid()]

async def main():
    job = await who.enqueue.aio(7)
    await Worker(app, WorkerSettings(burst=True)).run()
    n, pid = await job.result.aio(0)
    assert n == 7 and pid != os.getpid()
    print("done")

{start}
"""


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_program_that_is_its_own_worker(server: Server, app: Penstock, tmp_path: Path, guarded: bool):
    start = 'if __name__ == "__main__":\n    asyncio.run(main())' if guarded else "asyncio.run(main())"
    (tmp_path / "program.py").write_text(PROGRAM.replace("{start}", start))
    where = {
        **os.environ,
        "URL": server.address,
        "PREFIX": app.settings.prefix,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=where, capture_output=True, text=True, timeout=60, check=False
    )
    if guarded:
        assert done.stdout == "done\n", done.stderr
    else:
        assert "put that under `if __name__" in done.stderr
