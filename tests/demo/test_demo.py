"""`penstock demo`: the ledger balances, and would not if a job were lost or done twice."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import demo as command
from penstock.cli.exits import Exit
from penstock.demo.ledger import Ledger
from penstock.demo.run import DemoOptions, DemoReport
from penstock.demo.tasks import RETRIES, JournalEntry
from penstock.info import Counts
from penstock.terminal.made_up_log import generate
from tests.servers import Server, eventually, was_interrupted
from tests.speed import scaled

ELASTIC = Path(__file__).parents[3] / "shared" / "data" / "logs" / "elastic-apache-2015.log"


# --- the ledger ---


def complete_ledger() -> tuple[Ledger, Counts]:
    """One day with two requests (one retried), two flood jobs and the broken job; nothing went wrong."""
    ledger = Ledger()
    ledger.greeting(0.0)
    numbers = [ledger.flood(0.0), ledger.flood(0.0)]
    ledger.broken(0.0)
    numbers += [ledger.request("a", "2026-03-02", 0.0, fails=2), ledger.request("b", "2026-03-02", 0.0, delayed=True)]
    for place, number in enumerate(reversed(numbers)):
        ledger.record(JournalEntry(number, 1.0 + place, "2026-03-02", 200))
    return ledger, Counts(completed=5, dead=1, failed=1, retried=RETRIES + 2)


def test_a_ledger_that_balances_has_no_fault():
    ledger, counts = complete_ledger()
    assert ledger.faults(counts) == []
    assert (ledger.jobs, ledger.requests, ledger.completed_once, ledger.delayed) == (6, 2, 5, 1)
    assert ledger.days == {"2026-03-02": 2}


@pytest.mark.parametrize(
    ("wrong", "expected"),
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
def test_server_counts_that_disagree_are_a_fault(wrong, expected):
    ledger, counts = complete_ledger()
    assert any(expected in fault for fault in ledger.faults(replace(counts, **wrong)))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda book: book.record(JournalEntry(1, 1.0, "2026-03-02", 200)), "1 jobs ran to the end more than once"),
        (
            lambda book: book.record(JournalEntry(3, 1.0, "2026-03-02", 200)),
            "belong to no job that writes one",
        ),
        (
            lambda book: book.record(JournalEntry(99, 1.0, "2026-03-02", 200)),
            "belong to no job that writes one",
        ),
        (lambda book: book.flood(0.0), "1 jobs never recorded a run to the end, the first is number 6"),
        (
            lambda book: book.record(JournalEntry(book.flood(5.0), -1.0, "-", 0)),
            "1 jobs started before they were due",
        ),
        (
            lambda book: book.record(JournalEntry(book.request("a", "2026-03-03", 0.0), 0.0, "2026-03-04", 200)),
            "parsed as 2026-03-02 2, 2026-03-03 1 and counted as 2026-03-02 2, 2026-03-04 1",
        ),
    ],
)
def test_a_journal_that_disagrees_is_a_fault(spoil: Callable[[Ledger], None], expected: str):
    ledger, counts = complete_ledger()
    spoil(ledger)
    assert any(expected in fault for fault in ledger.faults(counts))


def test_a_lease_that_ran_out_explains_a_second_run():
    ledger, counts = complete_ledger()
    ledger.record(JournalEntry(1, 1.0, "2026-03-02", 200))
    assert ledger.faults(replace(counts, lost=1)) == []


def test_a_killed_process_explains_second_runs_of_its_claimed_jobs():
    ledger, counts = complete_ledger()
    for number in (1, 2):
        ledger.record(JournalEntry(number, 1.0, "2026-03-02", 200))
    assert ledger.faults(counts, killed=2) == []
    assert any("2 jobs ran to the end more than once" in fault for fault in ledger.faults(counts, killed=1))


def test_waits_are_reported_beside_those_of_a_queue_that_is_not_fair():
    """The flood came first and ran last; by arrival it would have run first."""
    ledger, _ = complete_ledger()
    fair, by_arrival = ledger.waits(), ledger.waits_by_arrival()
    assert (fair["small"].longest, fair["flooder"].longest) == (2.0, 4.0)
    assert (by_arrival["small"].longest, by_arrival["flooder"].longest) == (4.0, 2.0)
    assert fair["small"].jobs == 2


def test_a_ledger_that_does_not_balance_ends_the_command_with_code_1(monkeypatch, capsys):
    ledger, counts = complete_ledger()
    counts = replace(counts, completed=4)
    report = DemoReport(DemoOptions(), ledger, counts, "valkey", 1.0, 1.0, None, ledger.faults(counts))
    monkeypatch.setattr(command, "run_demo", lambda *_: report)
    assert command.demo() == Exit.FAILED
    assert "does not balance" in capsys.readouterr().out
    assert command.demo(as_json=True) == Exit.FAILED
    assert json.loads(capsys.readouterr().out)["balanced"] is False


def test_a_journal_entry_round_trips():
    entry = JournalEntry(7, 0.25, "2026-03-02", 404)
    assert JournalEntry.read(entry.encode().encode()) == entry


# --- the command ---


@pytest.fixture
def server():
    """A server that no other test uses, because its keys are inspected."""
    with Server() as started:
        yield started


def test_a_small_log_goes_through_and_the_ledger_balances(run, tmp_path):
    log = tmp_path / "small.log"
    log.write_text("\n".join([*generate(400, seed=3), "", "no request"]))
    done = run("demo", log, "--json", "--flood", "600")
    report = json.loads(done.stdout)
    assert done.returncode == Exit.OK, done.stderr
    assert (report["balanced"], report["jobs"], report["completed"], report["dead"]) == (True, 1002, 1001, 1)
    assert (report["requests"], report["malformed"]) == (400, 2)
    assert report["completed_once"] + report["completed_twice"] == 1001
    assert sum(report["requests_per_day"].values()) == sum(report["requests_per_status"].values()) == 400
    assert report["retries_planned"] > RETRIES
    assert list(tmp_path.iterdir()) == [log]


def test_a_process_is_killed_on_the_way_and_its_jobs_run_again(run):
    report = json.loads(run("demo", "--json", "--jobs", "12000", "--flood", "4000").stdout)
    assert report["balanced"], report["faults"]
    assert report["killed"]["held"] > 0
    assert report["killed"]["given_back"] < scaled(5)
    assert report["completed"] == report["completed_once"] + report["completed_twice"] == report["jobs"] - 1


def test_without_a_terminal_nothing_controls_one(run):
    done = run("demo", "--jobs", "200", "--flood", "100")
    assert done.returncode == Exit.OK, done.stderr
    assert "The ledger balances." in done.stdout
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
    _, report = demo.communicate(timeout=scaled(60))
    assert was_interrupted(demo)
    assert report.endswith("penstock: interrupted\n")
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
    assert done.stderr.splitlines()[-1].startswith("penstock: no server answers at")


def test_a_damaged_log_ends_the_demo_with_one_line(run, tmp_path):
    path = tmp_path / "cut.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    done = run("demo", path, "--flood", "10")
    assert done.returncode == Exit.FAILED
    assert done.stderr.splitlines()[-1].startswith(f"penstock: {path} is damaged: ")


@pytest.mark.skipif(not ELASTIC.is_file(), reason="the real log is not here")
def test_a_real_log_has_its_known_requests_per_day(run):
    done = run("demo", ELASTIC, "--json", "--flood", "5000")
    report = json.loads(done.stdout)
    assert done.returncode == Exit.OK, report["faults"]
    assert report["requests_per_day"] == {
        "2015-05-17": 1632,
        "2015-05-18": 2893,
        "2015-05-19": 2896,
        "2015-05-20": 2579,
    }
    assert report["requests_per_status"] == {"2xx": 9171, "3xx": 609, "4xx": 217, "5xx": 3}
    # How long the flooder waits depends on how fast the requests are enqueued meanwhile.
    assert report["waits"]["small"]["mean"] < report["waits_by_arrival"]["small"]["mean"]
