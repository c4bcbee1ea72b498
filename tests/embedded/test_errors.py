"""What can be wrong with an embedded server, each as one clear error."""

import os
import subprocess
import sys
import tempfile

import pytest

from penstock.embedded import keeper
from penstock.embedded.client import attach, status, stop
from penstock.errors import ConfigurationError, ServerUnavailable
from tests.embedded.users import SOURCE, client, eventually, in_own_mounts


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


def test_data_cut_off_at_its_end_is_read_up_to_the_cut(home):
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
        answer = user(home, *in_own_mounts(f"mount -t tmpfs -o ro none {home}")).attach()
        assert answer["error"] == "ConfigurationError"
        assert "cannot write to" in answer["text"]
        assert "Read-only file system" in answer["text"]


def test_a_full_disk_is_one_clear_error(tmp_path, user):
    """With little space the keeper cannot start. With a little more the server cannot, and the error quotes its log."""
    home = tmp_path / "disk" / ".penstock"
    home.parent.mkdir()
    texts = []
    for pages in range(1, 6):
        setup = f"mount -t tmpfs -o size={pages * os.sysconf('SC_PAGE_SIZE')} none {home.parent}"
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            answer = user(home, *in_own_mounts(setup), XDG_RUNTIME_DIR=short).attach()
        assert answer["error"] == "ServerUnavailable", (pages, answer)
        assert f"the disk of {home} is full: free some space" in answer["text"]
        assert "No space left on device" in answer["text"]
        assert "\n" not in answer["text"]
        texts.append(answer["text"])
    assert "append only file" in "".join(texts)


def test_a_disk_that_fills_up_later_refuses_writes_and_users_can_still_attach(tmp_path):
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
    refused = user(home, "sh", "-c", 'ulimit -f 0; exec "$@"', "sh").attach()
    assert refused["error"] == "ServerUnavailable"
    assert str(home) in refused["text"]
    assert "File too large" in refused["text"]


def test_a_lock_whose_holder_does_not_answer_is_one_clear_error(home):
    home.mkdir()
    lock = keeper.take_lock(str(home))
    assert lock is not None
    with pytest.raises(ServerUnavailable, match=r"another process holds .*keeper\.lock but does not answer: end it"):
        attach(home, timeout=0.2)
    os.close(lock)


def test_an_unknown_fsync_is_refused(home):
    with pytest.raises(ConfigurationError, match="fsync must be one of no, everysec, always, not 'sometimes'"):
        attach(home, fsync="sometimes")
    assert not home.exists()
