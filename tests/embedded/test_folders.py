"""Where an embedded server keeps its data and its sockets."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from penstock.embedded.client import attach, find_home, status, stop
from penstock.errors import ConfigurationError
from tests.embedded.users import client, is_alive


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


def test_only_its_owner_can_use_the_sockets_and_the_home(home):
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


def test_a_copy_of_a_home_in_use_gets_a_server_of_its_own(home, tmp_path):
    copy = tmp_path / "copy" / ".penstock"
    with attach(home) as original:
        shutil.copytree(home, copy)
        assert status(copy) is None
        assert not stop(copy)
        with attach(copy) as second:
            assert second.pid != original.pid
            assert second.address != original.address
            assert is_alive(original.pid)
        stop(copy)


def test_a_home_deleted_while_in_use_gets_a_new_server_and_the_old_one_ends(home):
    with attach(home) as first:
        shutil.rmtree(home)
        assert status(home) is None
        with attach(home) as second:
            assert second.started
            assert not is_alive(first.pid)


def test_the_home_is_found_in_a_folder_above(tmp_path):
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
def test_a_home_that_another_user_planted_is_neither_found_nor_used(tmp_path):
    tmp_path.chmod(0o1777)
    planted = tmp_path / ".penstock"
    planted.mkdir()
    os.chown(planted, 65534, 65534)
    (tmp_path / "mine").mkdir()
    assert find_home(tmp_path / "mine") != planted
    with pytest.raises(ConfigurationError, match="was made by another user"):
        attach(planted)
