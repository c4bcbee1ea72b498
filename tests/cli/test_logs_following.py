"""`penstock logs count --follow`: logs that are written and rotated while they are counted."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exits import Exit
from penstock.terminal.made_up_log import generate
from tests.command_line import Run, Start
from tests.servers import Server, eventually
from tests.speed import scaled


class Following:
    """A command that follows logs."""

    def __init__(self, start: Start, server: Server, *words: str) -> None:
        self._process = start("logs", "count", *words, "--json", "--follow", "--url", server.address)
        self._server = server

    def has_counted(self, lines: int) -> bool:
        found = [self._server.client.hget(key, "lines") for key in self._server.client.keys("*:totals:count")]
        return found == [b"%d" % lines]

    def stop(self) -> tuple[int, dict[str, Any], str]:
        """Exit code, report and stderr."""
        self._process.send_signal(signal.SIGTERM)
        out, errors = self._process.communicate(timeout=scaled(30))
        return self._process.returncode, json.loads(out), errors


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


LINES = [f"{line}\n" for line in generate(400)]


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_lines_are_counted_once_through_a_rotation(start: Start, server: Server, tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / "access.log"
    log.write_text("".join(LINES[:100]))
    (logs / "error.txt").write_text("no log\n")
    options = ["--include", "access*", "--by", "day", "--source", "web-1", "--receivers", "2"]
    following = Following(start, server, "logs", *options)
    eventually(lambda: following.has_counted(100))
    append(log, "".join(LINES[100:200]) + LINES[200][:20])
    eventually(lambda: following.has_counted(200))
    log.rename(logs / "access.log.1")
    append(logs / "access.log.1", LINES[200][20:])
    log.write_text("".join(LINES[201:300]))
    (logs / "access-2.log.gz").write_bytes(gzip.compress("".join(LINES[300:]).encode()))
    (logs / "access-copy.log").write_text("".join(LINES[:201]))
    eventually(lambda: following.has_counted(400))
    append(log, "10.0.0.1 - - [")
    code, report, err = following.stop()
    assert code == Exit.OK, err
    assert (report["lines"], report["counted"], report["source"]) == (400, 400, "web-1")
    assert report["copies"].keys() == {"access-copy.log"}
    assert report["held_back"] == {"access.log": 14}
    assert "same content as access.log" in err
    assert "access.log: 14 bytes of an unfinished line not counted (--final)" in err


def test_the_end_of_a_log_is_counted_with_final(start: Start, server: Server, tmp_path: Path):
    log = tmp_path / "access.log"
    log.write_text(LINES[0])
    following = Following(start, server, "access.log", "--final", "--by", "day")
    eventually(lambda: following.has_counted(1))
    append(log, LINES[1].rstrip("\n"))
    code, report, _ = following.stop()
    assert (code, report["counted"], report["rejected"], report["held_back"]) == (Exit.OK, 2, 0, {})


def test_a_copy_is_counted_once_if_logs_are_known_by_their_content(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text("".join(LINES))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(LINES).encode()))
    twice = run("logs", "count", "a.log", "b.log.gz", "--by", "day", "--json")
    assert json.loads(twice.stdout)["counted"] == 800
    once = run("logs", "count", "a.log", "b.log.gz", "--by", "day", "--json", "--identity", "content")
    report = json.loads(once.stdout)
    assert (once.returncode, report["counted"], report["copies"]) == (Exit.OK, 400, {"a.log": "b.log.gz"})
    assert "same content as b.log.gz: a.log not counted again" in once.stderr


@pytest.mark.parametrize("options", [[], ["--format", "w3c"]])
def test_a_w3c_log_is_not_followed(run: Run, tmp_path: Path, options: list[str]):
    (tmp_path / "u_ex.log").write_text(
        "#Fields: date time c-ip cs-method cs-uri-stem sc-status\n2026-03-02 10:00:00 1.2.3.4 GET / 200\n"
    )
    done = run("logs", "count", "u_ex.log", "--follow", *options)
    assert done.returncode == Exit.USAGE
    assert "u_ex.log is a W3C log, whose columns may change while it is written: count it without" in done.stderr
