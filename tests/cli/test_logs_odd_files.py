"""One odd file never costs the others: links, empty files, W3C logs without columns, other encodings, split lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.cli.exits import Exit
from tests.cli.test_logs_formats import reported
from tests.command_line import Run
from tests.counting.test_formats import CLOUDFRONT, COMBINED, COMMON, IIS
from tests.counting.test_split_lines import cri, docker

receivers = pytest.mark.parametrize("receivers", ["1", "2"])


@receivers
def test_a_log_with_several_names_is_counted_once(run: Run, tmp_path: Path, receivers: str):
    logs = tmp_path / "d"
    logs.mkdir()
    (logs / "access.20260302").write_text(f"{COMMON}\n")
    os.link(logs / "access.20260302", logs / "current.log")  # as `rotatelogs -L` makes it
    (logs / "soft.log").symlink_to("access.20260302")
    (tmp_path / "o.log").write_text(f"{COMBINED}\n")
    (logs / "l1.log").symlink_to("../o.log")
    (logs / "l2.log").symlink_to("../o.log")
    (logs / "nowhere.log").symlink_to("gone.log")
    for words in (["d"], ["d", "o.log"], ["o.log", "d", "d/l1.log"], ["d", "d"]):
        done = run("logs", "count", *words, "--json", "--strict", "--receivers", receivers)
        assert done.returncode == Exit.OK, done.stderr
        assert json.loads(done.stdout)["counted"] == 2
        assert "is the same file as" in done.stderr
    assert "d/current.log is the same file as d/access.20260302: counted once" in done.stderr


@receivers
def test_a_w3c_log_without_its_columns_is_named(run: Run, tmp_path: Path, receivers: str):
    (tmp_path / "d").mkdir()
    few = "#Fields: date time cs-method\n2026-03-02 10:05:03 GET\n"
    (tmp_path / "d/a.log").write_text(few)
    (tmp_path / "d/b.log").write_text(IIS + few + CLOUDFRONT)
    (tmp_path / "d/c.log").write_text(few + CLOUDFRONT)
    (tmp_path / "d/d.log").write_text(f"{COMBINED}\n")
    (tmp_path / "d/e.log").write_bytes(b"\xef\xbb\xbf" + CLOUDFRONT.encode() + b"#Fields:\nx\n")
    for words in ([], ["--format", "w3c"]):
        done = run("logs", "count", "d", "--by", "host", "--json", "--receivers", receivers, *words)
        report = json.loads(done.stdout)
        assert done.returncode == Exit.OK, done.stderr
        assert report["hosts"] == {"203.0.113.9": 2 + 1 + 1 + 1 + (not words)}
        rejected = {
            (row["file"], row["line"]) for row in report["rejected_lines"] if "needs the fields" in row["reason"]
        }
        assert rejected == {("a.log", 2), ("b.log", 9), ("c.log", 2), ("e.log", 5)}


def test_a_file_in_another_encoding_is_named(run: Run, tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.log").write_bytes(f"{COMBINED}\n".encode("utf-16"))
    (tmp_path / "d/b.log").write_bytes(b"\xef\xbb\xbf" + f"{COMBINED}\r\n".encode() * 2)
    (tmp_path / "d/c.log").touch()
    (tmp_path / "d/d.log").write_bytes(b"\n\n")
    done = run("logs", "count", "d", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["counted"], report["rejected"]) == (Exit.OK, 2, 2)
    assert "d/a.log skipped: it is UTF-16 text" in done.stderr.replace("penstock: a.log", "penstock: d/a.log")


@pytest.mark.parametrize("wrap", [cri, docker])
def test_split_lines_are_joined_wherever_the_text_is_cut(run: Run, tmp_path: Path, wrap):
    """The text is read in pieces of about a megabyte; lines of a container are split after 16 KiB."""
    line = COMBINED.replace("curl/8.5", "x" * 40_000)
    pieces = [wrap(line[:16_384], last=False), wrap(line[16_384:32_768], last=False), wrap(line[32_768:])]
    lines = [*pieces, wrap("an error", stream="stderr")] * 200
    (tmp_path / "a.log").write_bytes(b"".join(line + b"\n" for line in lines))
    report = reported(run, "a.log", "--by", "host")
    assert (report["lines"], report["counted"], report["rejected"]) == (800, 200, 200)
    assert "400 pieces of split lines joined" in run("logs", "count", "a.log").stdout


def test_many_large_sizes_have_an_exact_sum(run: Run, tmp_path: Path):
    line = COMBINED.replace("5120", "999999999999999")
    (tmp_path / "a.log").write_text(f"{line}\n" * 20 + COMBINED.replace("5120", f"{10**18}") + "\n")
    for receivers in ("1", "2"):
        report = reported(run, "a.log", "--by", "day,bytes", "--receivers", receivers)
        assert (report["bytes"], report["rejected"]) == (20 * 999999999999999, 1)
        assert report["days_bytes"] == {"2026-03-02": 20 * 999999999999999}
        assert report["rejected_lines"] == [
            {"file": "a.log", "line": 21, "reason": "its size is more than a table can hold"}
        ]
