"""The log that the demo reads."""

import gzip

import pytest

from penstock.demo.log import lines
from penstock.errors import FilesError


def test_a_log_may_be_packed_and_lines_may_end_in_any_way(tmp_path):
    text = b"one\r\ntwo\xff\n\nlast"
    (tmp_path / "plain.log").write_bytes(text)
    (tmp_path / "packed.log").write_bytes(gzip.compress(text))
    expected = ["one", "two\ufffd", "", "last"]
    assert list(lines(tmp_path / "plain.log")) == list(lines(tmp_path / "packed.log")) == expected


def test_a_truncated_log_is_reported_after_its_lines(tmp_path):
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress("".join(f"{n * n}\n" for n in range(10_000)).encode())[:-5000])
    reading = lines(path)
    assert [next(reading) for _ in range(5000)] == [str(n * n) for n in range(5000)]
    with pytest.raises(FilesError, match=r"cut\.log\.gz is damaged: it ends at byte"):
        list(reading)


def test_a_missing_log_is_reported(tmp_path):
    with pytest.raises(FilesError, match=r"gone\.log cannot be read: No such file"):
        list(lines(tmp_path / "gone.log"))
