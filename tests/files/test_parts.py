"""Files that are half there."""

from pathlib import Path

import pytest

from penstock.errors import FileDamaged
from penstock.files import parts
from penstock.files.blocks import Header
from penstock.files.intake import Place


def head(offset: int) -> Header:
    return Header("a.log", offset, -1, False, False, b"", False)


def test_what_was_written_before_the_host_was_started_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = Place("a.log", False, False, offset=6)
    parts.Folder(tmp_path).write("f", head(0), b"three ")
    parts.Folder(tmp_path).write("f", head(6), b"words")
    with parts.Folder(tmp_path).open("f", place) as found:
        assert found.read() == b"three "
    monkeypatch.setattr(parts, "boot", lambda: "another")
    with pytest.raises(FileDamaged, match="before this host was started"):
        parts.Folder(tmp_path).write("f", head(6), b"words")
    with pytest.raises(FileDamaged, match="before this host started"):
        parts.Folder(tmp_path).open("f", place)
    parts.Folder(tmp_path).clear(keep=["f"])
    assert not tmp_path.exists()
