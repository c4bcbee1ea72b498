"""Paths become sources, each with a name of its own; everything that cannot be sent is refused with a reason."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FilesError
from penstock.files import source
from penstock.files.source import Source, find_sources
from tests.speed import scaled


def write(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(paths: Any) -> list[str]:
    return [source.name for source in find_sources(paths)]


def test_a_folder_stands_for_its_regular_files_in_name_order(tmp_path: Path):
    for name in ("b.log", "a.log.10", "a.log.2", ".hidden", "é", "deeper/c.log", "one\ttab"):
        write(tmp_path / name)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "current").symlink_to("b.log")
    (tmp_path / "far").symlink_to("deeper/c.log")
    (tmp_path / "folder").symlink_to("deeper")
    assert names(tmp_path) == [".hidden", "a.log.10", "a.log.2", "b.log", "far", "one\ttab", "é"]
    assert names(str(tmp_path)) == names([tmp_path])
    assert names(tmp_path / "folder") == ["c.log"]


def test_a_file_with_several_names_in_a_folder_is_sent_once(tmp_path: Path):
    os.link(write(tmp_path / "access.20260302"), tmp_path / "current.log")  # as `rotatelogs -L` makes it
    (tmp_path / "a.log").symlink_to("access.20260302")
    write(tmp_path.parent / "o.log")
    for name in ("l1.log", "l2.log"):
        (tmp_path / name).symlink_to("../o.log")
    assert names(tmp_path) == ["access.20260302", "l1.log"]


def test_sources_keep_the_order_given(tmp_path: Path):
    b, a, folder = write(tmp_path / "b"), write(tmp_path / "a"), write(tmp_path / "d" / "0").parent
    given: list[str | Path] = [b, str(folder), a]
    assert find_sources(iter(given)) == [Source(b, "b"), Source(folder / "0", "0"), Source(a, "a")]


def test_an_empty_folder_has_no_sources(tmp_path: Path):
    assert find_sources(tmp_path) == []


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["x/access.log"], ["access.log"]),
        (["web1/access.log", "web2/access.log", "x/error.log"], ["web1/access.log", "web2/access.log", "error.log"]),
        (["a/log/app", "b/log/app", "b/app"], ["a/log/app", "b/log/app", "b/app"]),
        (["a/log/app", "b/log/app", "c/app", "d/e"], ["a/log/app", "b/log/app", "c/app", "e"]),
        (["a/b/app", "b/app"], ["a/b/app", "{}/b/app"]),
        (["app", "a/app"], ["{}/app", "a/app"]),
        (["a/../b/app", "a/app"], ["b/app", "a/app"]),
        (["../{}/a/app", "b/app"], ["a/app", "b/app"]),
    ],
)
def test_files_of_one_name_are_distinguished_by_their_folders(tmp_path: Path, monkeypatch, paths, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    given = [path.format(tmp_path.name) for path in paths]
    for path in given:
        write(tmp_path / path)
    assert names(given) == [name.format(tmp_path.name) for name in expected]


def test_a_link_keeps_its_name_and_dots_after_it_are_resolved(tmp_path: Path):
    write(tmp_path / "far" / "deep" / "x")
    write(tmp_path / "far" / "log", b"1")
    write(tmp_path / "near" / "log", b"2")
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "deep")
    given = [tmp_path / "near" / "link" / "x", f"{tmp_path}/near/link/../log", tmp_path / "near" / "log"]
    assert names(given) == ["x", "far/log", "near/log"]


def test_a_file_at_the_root_needs_no_folder(monkeypatch):
    assert [*source._named([Path("/log"), Path("/a/log")])] == [(Path("/log"), "log"), (Path("/a/log"), "a/log")]


def test_one_error_names_every_path_that_cannot_be_sent(tmp_path: Path, monkeypatch):
    good = write(tmp_path / "good")
    write(tmp_path / "locked")
    folder = write(tmp_path / "d" / "f").parent
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "link").symlink_to("good")
    os.link(good, tmp_path / "d" / "hard")
    strange = tmp_path / os.fsdecode(b"n\xff")
    write(strange)
    opener = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opener(_unlocked(path), *rest))
    given = ["missing", "good", "locked", "fifo", "dangling", "good", "link", "d", "d/f", "good/under", "a\0b"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    with pytest.raises(FilesError) as caught:
        find_sources([*(f"{tmp_path}/{name}" for name in given), tmp_path / "socket", "/dev/null", strange, ""])
    assert str(caught.value).replace(str(tmp_path), "") == "\n  ".join(
        [
            "nothing was sent, because of",
            "/missing: No such file or directory",
            "/locked: Permission denied",
            "/fifo: a fifo, not a regular file",
            "/dangling: No such file or directory",
            "/good: given twice",
            "/link: the same file as /good",
            "/d/hard: the same file as /good",
            "/d/f: given twice",
            "/good/under: Not a directory",
            "'/a\\x00b': embedded null byte",
            "/socket: a socket, not a regular file",
            "/dev/null: a device, not a regular file",
            ": an empty path",
            "'/n\\udcff': its name is not UTF-8, rename it",
        ]
    )
    assert names(folder) == ["f", "hard"]


def _unlocked(path: Any) -> Any:
    if str(path).endswith("locked"):
        raise PermissionError(13, "Permission denied")
    return path


def test_without_paths_the_error_names_the_fix():
    with pytest.raises(FilesError, match="name at least one file or folder"):
        find_sources([])


def test_thousands_of_files_of_one_name_take_linear_time(tmp_path: Path):
    for number in range(2000):
        write(tmp_path / f"{number:05}" / "access.log")
    began = time.monotonic()
    found = names(sorted(tmp_path.glob("*/*")))
    assert time.monotonic() - began < scaled(10)
    assert found == [f"{number:05}/access.log" for number in range(2000)]
