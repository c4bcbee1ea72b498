"""Nothing that a receiver has saved is replaced without a word."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from penstock import Channel
from penstock.files.saving import Saved
from tests.files import test_recognition
from tests.files.test_recognition import rotate

channel, place = test_recognition.channel, test_recognition.place  # fixtures


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def save(channel: Channel, folder: Path) -> list[Saved]:
    return [*channel.receiver("r").save(folder / "out", wait=0)]


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize("both_at_once", [True, False])
@pytest.mark.parametrize(
    ("plain", "packed"),
    [("s/access.log", "s/access.log.gz"), ("s/x.log.1", "s/x.log.1.gz"), ("s1/access.log", "s2/access.log.gz")],
)
def test_a_packed_log_is_saved_beside_a_plain_one_of_its_name(
    channel: Channel, tmp_path: Path, plain: str, packed: str, both_at_once: bool
):
    paths = [write(tmp_path / plain, "new\n"), write(tmp_path / packed, "old\n")]
    for some in [paths] if both_at_once else [paths[:1], paths[1:]]:
        channel.send_lines(some, final=True)
    saved = save(channel, tmp_path)
    assert texts(tmp_path) == {Path(plain).name: "new\n", f"{Path(packed).name}.text": "old\n"}
    assert [one.kept_as for one in saved] == [None, None]


def test_a_plain_log_takes_the_name_of_a_packed_one_that_came_before(channel: Channel, tmp_path: Path):
    channel.send_lines(write(tmp_path / "s" / "access.log.gz", "old\n"))
    assert len(save(channel, tmp_path)) == 1
    channel.send_lines(write(tmp_path / "s" / "access.log", "new\n"))
    (saved,) = save(channel, tmp_path)
    assert saved.kept_as == tmp_path / "out" / "access.log~1"
    assert texts(tmp_path) == {"access.log": "new\n", "access.log~1": "old\n"}


@pytest.mark.parametrize("again", [False, True])
def test_logs_of_one_name_from_several_folders_are_kept(channel: Channel, tmp_path: Path, again: bool):
    """`again`: the receiver died before it settled, and everything comes again."""
    for n in range(3):
        channel.send_lines(write(tmp_path / f"site{n}" / "access.log", f"{n}\n"))
        if again:
            next(channel.receiver("r").save(tmp_path / "out", wait=0))
        assert [one.path.name for one in save(channel, tmp_path)] == ["access.log"]
    assert texts(tmp_path) == {"access.log": "2\n", "access.log~1": "0\n", "access.log~2": "1\n"}
    with (tmp_path / "site0" / "access.log").open("a") as log:
        log.write("more\n")
    channel.send_lines(tmp_path / "site0" / "access.log")
    save(channel, tmp_path)
    assert sorted(texts(tmp_path).values()) == ["0\nmore\n", "1\n", "2\n"]


def test_a_file_of_bytes_that_replaces_another_one_says_so(channel: Channel, tmp_path: Path):
    for n in range(2):
        channel.send(write(tmp_path / f"site{n}" / "access.log", f"{n}\n"))
    assert [(one.path.name, one.replaced, one.kept_as) for one in save(channel, tmp_path)] == [
        ("access.log", False, None),
        ("access.log", True, None),
    ]
    channel.send(tmp_path / "site1" / "access.log", again=True)
    assert [one.replaced for one in save(channel, tmp_path)] == [False]  # the same bytes


def test_a_rotated_log_is_saved_once_under_its_new_name(channel: Channel, tmp_path: Path):
    log = write(tmp_path / "s" / "access.log", "one\n")
    channel.send_lines(log)
    save(channel, tmp_path)
    with log.open("a") as file:
        file.write("two\n")
    rotate(log, "create")
    channel.send_lines(log)
    save(channel, tmp_path)
    assert texts(tmp_path) == {"access.log.1": "one\ntwo\n", "access.log": ""}
    write(log, "three\n")
    channel.send_lines(log)
    save(channel, tmp_path)
    assert texts(tmp_path) == {"access.log.1": "one\ntwo\n", "access.log": "three\n"}


def test_a_log_that_had_nothing_new_at_its_rotation_is_kept(channel: Channel, tmp_path: Path):
    """Its rename is not sent."""
    log = write(tmp_path / "s" / "access.log", "one\n")
    channel.send_lines(log)
    rotate(log, "create")
    channel.send_lines(write(log, "two\n"))
    saved = save(channel, tmp_path)
    assert texts(tmp_path) == {"access.log": "two\n", "access.log~1": "one\n"}
    assert saved[1].kept_as == tmp_path / "out" / "access.log~1"


def test_the_log_of_the_rotation_before_is_kept(channel: Channel, tmp_path: Path):
    """Both rotated logs come under the name `access.log.1`."""
    log = write(tmp_path / "s" / "access.log", "1\n")
    for n in (2, 3):
        channel.send_lines(log)
        with log.open("a") as file:
            file.write(f"{n} late\n")
        rotate(log, "create")
        write(log, f"{n}\n")
    channel.send_lines(log)
    save(channel, tmp_path)
    assert texts(tmp_path) == {"access.log": "3\n", "access.log.1": "2\n3 late\n", "access.log.1~1": "1\n2 late\n"}


def test_a_log_that_is_sent_again_replaces_itself(channel: Channel, tmp_path: Path):
    log = write(tmp_path / "s" / "access.log", "one\n")
    channel.send_lines(log)
    channel.send_lines(write(log, "one\ntwo\n"), again=True)
    assert [one.kept_as for one in save(channel, tmp_path)] == [None, None]
    assert texts(tmp_path) == {"access.log": "one\ntwo\n"}
