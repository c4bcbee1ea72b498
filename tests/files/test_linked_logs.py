"""A log that is sent through a link: what was written before its rotation is found where the link led."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Channel
from tests.files import test_recognition
from tests.files.manual_run import sending
from tests.files.test_recognition import age, lines, once, received

channel, place = test_recognition.channel, test_recognition.place  # fixtures


def append(path: Path, text: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as log:
        log.write(text)


def point(link: Path, target: Path) -> None:
    """Let a link lead elsewhere, in one step."""
    new = link.with_name("new-link")
    new.symlink_to(target)
    new.rename(link)


def rename_target(folder: Path, target: Path) -> None:
    target.rename(target.with_name("0.log.20260302"))
    append(target, b"third\n")


def pack_target(folder: Path, target: Path) -> None:
    packed = target.with_name("0.log.20260302.gz")
    packed.write_bytes(gzip.compress(target.read_bytes()))
    age(packed)
    target.unlink()
    append(target, b"third\n")


def restart(folder: Path, target: Path) -> None:
    """As the kubelet does it when a container starts again."""
    append(target.with_name("1.log"), b"third\n")
    point(folder / "app.log", target.with_name("1.log"))


def move_to_another_folder(folder: Path, target: Path) -> None:
    later = folder.parent / "later" / target.name
    append(later, b"third\n")
    point(folder / "app.log", later)


@pytest.mark.parametrize("size", [0, 200])
@pytest.mark.parametrize("rotate", [rename_target, pack_target, restart, move_to_another_folder])
@pytest.mark.parametrize("given", ["", "app.log"])
def test_a_log_behind_a_link_loses_no_lines_in_its_rotation(
    channel: Channel,
    tmp_path: Path,
    rotate: Callable[[Path, Path], None],
    size: int,
    given: str,
):
    folder, target = tmp_path / "containers", tmp_path / "pods" / "0.log"
    folder.mkdir()
    first = lines("first", size) + b"one\n"
    append(target, first)
    (folder / "app.log").symlink_to(target)
    channel.send_lines(folder / given)
    append(target, b"second\n")
    rotate(folder, target)
    sent = channel.send_lines(folder / given)
    assert received(channel) == once(first, b"second\n", b"third\n")
    assert [file.name for file in sent.files][1] == "app.log"
    assert channel.send_lines(folder / given).files == []


def test_a_linked_folder_that_leads_elsewhere_loses_no_lines(channel: Channel, tmp_path: Path):
    append(tmp_path / "day1" / "access.log", b"one\n")
    (tmp_path / "current").symlink_to(tmp_path / "day1")
    channel.send_lines(tmp_path / "current")
    append(tmp_path / "day1" / "access.log", b"second\n")
    append(tmp_path / "day2" / "access.log", b"third\n")
    point(tmp_path / "current", tmp_path / "day2")
    channel.send_lines(tmp_path / "current")
    assert received(channel) == once(b"one\n", b"second\n", b"third\n")


def test_logs_that_were_rotated_behind_links_are_saved_apart(channel: Channel, tmp_path: Path):
    """Their targets have the same name."""
    folder = tmp_path / "containers"
    folder.mkdir()
    for name in ("a", "b"):
        append(tmp_path / name / "0.log", name.encode() + b" one\n")
        (folder / f"{name}.log").symlink_to(tmp_path / name / "0.log")
    channel.send_lines(folder)
    for name in ("a", "b"):
        append(tmp_path / name / "0.log", name.encode() + b" second\n")
        os.rename(tmp_path / name / "0.log", tmp_path / name / "0.log.20260302")
        append(tmp_path / name / "0.log", name.encode() + b" third\n")
    channel.send_lines(folder)
    saved = {one.name: one.path.read_bytes() for one in channel.receiver("r").save(tmp_path / "in", wait=0)}
    assert saved == {
        "a.log": b"a third\n",
        "b.log": b"b third\n",
        "a.log.20260302": b"a one\na second\n",
        "b.log.20260302": b"b one\nb second\n",
    }


def test_an_upload_that_was_interrupted_continues_behind_the_link(channel: Channel, tmp_path: Path):
    target, link = tmp_path / "pods" / "0.log", tmp_path / "app.log"
    text = lines("first", 60_000)
    append(target, text)
    link.symlink_to(target)
    run = sending(channel, [link], ["r"], lines=True)
    while not channel.info().last:
        run.advance()
    run.kill()
    rename_target(tmp_path, target)
    channel.send_lines(link, source="host")
    assert received(channel) == once(text, b"third\n")
