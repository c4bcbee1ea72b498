"""A temporary server runs as long as its block, and not longer."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import ConfigurationError, Penstock
from penstock.testing import TemporaryServer, clear
from tests.servers import eventually


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_server_ends_with_its_block(folders: Path):
    with TemporaryServer() as server, Penstock(server.address) as app:
        pid = server.pid
        app.queue("mail").put("hello")
        assert app.queue("mail").count().ready == 1
        assert is_running(pid)
        assert len(list(folders.iterdir())) == 1
    assert not is_running(pid)
    assert list(folders.iterdir()) == []


async def test_a_temporary_server_works_in_an_async_test(folders: Path):
    async with TemporaryServer() as server, Penstock(server.address) as app:
        pid = server.pid
        await app.queue("mail").put.aio("hello")
        assert (await app.queue("mail").count.aio()).ready == 1
    assert not is_running(pid)
    assert list(folders.iterdir()) == []


def test_two_temporary_servers_share_nothing():
    with TemporaryServer() as one, TemporaryServer() as other:
        assert one.pid != other.pid
        with Penstock(one.address) as app, Penstock(other.address) as another:
            app.queue("mail").put("hello")
            assert another.queue("mail").count().ready == 0


def test_a_temporary_server_can_be_started_again_and_is_empty_then():
    server = TemporaryServer()
    for _ in range(2):
        with server, Penstock(server.address) as app:
            assert app.queue("mail").count().ready == 0
            app.queue("mail").put("hello")


def test_a_temporary_server_ends_when_its_block_raises(folders: Path):
    with contextlib.suppress(ZeroDivisionError), TemporaryServer() as server:
        pid = server.pid
        _ = 1 / 0
    assert not is_running(pid)
    assert list(folders.iterdir()) == []


def test_a_temporary_server_ends_when_its_process_is_killed():
    script = """
from penstock.testing import TemporaryServer, clear
with TemporaryServer() as server:
    print(server.pid, flush=True)
    import threading
    threading.Event().wait()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_running(pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    eventually(lambda: not is_running(pid))


def test_clear_accepts_the_default_prefix_on_a_temporary_server():
    with TemporaryServer() as server, Penstock(server.address) as app, Penstock(f"{server.address}?db=1") as other:
        for one in (app, other):
            one.queue("mail").put("hello")
            assert clear(one) > 0
            assert one.queue("mail").count().ready == 0


def test_outside_its_block_a_temporary_server_has_no_address():
    server = TemporaryServer()
    with pytest.raises(RuntimeError, match="use it inside its `with` block"):
        _ = server.address
    with server:
        pass
    with pytest.raises(RuntimeError, match="use it inside its `with` block"):
        _ = server.pid


def test_a_temporary_server_is_refused_where_servers_of_our_own_are_forbidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_EMBEDDED", "0")
    with pytest.raises(ConfigurationError, match="forbids the embedded server"), TemporaryServer():
        pass
