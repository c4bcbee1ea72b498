"""`penstock worker --processes N`: what becomes of jobs when processes die, freeze, or lose their supervisor."""

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from penstock import JobFailed, Penstock, Status
from penstock.cli.exits import Exit
from penstock.cli.worker import check_health
from tests.cli.worker_shop import TASKS, gone, opened_shop, state
from tests.servers import Server, eventually
from tests.speed import scaled


@pytest.fixture
def lease() -> float:
    return 10.0


@pytest.fixture
def shop(server: Server, tmp_path: Path, lease: float):
    with opened_shop(server, tmp_path, lease) as shop:
        yield shop


@pytest.mark.parametrize("lease", [40.0])
def test_jobs_of_a_killed_process_run_again_at_once(start, shop, begun):
    start("worker", "tasks:app", "--processes", "2", "-c", "1", **shop.where)
    eventually(lambda: len(shop.pids()) == 2)
    job = shop.nap.enqueue(3.0)
    eventually(begun)
    (pid,) = shop.pids(busy=True)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert job.result(timeout=scaled(39)) != pid
    assert time.monotonic() - began < scaled(30)  # the lease would have held it for longer
    assert job.info().deliveries == 0  # its record is gone with its end
    assert (shop.queue.count().lost, shop.queue.count().completed) == (1, 1)


def test_a_killer_in_a_batch_dies_alone(start, shop):
    before = shop.app.enqueue_many(shop.nap.call(0.01) for _ in range(32))
    killer = shop.die.enqueue("SIGKILL")
    after = shop.app.enqueue_many(shop.nap.call(0.01) for _ in range(31))
    supervisor = start("worker", "tasks:app", "--processes", "1", "-c", "16", **shop.where)
    for job in (*before, *after):
        job.result(timeout=scaled(30))
    with pytest.raises(JobFailed, match="killed by SIGKILL"):
        killer.result(timeout=scaled(30))
    info = killer.info()
    assert (info.status, info.crashes, info.attempts) == (Status.DEAD, 3, 0)
    counts = shop.queue.count()
    assert (counts.completed, counts.dead, counts.failed, counts.retried) == (63, 1, 1, 0)
    supervisor.terminate()
    _, errors = supervisor.communicate(timeout=scaled(30))
    assert errors.count("was killed by SIGKILL; a new one starts") == 2, "after that, separate processes try it"
    # Fewer than three if it was alone in one of the ordinary processes, whose other jobs had ended.
    assert 1 <= len(re.findall(r"trial process \d+ was killed by SIGKILL", errors)) <= 3


@pytest.mark.parametrize("code", [0, 2])
def test_a_task_that_ends_the_process_as_if_all_were_well_is_charged_all_the_same(start, shop, code: int):
    supervisor = start("worker", "tasks:app", "--processes", "1", **shop.where)
    job = shop.leave.enqueue(code)
    with pytest.raises(JobFailed, match=f"ended with exit code {code}"):
        job.result(timeout=scaled(30))
    assert supervisor.poll() is None
    assert shop.nap.enqueue(0).result(timeout=scaled(30))


def test_of_two_jobs_on_two_queues_of_a_process_that_died_none_is_charged(start, shop, begun):
    start("worker", "tasks:app", "--processes", "1", "-c", "4", **shop.where)
    bystander = shop.innocent.enqueue(8.0)
    eventually(begun)
    (pid,) = {int(who.name.rpartition(":")[2]) for who in shop.app.queue("other").workers() if who.held}
    job = shop.nap.enqueue(8.0)
    eventually(lambda: begun(2))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: bystander.info().reason and job.info().reason)
    assert (bystander.info().crashes, job.info().crashes) == (0, 0)
    assert bystander.result(timeout=scaled(30)) != pid


def test_an_orphan_that_cannot_stop_ends_all_the_same(start, shop, begun):
    """Its loop is blocked, and its heartbeat would keep the job for ever."""
    supervisor = start("worker", "tasks:app", "--processes", "1", "--stop-timeout", "0", **shop.where)
    shop.block.enqueue(60)
    eventually(begun)
    (pid,) = shop.pids(busy=True)
    supervisor.kill()
    eventually(lambda: gone(pid))
    assert not gone(os.getpid())


def test_a_child_that_was_killed_for_not_stopping_is_no_fault_of_its_job(start, shop, begun):
    supervisor = start("worker", "tasks:app", "--processes", "1", "--stop-timeout", "0", **shop.where)
    job = shop.block.enqueue(60)
    eventually(begun)
    supervisor.terminate()
    assert supervisor.wait(scaled(30)) == Exit.OK
    assert (job.info().status, job.info().crashes, shop.queue.count().lost) == (Status.READY, 0, 0)


def test_without_their_supervisor_children_stop_and_hand_back(start, shop, begun):
    supervisor = start("worker", "tasks:app", "--processes", "2", "--stop-timeout", "0.2", **shop.where)
    eventually(lambda: len(shop.pids()) == 2)
    job = shop.nap.enqueue(30)
    eventually(begun)
    pids = shop.pids()
    supervisor.kill()
    eventually(lambda: all(map(gone, pids)))
    assert job.status() is Status.READY
    assert shop.queue.count().lost == 0


def test_a_first_stop_lets_jobs_finish_and_a_second_hands_them_back(start, shop, begun):
    supervisor = start("worker", "tasks:app", "--processes", "2", "-c", "2", **shop.where)
    short, long = shop.nap.enqueue(1.0), shop.nap.enqueue(30)
    eventually(lambda: begun(2))
    supervisor.send_signal(signal.SIGINT)
    assert short.result(timeout=scaled(30))
    assert supervisor.poll() is None
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(scaled(30)) == Exit.OK
    assert long.status() is Status.READY
    counts = shop.queue.count()
    assert (counts.completed, counts.lost, counts.running) == (1, 0, 0)


@pytest.mark.parametrize("lease", [1.5])
def test_a_frozen_process_is_not_kept_alive(start, shop, begun):
    start("worker", "tasks:app", "--processes", "2", "-c", "1", **shop.where)
    eventually(lambda: len(shop.pids()) == 2)
    job = shop.nap.enqueue(2.5)
    eventually(begun)
    (pid,) = shop.pids(busy=True)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert job.result(timeout=scaled(30)) != pid
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: pid in shop.pids())  # a new incarnation
    assert (shop.queue.count().completed, shop.queue.count().lost) == (1, 1)


@pytest.mark.parametrize("lease", [1.5])
def test_a_task_that_holds_the_interpreters_lock_keeps_its_lease(start, shop):
    start("worker", "tasks:app", "--processes", "1", "-c", "1", **shop.where)
    eventually(shop.pids)
    shop.hold_the_lock.enqueue(4).result(timeout=scaled(60))
    assert (shop.queue.count().completed, shop.queue.count().lost) == (1, 0)


def test_a_burst_of_several_processes_ends(run, shop):
    jobs = shop.app.enqueue_many(shop.nap.call(0.01) for _ in range(50))
    done = run("worker", "tasks:app", "--processes", "2", "--burst", **shop.where)
    assert done.returncode == Exit.OK
    assert all(job.result(timeout=0) for job in jobs)


def test_children_that_cannot_work_end_the_supervisor(run, shop):
    done = run("worker", "tasks:app", "--processes", "2", BROKEN="PENSTOCK_SHARED_STATUS", **shop.where)
    assert done.returncode == Exit.USAGE
    assert "this process cannot work" in done.stderr


def test_a_negative_number_of_processes_is_wrong_usage(run, shop):
    done = run("worker", "tasks:app", "--processes", "-1", **shop.where)
    assert (done.returncode, done.stderr.strip()) == (
        Exit.USAGE,
        "penstock: --processes -1: use 1 or more, or 0 for a worker without a supervisor",
    )


# --- for containers, and for development ---


def test_a_check_says_whether_a_worker_of_this_machine_is_alive(start, run, shop):
    dead = run("worker", "tasks:app", "--check", **shop.where)
    assert (dead.returncode, "queue q: no worker" in dead.stderr) == (Exit.FAILED, True)
    worker = start("worker", "tasks:app", "--processes", "0", **shop.where)
    eventually(shop.pids)
    alive = run("worker", "tasks:app", "--check", **shop.where)
    assert (alive.returncode, f":{worker.pid}" in alive.stderr) == (Exit.OK, True)
    worker.kill()
    worker.wait()
    assert run("worker", "tasks:app", "--check", **shop.where).returncode == Exit.FAILED


@pytest.mark.parametrize("address", ["unix:///nowhere", "silent"])
def test_a_check_asks_for_no_restart_while_the_server_is_away(run, shop, address: str):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = shop.where | {
            "PENSTOCK_URL": address.replace("silent", f"valkey://127.0.0.1:{silent.getsockname()[1]}")
        }
        begin = time.monotonic()
        unknown = run("worker", "tasks:app", "--check", **where)
    assert (unknown.returncode, "no server answers" in unknown.stderr) == (Exit.OK, True)
    assert "A restart would not help" in unknown.stderr
    assert time.monotonic() - begin < scaled(9), "the timeout of the probe in the documents is 10 s"


def test_a_check_sees_no_life_in_a_process_that_is_stopped_or_a_zombie(start, shop, capsys):
    worker = start("worker", "tasks:app", "--processes", "0", **shop.where)
    eventually(shop.pids)

    def check():
        """In this process: a check must be faster than the lease."""
        with Penstock(shop.where["PENSTOCK_URL"], prefix=shop.where["SHOP"]) as app:
            return check_health(app, ["q"])

    assert check()
    worker.send_signal(signal.SIGSTOP)
    eventually(lambda: state(worker.pid) == "T")
    assert not check()
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: state(worker.pid) != "T")
    assert check()
    worker.kill()
    eventually(lambda: state(worker.pid) == "Z")
    assert not check()
    worker.wait()
    assert capsys.readouterr().err.count("no worker of this machine") == 2


def test_a_check_finds_a_worker_among_many_programs_with_long_leases(start, shop):
    start("worker", "tasks:app", **shop.where)
    eventually(shop.pids)
    other = shop.app.queue("q").first.bindings
    for n in range(1200):
        turn = other.turn(f"{n:026d}", 1, lease=3600, want=0, address="p/1", sleep=3600)
        shop.app._driver.blocking.run(turn)
    assert not shop.pids(), "hidden behind a thousand others"
    with Penstock(shop.where["PENSTOCK_URL"], prefix=shop.where["SHOP"]) as app:
        assert check_health(app, ["q"])


def test_a_changed_file_starts_the_worker_anew(start, shop, tmp_path: Path):
    reloader = start("worker", "tasks:app", "--reload", **shop.where)
    first = shop.nap.enqueue(0).result(timeout=scaled(30))
    (tmp_path / "tasks.py").write_text("this is no Python")
    eventually(lambda: gone(first))
    (tmp_path / "tasks.py").write_text(TASKS.replace("return os.getpid()", "return -os.getpid()"))
    second = shop.nap.enqueue(0).result(timeout=scaled(30))
    assert second < 0
    reloader.kill()
    eventually(lambda: gone(-second))
