"""`penstock demo`: the books balance, and would not if a job were lost or done twice."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import Counts
from penstock.cli import demo as command
from penstock.cli.exits import Exit
from penstock.demo.books import Books
from penstock.demo.run import Order, Report
from penstock.demo.tasks import RETRIES, Entry
from penstock.terminal.made_up_log import generate
from tests.servers import Server, eventually
from tests.speed import scaled

ELASTIC = Path(__file__).parents[3] / "shared" / "data" / "logs" / "elastic-apache-2015.log"


# --- the books ---


def kept() -> tuple[Books, Counts]:
    """A day of two requests (one of them retried), two jobs of a flood and the broken one; all went well."""
    books = Books()
    books.greeting(0.0)
    numbers = [books.flood(0.0), books.flood(0.0)]
    books.broken(0.0)
    numbers += [books.request("a", "2026-03-02", 0.0, fails=2), books.request("b", "2026-03-02", 0.0, delayed=True)]
    for place, number in enumerate(reversed(numbers)):
        books.record(Entry(number, 1.0 + place, "2026-03-02", 200))
    return books, Counts(completed=5, dead=1, failed=1, retried=RETRIES + 2)


def test_books_that_balance_have_no_fault():
    books, counts = kept()
    assert books.faults(counts) == []
    assert (books.jobs, books.requests, books.completed_once, books.delayed) == (6, 2, 5, 1)
    assert books.days == {"2026-03-02": 2}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"completed": 4}, "6 jobs in, but 4 completed + 1 dead"),
        ({"completed": 6}, "6 jobs in, but 6 completed + 1 dead"),
        ({"ready": 1}, "1 jobs are still in the queue"),
        ({"running": 1}, "1 jobs are still in the queue"),
        ({"completed": 4, "dead": 2}, "2 dead letters, but 1 job always fails"),
        ({"retried": 4}, "5 retries planned, 4 counted"),
        ({"expired": 1}, "1 jobs were expired"),
    ],
)
def test_counts_of_the_server_that_do_not_fit_are_a_fault(wrong, told):
    books, counts = kept()
    assert any(told in fault for fault in books.faults(replace(counts, **wrong)))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda books: books.record(Entry(1, 1.0, "2026-03-02", 200)), "1 jobs ran to the end more than once"),
        (lambda books: books.record(Entry(3, 1.0, "2026-03-02", 200)), "of no job that should have written one"),
        (lambda books: books.record(Entry(99, 1.0, "2026-03-02", 200)), "of no job that should have written one"),
        (lambda books: books.flood(0.0), "1 jobs never recorded a run to the end, the first is number 6"),
        (lambda books: books.record(Entry(books.flood(5.0), -1.0, "-", 0)), "1 jobs started before they were due"),
        (
            lambda books: books.record(Entry(books.request("a", "2026-03-03", 0.0), 0.0, "2026-03-04", 200)),
            "read as 2026-03-02 2, 2026-03-03 1 and counted as 2026-03-02 2, 2026-03-04 1",
        ),
    ],
)
def test_what_the_jobs_wrote_down_and_does_not_fit_is_a_fault(spoil: Callable[[Books], None], told: str):
    books, counts = kept()
    spoil(books)
    assert any(told in fault for fault in books.faults(counts))


def test_a_lease_that_ran_out_explains_a_second_run():
    books, counts = kept()
    books.record(Entry(1, 1.0, "2026-03-02", 200))
    assert books.faults(replace(counts, lost=1)) == []


def test_a_process_that_was_killed_explains_second_runs_of_what_it_held():
    books, counts = kept()
    for number in (1, 2):
        books.record(Entry(number, 1.0, "2026-03-02", 200))
    assert books.faults(counts, killed=2) == []
    assert any("2 jobs ran to the end more than once" in fault for fault in books.faults(counts, killed=1))


def test_waits_are_told_beside_those_of_a_queue_that_is_not_fair():
    """The flood came first and ran last; by arrival it would have run first."""
    books, _ = kept()
    fair, by_arrival = books.accounts(), books.accounts_by_arrival()
    assert (fair["small"].longest, fair["flooder"].longest) == (2.0, 4.0)
    assert (by_arrival["small"].longest, by_arrival["flooder"].longest) == (4.0, 2.0)
    assert fair["small"].jobs == 2


def test_books_that_do_not_balance_end_the_command_with_its_code(monkeypatch, capsys):
    books, counts = kept()
    counts = replace(counts, completed=4)
    report = Report(Order(), books, counts, "valkey", 1.0, 1.0, None, books.faults(counts))
    monkeypatch.setattr(command, "run_demo", lambda *_: report)
    assert command.demo() == Exit.FAILED
    assert "do not balance" in capsys.readouterr().out
    assert command.demo(as_json=True) == Exit.FAILED
    assert json.loads(capsys.readouterr().out)["balanced"] is False


def test_an_entry_is_read_as_it_was_written():
    entry = Entry(7, 0.25, "2026-03-02", 404)
    assert Entry.read(entry.written().encode()) == entry


# --- the command ---


@pytest.fixture
def server():
    """One that nobody else uses: what is in it is looked at."""
    with Server() as started:
        yield started


def test_a_small_log_goes_through_and_the_books_balance(run, tmp_path):
    log = tmp_path / "small.log"
    log.write_text("\n".join([*generate(400, seed=3), "", "no request"]))
    done = run("demo", log, "--json", "--flood", "600")
    told = json.loads(done.stdout)
    assert done.returncode == Exit.OK, done.stderr
    assert (told["balanced"], told["jobs"], told["completed"], told["dead"]) == (True, 1002, 1001, 1)
    assert (told["requests"], told["malformed"]) == (400, 2)
    assert told["completed_once"] + told["completed_twice"] == 1001
    assert sum(told["requests_per_day"].values()) == sum(told["requests_per_status"].values()) == 400
    assert told["retries_planned"] > RETRIES
    assert list(tmp_path.iterdir()) == [log]


def test_a_process_is_killed_on_the_way_and_its_jobs_run_again(run):
    told = json.loads(run("demo", "--json", "--jobs", "12000", "--flood", "4000").stdout)
    assert told["balanced"], told["faults"]
    assert told["killed"]["held"] > 0
    assert told["killed"]["given_back"] < 5
    assert told["completed"] == told["completed_once"] + told["completed_twice"] == told["jobs"] - 1


def test_without_a_terminal_nothing_controls_one(run):
    done = run("demo", "--jobs", "200", "--flood", "100")
    assert done.returncode == Exit.OK, done.stderr
    assert "The books balance." in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert run("demo", "--jobs", "50", "--flood", "0", "--no-live").stderr == ""


def test_a_server_that_was_named_is_left_as_it_was(run, server: Server):
    server.client.set("penstock-demo", "mine")
    done = run("demo", "--jobs", "200", "--flood", "100", "--url", server.address)
    assert done.returncode == Exit.OK, done.stderr
    assert server.client.keys() == [b"penstock-demo"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_no_key_and_no_worker(start, server: Server, number):
    demo = start("demo", "--jobs", "20000", "--flood", "20000", PENSTOCK_URL=server.address)
    eventually(lambda: server.client.dbsize() > 3)
    demo.send_signal(number)
    _, told = demo.communicate(timeout=scaled(60))
    assert demo.returncode == Exit.INTERRUPTED
    assert told.endswith("penstock: interrupted\n")
    assert server.client.keys() == []
    eventually(lambda: len(server.client.client_list()) == 1)


def test_a_worker_ends_with_its_parent_however_that_ended(start, server: Server):
    demo = start("demo", "--jobs", "20000", "--flood", "20000", "--url", server.address)
    eventually(lambda: server.client.dbsize() > 3)
    eventually(lambda: len(server.client.client_list()) > 4)
    demo.kill()
    eventually(lambda: len(server.client.client_list()) == 1)


def test_a_server_that_is_gone_ends_the_demo(run, tmp_path):
    done = run("demo", "--url", f"unix://{tmp_path}/gone")
    assert done.returncode == Exit.SERVER
    assert done.stderr.splitlines()[-1].startswith("penstock: nobody answers at")


def test_a_damaged_log_ends_the_demo_with_one_line(run, tmp_path):
    path = tmp_path / "cut.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    done = run("demo", path, "--flood", "10")
    assert done.returncode == Exit.FAILED
    assert done.stderr.splitlines()[-1].startswith(f"penstock: {path} is damaged: ")


@pytest.mark.skipif(not ELASTIC.is_file(), reason="the real log is not here")
def test_a_real_log_has_its_known_requests_per_day(run):
    done = run("demo", ELASTIC, "--json", "--flood", "5000")
    told = json.loads(done.stdout)
    assert done.returncode == Exit.OK, told["faults"]
    assert told["requests_per_day"] == {"2015-05-17": 1632, "2015-05-18": 2893, "2015-05-19": 2896, "2015-05-20": 2579}
    assert told["requests_per_status"] == {"2xx": 9171, "3xx": 609, "4xx": 217, "5xx": 3}
    assert told["waits"]["small"]["mean"] < told["waits"]["flooder"]["mean"]  # by arrival it is the other way round
