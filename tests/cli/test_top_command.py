"""`penstock top`: in a terminal of 80 by 24, and without one."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.cli.top_screen import COLUMNS, Row, Screen
from tests.command_line import SOURCE, Command
from tests.speed import scaled


def rows(n: int) -> list[Row]:
    names = list(COLUMNS["queues"])
    return [{"queue": f"queue-{place:03}", **dict.fromkeys(names[1:], place)} for place in range(n)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 5)])
def test_the_display_fits(width: int, height: int):
    long: Row = {**rows(1)[0], "queue": "名前" * 40}
    lines = Screen().lines([*rows(100), long], "title " * 30, "totals " * 30, width, height)
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= width


def test_80_columns_show_every_heading_and_every_number():
    lines = [line.plain for line in Screen().lines(rows(3), "title", "totals", 80, 24)]
    headings = "queue ready↓ oldest delayed parked running in/s out/s fail/s dead"
    assert lines[2].split() == headings.split()
    assert lines[3].split()[:2] == ["queue-002", "2"]


def test_a_wide_display_and_the_tenants_have_durable_jobs_that_sleep():
    assert "sleeping" in Screen().lines(rows(3), "title", "totals", 100, 24)[2].plain.split()
    tenant: Row = {**dict.fromkeys(COLUMNS["tenants"], 1), "tenant": "acme"}
    lines = [line.plain for line in Screen("tenants").lines([tenant], "title", "totals", 80, 24)]
    assert lines[2].split() == ["tenant", "ready↓", "delayed", "sleeping", "parked", "waiting", "running", "dead"]


def test_a_narrow_display_leaves_columns_out_but_no_digit():
    screen = Screen(sort="dead")
    lines = [line.plain for line in screen.lines(rows(3), "title", "totals", 40, 24)]
    assert lines[2].split() == ["queue", "ready", "oldest", "dead↓"]
    assert lines[3].split() == ["queue-002", "2", "2.0", "s", "2"]


def test_keys_sort_filter_select_hold_and_quit():
    screen = Screen()
    assert [row["ready"] for row in screen.arrange(rows(3))] == [2, 1, 0]
    screen.press("r")
    assert [row["ready"] for row in screen.arrange(rows(3))] == [0, 1, 2]
    for key in "/":
        screen.press(key)
    for key in "QUEUE-001":
        screen.press(key)
    screen.press("\x7f")
    assert "filter: QUEUE-00" in screen.lines(rows(3), "", "", 80, 24)[-1].plain
    screen.press("1")
    screen.press("\r")
    assert [row["queue"] for row in screen.arrange(rows(3))] == ["queue-001"]
    screen.press(" ")
    assert screen.is_held
    screen.press("s")
    assert screen.sort == "oldest"
    screen.press("t")
    assert (screen.view, screen.queue) == ("tenants", "queue-001")
    screen.press("b")
    screen.arrange(rows(3))
    screen.press("down")
    screen.press("w")
    assert (screen.view, screen.queue, screen.sort) == ("workers", "queue-001", "jobs")
    assert not screen.press("q")


def test_without_a_terminal_it_says_what_to_do(shop: Penstock, penstock: Command):
    code, out, err = penstock("top")
    assert (code, out) == (Exit.USAGE, "")
    assert "--once or --json" in err
    assert penstock("top", "--once") == (Exit.OK, "No queue was used here yet.\n", "")
    shop.queue("mail").put_many(range(3))
    code, out, _ = penstock("top", "--once")
    assert code == Exit.OK
    assert out.splitlines()[-1].split()[:2] == ["mail", "3"]
    (row,) = json.loads(penstock("top", "--json")[1])
    assert (row["queue"], row["ready"], row["in/s"]) == ("mail", 3, 0.0)


def test_in_a_terminal_of_80_by_24(shop: Penstock):
    shop.queue("mail").put_many(range(3), tenant="acme")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    environment.pop("LINES", None)
    command = [sys.executable, "-m", "penstock", "top", "--interval", "0.5"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen, deadline = "", time.monotonic() + scaled(20)

    def until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            assert time.monotonic() < deadline, seen
            seen += os.read(ours, 65536).decode(errors="replace")

    try:
        until("mail")
        os.write(ours, b"t")
        until("tenants of mail")
        until("acme")
        os.write(ours, b"q")
        while process.poll() is None:
            assert time.monotonic() < deadline
            try:
                os.read(ours, 65536)
            except OSError:
                break
        assert process.wait(scaled(10)) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
