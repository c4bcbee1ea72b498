"""`penstock logs count` with logs of all formats, from folders and pipes, and its tables, files and reports."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.exits import Exit
from penstock.terminal.made_up_log import generate
from tests.command_line import Run
from tests.counting.test_formats import CADDY, CLOUDFRONT, COMBINED, COMMON, IIS, docker

N = 300


def combined(n: int = N) -> str:
    return "".join(f"{line}\n" for line in generate(n))


def reported(run: Run, *words: str) -> dict[str, object]:
    done = run("logs", "count", *words, "--json")
    assert done.returncode == Exit.OK, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("receivers", ["1", "2"])
def test_each_file_is_counted_in_its_own_format(run: Run, tmp_path: Path, receivers: str):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "access.log").write_text(combined())
    (logs / "access.log.1.gz").write_bytes(gzip.compress(combined().encode()))
    (logs / "caddy.log").write_text(f"{CADDY}\n" * N)
    (logs / "container.log").write_text(f"{docker(COMBINED)}\n" * N)
    (logs / "error.log").write_text("2026/03/02 10:05:03 [error] 31#31: *1 open() failed, client: 203.0.113.9\n" * N)
    (logs / "iis.log").write_text(IIS + CLOUDFRONT * 2)
    (logs / "vhosts.log").write_text(f"www.example.org:443 {COMBINED}\n" * N)
    (logs / "cut.log").write_text(f"{COMBINED}\n" * 5 + f"{COMMON}\n" + COMBINED[:-40])
    done = run("logs", "count", "logs", "--by", "host,status", "--json", "--receivers", receivers)
    report = json.loads(done.stdout)
    assert done.returncode == Exit.OK
    assert report["formats"] == {
        "combined": ["access.log", "access.log.1.gz", "cut.log"],
        "caddy": ["caddy.log"],
        "docker+combined": ["container.log"],
        "w3c": ["iis.log"],
        "vhost_combined": ["vhosts.log"],
        "any": ["error.log"],
    }
    # Of IIS three requests, one of which lost its end, and of CloudFront one each; the other lines are directives.
    assert report["hosts"]["203.0.113.9"] == N * 3 + 2 + 2 + 5
    assert set(report["hosts"]) <= {"203.0.113.9", *(line.split()[0] for line in generate(N))}
    assert report["counted"] == N * 5 + 2 + 2 + 5
    assert report["rejected"] == N + 1 + 2
    assert report["lines"] == report["counted"] + report["rejected"] + 4 + 2 * 2
    assert report["rejected_files"] == {"error.log": N}
    assert f"error.log: all {N} lines rejected" in done.stderr
    assert "caddy.log is in the format caddy, and 3 other files in combined" in done.stderr
    assert len(report["rejected_lines"]) <= 10


def test_the_format_is_stated_or_given(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text(combined())
    (tmp_path / "b.log").write_text(re.sub(r"(?m)^(\S+) - \S+ \[", r"www.example.org \1 - [", combined()))
    assert "Format: combined, guessed from the first lines." in run("logs", "count", "a.log").stdout
    done = run("logs", "count", "b.log")
    assert (done.returncode, "no line is in a format that is known" in done.stderr) == (Exit.FAILED, True)
    format = '$host $remote_addr - [$time_local] "$request" $status $body_bytes_sent "$x" "$y"'
    for receivers in ("1", "2"):
        done = run("logs", "count", "b.log", "--by", "host", "--format", format, "--receivers", receivers)
        assert f"Format: {format}." in done.stdout
        assert f"{N} counted, 0 rejected" in done.stdout
        assert re.search(r"^192\.0\.2\.\d+ ", done.stdout, re.MULTILINE)
    done = run("logs", "count", "a.log", "--format", "common")
    assert done.returncode == Exit.FAILED
    assert "in the format combined, not common" in done.stdout


def test_standard_input_and_pipes_are_counted(run: Run, tmp_path: Path):
    text = combined(5000).encode()
    for data in (text, gzip.compress(text), text.removesuffix(b"\n"), b"x" * 3_000_000 + b"\n" + text):
        done = subprocess.run(
            (sys.executable, "-m", "penstock", "logs", "count", "-", "--json"),
            input=data,
            capture_output=True,
            check=False,
            cwd=tmp_path,
        )
        report = json.loads(done.stdout)
        assert (done.returncode, report["counted"], report["formats"]) == (0, 5000, {"combined": ["-"]})
        assert report["rejected"] == (data[:1] == b"x")
    (tmp_path / "a.log").write_bytes(text)
    done = subprocess.run(
        ("bash", "-c", f"{sys.executable} -m penstock logs count --json <(cat a.log) a.log"),
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["counted"] == 10_000
    damaged = subprocess.run(
        (sys.executable, "-m", "penstock", "logs", "count", "-"),
        input=gzip.compress(text)[:-9],
        capture_output=True,
        check=False,
    )
    assert (damaged.returncode, b"is damaged: it ends at byte" in damaged.stderr) == (Exit.FAILED, True)


def test_a_w3c_log_may_come_through_a_pipe(tmp_path: Path):
    rows = "2026-03-02 10:05:03 10.0.0.1 GET /docs/ - 443 - 203.0.113.9 curl/8.5 - 200 0 0 15\n" * 40_000
    done = subprocess.run(
        (sys.executable, "-m", "penstock", "logs", "count", "-", "--by", "host", "--json"),
        capture_output=True,
        input=(IIS + rows).encode(),
        check=True,
    )
    report = json.loads(done.stdout)
    assert (report["hosts"], report["rejected"]) == ({"203.0.113.9": 40_002}, 1)
    assert report["formats"] == {"w3c": ["-"]}


def test_folders_are_searched_with_patterns(run: Run, tmp_path: Path):
    for name in ("a/access.log", "a/b/access.log.1", "a/b/error.log", "a/c/access.txt", "a/.hidden/access.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(combined(10))
    (tmp_path / "a/b/link.log").symlink_to("access.log.1")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")

    def counted(*words: str) -> int:
        report = reported(run, "a", *words)
        assert isinstance(report["counted"], int)
        return report["counted"] // 10

    assert counted() == 1
    assert counted("--recursive") == 5
    assert counted("-r", "--include", "access*") == 4
    assert counted("-r", "--include", "*.log", "--include", "*.txt") == 5
    assert counted("-r", "--exclude", "b/*", "--exclude", ".hidden/*") == 2
    assert counted("-r", "--include", "access*", "--exclude", "*.txt") == 3
    done = run("logs", "count", "a")
    assert "subfolders skipped: a/.hidden, a/b, a/c" in done.stderr
    done = run("logs", "count", "a", "--include", "nothing*")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        Exit.USAGE,
        "penstock: nothing was counted: a contains no file that is wanted",
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_a_folder_that_may_not_be_read_is_named(run: Run, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.log").write_text(combined())
    (tmp_path / "a/b.log").touch(mode=0)
    done = run("logs", "count", "a")
    assert (done.returncode, done.stderr) == (Exit.OK, "penstock: a/b.log skipped: Permission denied\n")


@pytest.mark.parametrize("receivers", ["1", "2"])
def test_every_table_is_shown_with_its_top(run: Run, tmp_path: Path, receivers: str):
    (tmp_path / "a.log").write_text(combined())
    by = "day,hour,country,host,url,status,agent,bytes"
    report = reported(run, "a.log", "--by", by, "--top", "3", "--receivers", receivers)
    for table in ("days", "hours", "countries", "statuses"):
        assert sum(report[table].values()) == N  # type: ignore[attr-defined]
        assert sum(report[f"{table}_bytes"].values()) == report["bytes"]  # type: ignore[attr-defined]
    for table in ("hosts", "urls", "agents"):
        assert len(report[table]) == 3  # type: ignore[arg-type]
    assert list(report["urls"].values()) == sorted(report["urls"].values(), reverse=True)  # type: ignore[attr-defined]
    shown = run("logs", "count", "a.log", "--by", by, "--receivers", receivers).stdout
    for expected in ("2026-03-02 10", "/favicon.ico", "404", "ExampleBot/2.1", "bytes"):
        assert expected in shown
    done = run("logs", "count", "a.log", "--by", by, "--csv", "--receivers", receivers)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    hosts = {row["key"]: int(row["requests"]) for row in rows if row["table"] == "hosts"}
    assert sum(hosts.values()) == N > 3 == len(set(rows[0]) - {"bytes"})
    assert sum(int(row["bytes"]) for row in rows if row["table"] == "urls") == report["bytes"]
    assert [int(row["bytes"]) for row in rows if row["table"] == "all"] == [report["bytes"]]


def test_rejected_lines_are_written_to_a_file(run: Run, tmp_path: Path):
    bad = [b"\xff\t\x1b", b"", COMMON.encode(), *[b"no request"] * 1500]
    (tmp_path / "a.log").write_bytes(combined().encode() + b"".join(line + b"\n" for line in bad))
    report = reported(run, "a.log", "--rejected", "bad.tsv")
    assert report["rejected"] == len(bad)
    rows = [row.split(b"\t", 3) for row in (tmp_path / "bad.tsv").read_bytes().splitlines()]
    assert [row[3] for row in rows] == bad
    assert [(row[0], int(row[1])) for row in rows] == [(b"a.log", N + 1 + place) for place in range(len(bad))]
    assert rows[2][2] == b"in the format common, not combined"


def test_one_process_needs_no_server(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text(combined())
    done = run("logs", "count", "a.log", PENSTOCK_EMBEDDED="0")
    assert (done.returncode, f"{N} counted" in done.stdout) == (Exit.OK, True)
    done = run("logs", "count", "a.log", "--receivers", "2", PENSTOCK_EMBEDDED="0")
    assert (done.returncode, "PENSTOCK_EMBEDDED=0 forbids" in done.stderr) == (Exit.USAGE, True)


def test_a_line_of_any_length_and_a_last_line_without_end_are_counted_once(run: Run, tmp_path: Path):
    line = COMBINED.encode()
    long_ones = [b"x" * size for size in (65_536, 65_537, 255 * 1024, 2**20 - 1, 2**20, 3 * 2**20 + 5)]
    for last in (b"", line, b"x" * (2**20 + 1)):
        parts = [line]
        for long_one in long_ones:
            parts += [long_one, line]
        (tmp_path / "a.log").write_bytes(b"\n".join([*parts, last]))
        report = reported(run, "a.log")
        assert report["counted"] == 1 + len(long_ones) + (last == line)
        assert report["rejected"] == len(long_ones) + last.startswith(b"x")
