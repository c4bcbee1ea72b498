"""Files that are being received."""

from pathlib import Path

import pytest

from penstock.errors import FileDamaged
from penstock.files import partial_files
from penstock.files.download import Download
from penstock.files.partial_files import PartialFiles
from penstock.files.records import BlockHeader


def header(offset: int) -> BlockHeader:
    return BlockHeader("a.log", offset, -1, False, False, b"", False)


def test_a_partial_file_from_before_a_reboot_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    download = Download("a.log", False, False, offset=6)
    PartialFiles(tmp_path).write("f", header(0), b"three ")
    PartialFiles(tmp_path).write("f", header(6), b"words")
    with PartialFiles(tmp_path).open("f", download) as found:
        assert found.read() == b"three "
    monkeypatch.setattr(partial_files, "boot_id", lambda: "another")
    with pytest.raises(FileDamaged, match="before this host was started"):
        PartialFiles(tmp_path).write("f", header(6), b"words")
    with pytest.raises(FileDamaged, match="before this host was started"):
        PartialFiles(tmp_path).open("f", download)
    PartialFiles(tmp_path).remove_others(keep=["f"])
    assert not tmp_path.exists()
