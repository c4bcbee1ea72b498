"""`penstock logs count`: exact whatever the logs are like, whoever dies on the way, and nothing is left behind."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from penstock.cli.exits import Exit
from penstock.cli.logs.child import Work
from penstock.cli.logs.processes import DEATHS, counting_processes
from penstock.errors import PenstockError
from penstock.terminal.made_up_log import generate
from tests.command_line import Command, Run, Start
from tests.servers import Server, eventually
from tests.speed import scaled

LOGS = Path(__file__).parents[3] / "shared/data/logs"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a temporary file."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


def days(lines: list[str]) -> dict[str, int]:
    return dict(
        sorted(
            Counter(
                datetime.strptime(line.split("[")[1][:11], "%d/%b/%Y").strftime("%Y-%m-%d") for line in lines
            ).items()
        )
    )


def children(pid: int, role: str = "") -> list[int]:
    """Those that send or count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(") ")[2].split()[1])
            words = (stat.parent / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if parent == pid and "penstock.cli.logs.child" in words and words[-2].startswith(role):
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("receivers", [1, 2])
def test_logs_of_all_kinds_are_counted_line_by_line(run: Run, tmp_path: Path, receivers: int):
    lines = list(generate(3000, seed=5))
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("\r\n".join(lines[:1000]))
    (folder / "b.log.gz").write_bytes(b"".join(gzip.compress(f"{line}\n".encode()) for line in lines[1000:1100]))
    (folder / "c.log").touch()
    (folder / "d.log.gz").write_bytes(gzip.compress(b""))
    odd = b"\xff\n\nno request\n" + b"x" * 700_000 + b"\n"
    (tmp_path / "e.log").write_bytes("\n".join(lines[1100:]).encode() + b"\n" + odd)
    options = ["--limit-mb", "2", "--top", "3", "--json", "--receivers", str(receivers)]
    done = run("logs", "count", "logs", "e.log", "--by", "day,country,host", *options)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert (report["lines"], report["counted"], report["rejected"], report["files"]) == (3004, 3000, 4, 5)
    assert report["days"] == days(lines)
    assert {day: sum(counts.values()) for day, counts in report["by_day"].items()} == report["days"]
    names = sum(line.startswith("host-") for line in lines)
    assert report["countries"] == {"private": 3000 - names, "name": names}
    assert report["hosts"] == dict(Counter(line.split()[0] for line in lines).most_common(3))
    rejected = sorted((one["file"], one["line"]) for one in report["rejected_lines"])
    assert rejected == [("e.log", 1901 + number) for number in range(4)]
    assert (0 < report["peak_bytes"] <= 2 * 2**20) == (receivers > 1)
    assert report["deaths"] == 0
    assert report["rejected_files"] == {}


def test_people_get_tables_and_nothing_that_controls_a_terminal(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join([*generate(500), *["\x1b[31m"] * 7]))
    done = run("logs", "count", "a.log", "--by", "day,country,host")
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert "\x1b" not in done.stdout
    for expected in (
        "2026-03-02",
        "█",
        "addresses that are not routed",
        "not in the format combined",
        "and 2 more lines",
    ):
        assert expected in done.stdout
    assert "507 lines in 1 file: 500 counted, 7 rejected." in done.stdout
    only = json.loads(run("logs", "count", "a.log", "--by", "day", "--json").stdout)
    assert (only["countries"], only["by_day"]) == ({}, {})
    assert "hosts" not in only


def test_a_damaged_log_is_reported_and_its_readable_lines_are_counted(run: Run, tmp_path: Path):
    lines = list(generate(2000))
    packed = gzip.compress("".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "a.log.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "b.log").write_text("\n".join(lines))
    done = run("logs", "count", "a.log.gz", "b.log", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == Exit.FAILED
    assert "a.log.gz is damaged: it ends at byte" in done.stderr
    assert done.stderr.count("\n") == 1
    readable = report["counted"] - 2000
    assert 500 < readable < 2000
    assert report["days"] == days(lines[:readable] + lines)
    assert report["fault"] in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["gone.log"], Exit.USAGE, "nothing was counted: gone.log: No such file or directory"),
        (["-", "--receivers", "2"], Exit.USAGE, "- can be read by one process only: leave out --receivers"),
        (["a.txt", "--rejected", "r", "--receivers", "2"], Exit.USAGE, "--rejected is written by one process"),
        (["-", "--follow", "--url", "x"], Exit.USAGE, "one process only: leave out --url and --follow"),
        (["-", "--identity", "content"], Exit.USAGE, "one process only: leave out --identity content"),
        (["a.txt", "--rejected", "r", "--follow"], Exit.USAGE, "written by one process: leave out --follow"),
        (["a.txt", "--final"], Exit.USAGE, "--final is about --follow: without it, every log is counted to its end"),
        (["a.txt", "--source", "web 1"], Exit.USAGE, "source name 'web 1': use 1 to 100 letters"),
        (["a.txt", "--csv", "--json"], Exit.USAGE, "choose one"),
        (["a.txt", "--format", "combind"], Exit.USAGE, "no format is called 'combind'. Choose one of combined, common"),
        (["a.txt", "--rejected", "gone/r"], Exit.USAGE, "gone/r cannot be written: No such file or directory"),
        (["/dev/fd/0"], Exit.USAGE, "/dev/fd/0: a device, not a regular file"),
        (["/proc/self/fd/0"], Exit.USAGE, "a device, not a regular file"),
        (["/dev/null"], Exit.USAGE, "/dev/null: a device, not a regular file"),
        ([], Exit.USAGE, "nothing was counted: name at least one file or folder, or - for standard input"),
        (["a.txt", "--by", "day,planet"], Exit.USAGE, "not by day, planet"),
        (["a.txt", "--by", ","], Exit.USAGE, "not by none"),
        (["a.txt", "--mmdb", "a.txt"], Exit.USAGE, "cannot be read as a database of countries"),
        (["a.txt", "--receivers", "65"], Exit.USAGE, "--receivers 65: use 1 to 64"),
        (["a.txt", "--limit-mb", "1"], Exit.USAGE, "--limit-mb 1: use 2 or more"),
        (["a.txt", "--url", "unix:///nowhere"], Exit.SERVER, "no server answers at unix:///nowhere"),
        (["a.txt"], Exit.FAILED, "no line is in a format that is known: see --format"),
    ],
)
def test_impossible_options_are_reported_in_one_line(
    penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: Exit, expected: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("no log\n")
    found, _, said = penstock("logs", "count", *words)
    assert found == code
    assert said.splitlines()[-1].startswith("penstock: ")
    assert expected in said
    assert said.count("\n") == 1 or code == Exit.SERVER


def test_totals_are_exact_though_processes_are_killed_and_frozen(start: Start, tmp_path: Path):
    lines = list(generate(10_000))
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "a.log").write_bytes(text * 30)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(text, 1) * 10)
    cut = gzip.compress(text, 1)
    (tmp_path / "0.log.gz").write_bytes(cut[:-8])  # reported, and then not sent again by the next sender
    counting = start("logs", "count", "0.log.gz", "a.log", "b.log.gz", "--limit-mb", "2", "--receivers", "3", "--json")
    eventually(lambda: len(children(counting.pid, "count")) == 3)
    time.sleep(0.7)  # they have claimed work
    counters = children(counting.pid, "count")
    try:
        for pid in counters:
            os.kill(pid, signal.SIGSTOP)  # now it cannot end
        killed = set[int]()
        for _ in range(2):
            eventually(lambda: set(children(counting.pid, "send")) - killed)
            time.sleep(0.5)
            (pid,) = children(counting.pid, "send")
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        os.kill(counters[0], signal.SIGKILL)
        os.kill(counters[1], signal.SIGCONT)
        out, err = counting.communicate(timeout=scaled(60))
    finally:
        for pid in counters:  # what is frozen would not even notice that its parent has gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    report = json.loads(out)
    assert (counting.returncode, "0.log.gz is damaged" in err) == (Exit.FAILED, True)
    assert report["days"] == {day: 41 * number for day, number in days(lines).items()}
    assert (report["lines"], report["rejected"]) == (410_000, 0)
    assert report["deaths"] == 3


def test_an_interrupted_count_leaves_no_server(start: Start, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(20_000)) * 20)
    counting = start("logs", "count", "a.log", "--receivers", "2")
    eventually(lambda: len(children(counting.pid)) == 3)
    pids = [*children(counting.pid), *servers_of(tmp_path)]
    counting.send_signal(signal.SIGTERM)
    _, errors = counting.communicate(timeout=scaled(30))
    assert (counting.returncode, errors.splitlines()[-1]) == (Exit.INTERRUPTED, "penstock: interrupted")
    assert len(pids) > 3
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def servers_of(folder: Path) -> list[int]:
    """Processes whose working directory is below it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if stat.readlink().is_relative_to(folder / "temporary"):
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def test_an_interrupted_count_leaves_no_process_and_no_key(start: Start, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(20_000)) * 20)
    with Server() as server:
        server.client.set("{penstock-logs:files:mine}:x", "mine")
        counting = start("logs", "count", "a.log", "--receivers", "2", "--url", server.address)
        eventually(lambda: server.client.dbsize() > 3)
        eventually(lambda: len(server.client.client_list()) > 3)
        pids = children(counting.pid)
        counting.send_signal(signal.SIGINT)
        _, errors = counting.communicate(timeout=scaled(30))
        assert (counting.returncode, errors.splitlines()[-1]) == (Exit.INTERRUPTED, "penstock: interrupted")
        assert server.client.keys() == [b"{penstock-logs:files:mine}:x"]
        assert len(pids) == 3
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_whoever_counts_ends_with_its_parent_however_that_ended(start: Start, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(20_000)) * 20)
    with Server() as server:
        counting = start("logs", "count", "a.log", "--receivers", "2", "--url", server.address)
        eventually(lambda: len(children(counting.pid)) == 3)
        pids = children(counting.pid)
        counting.kill()
        counting.wait()
        eventually(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    """A dead process stays as a zombie until its parent waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_a_process_that_dies_again_and_again_ends_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "penstock.py").write_text("raise SystemExit('no penstock at all')")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    work = Work("unix:///nowhere", "c", [], 0, ["day"], False, None)
    with (
        counting_processes(work, 1) as (sender, counter),
        pytest.raises(PenstockError, match=rf"{DEATHS} times without work in between: .*penstock"),
    ):
        eventually(lambda: sender.restart_if_dead(7))
    assert not is_alive(counter._process.pid)


@pytest.mark.skipif(not LOGS.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("receivers", ["1", "2"])
def test_real_logs_have_their_known_requests_per_day(run: Run, receivers: str):
    options = ["--json", "--by", "day,country,status,bytes", "--receivers", receivers]
    done = run("logs", "count", *sorted(LOGS.glob("*.log*")), *options)
    report = json.loads(done.stdout)
    assert (done.returncode, report["rejected"], report["lines"], report["files"]) == (Exit.OK, 0, 13_000, 3)
    assert report["days"] == {
        "1995-07-01": 2000,
        "2015-05-17": 1632,
        "2015-05-18": 2893,
        "2015-05-19": 2896,
        "2015-05-20": 2579,
        "2021-11-12": 528,
        "2021-11-21": 318,
        "2021-11-22": 154,
    }
    assert report["countries"]["name"] == 1733
    assert report["bytes"] == 2_747_282_740 + 14_644_503 + 42_309_184
    assert report["bytes"] == sum(report["days_bytes"].values()) == sum(report["statuses_bytes"].values())
    assert report["days_bytes"]["1995-07-01"] == 42_309_184
    successes = sum(number for status, number in report["statuses"].items() if status.startswith("2"))
    assert successes == 9171 + 599 + 1780
    assert report["formats"] == {
        "combined": ["elastic-apache-2015.log", "nginx-scanners-2021.log.gz"],
        "common": ["nasa-jul95-first2k.log"],
    }


def test_what_is_not_shown_of_the_countries_is_summed_up(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(300)))
    done = run("logs", "count", "a.log", "--by", "country", "--top", "1")
    assert re.search(r"^and \d+ requests from 1 other$", done.stdout, re.MULTILINE)


def test_a_file_without_any_request_is_named(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(70)))
    (tmp_path / "b.log").write_text("nothing\n" * 70)
    (tmp_path / "c.log").touch()
    done = run("logs", "count", "a.log", "b.log", "c.log", "--json")
    assert (done.returncode, done.stderr) == (Exit.OK, "penstock: b.log: all 70 lines rejected\n")
    assert run("logs", "count", "a.log", "b.log", "--strict").returncode == Exit.FAILED
    assert json.loads(done.stdout)["rejected_files"] == {"b.log": 70}


def test_logs_of_each_packer_are_counted(run: Run, tmp_path: Path):
    text = "".join(f"{line}\n" for line in generate(300)).encode()
    for name, pack in (("a.gz", gzip.compress), ("b.bz2", bz2.compress), ("c.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(text))
    report = json.loads(run("logs", "count", "a.gz", "b.bz2", "c.xz", "--json").stdout)
    assert (report["counted"], report["rejected"]) == (900, 0)


def test_a_zip_file_is_named_and_skipped(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_bytes(b"PK\3\4\n")
    done = run("logs", "count", "a.log")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    reason = "it is compressed with zip, which cannot be read: decompress it first"
    assert done.stderr == f"penstock: nothing was counted: a.log: {reason}\n"
    (tmp_path / "b.log").write_text("\n".join(generate(70)))
    done = run("logs", "count", "a.log", "b.log", "--json")
    assert (done.returncode, done.stderr) == (Exit.OK, f"penstock: a.log skipped: {reason}\n")
    assert json.loads(done.stdout)["counted"] == 70
    assert run("logs", "count", "a.log", "b.log", "--strict").returncode == Exit.FAILED
