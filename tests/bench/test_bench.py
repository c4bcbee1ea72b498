"""`penstock bench`: it measures what was run, reports its conditions, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import Penstock, PenstockError
from penstock.bench.competitors import HoldTimes, contend, penstock, run_together
from penstock.bench.figures import Figure, Ratio, Target, at_least, at_most, figure, percentile
from penstock.bench.placement import Pin, placed
from penstock.bench.rig import Rig
from penstock.bench.run import BenchOptions, bench
from penstock.bench.tasks import QUEUE
from penstock.bench.topic import TOPICS, load_topic
from penstock.bench.topics.jobs import DrainResult, compared, drain_jobs, some_calls
from penstock.bench.topics.locks import contention
from penstock.bench.usage import Usage, cpu_seconds
from penstock.bench.workers import workers
from penstock.cli.exits import Exit
from penstock.errors import ServerUnavailable
from penstock.ops.raw_client import raw_client
from penstock.testing.server import ServerInUse
from tests.servers import Server, eventually, was_interrupted
from tests.speed import scaled

ROOT = Path(__file__).parents[2]

# --- figures ---


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (at_most(2), True),
        (at_most(1.9), False),
        (at_least(2), True),
        (at_least(2.1), False),
        (at_most(3, "ratio"), True),
        (at_most(2.9, "ratio"), False),
        (at_least(3, "ratio"), True),
        (None, None),
        (at_most(None), None),
        (at_least(None), None),
    ],
)
def test_a_target_is_of_the_value_or_of_the_ratio(target: Target | None, met: bool | None):
    assert figure("f", 2, "s", ratio=Ratio(3, "a trivial EVALSHA"), target=target).met is met


def test_a_target_of_a_ratio_that_was_not_measured_is_neither_met_nor_missed():
    assert figure("f", 2, "s", target=at_most(3, "ratio")).met is None


def test_a_figure_is_the_median_of_its_measurements():
    assert figure("f", [3, 1, 9], "s") == Figure("f", 3, "s", lowest=1, highest=9)
    assert [percentile(range(1, 101), share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert percentile([7], 0.99) == 7


def test_a_higher_cost_at_a_larger_backlog_misses_its_target():
    small = DrainResult(1_000, 1.0, Usage(0, 0, server=1.0))
    fine = DrainResult(10_000, 11.0, Usage(0, 0, server=11.0))
    worse = DrainResult(10_000, 13.0, Usage(0, 0, server=13.0))
    assert [one.met for one in compared({"small": small, "fine": fine})] == [None, None, True, True]
    assert [one.met for one in compared({"small": small, "worse": worse})] == [None, None, False, False]


# --- readings ---


def test_cpu_seconds_of_a_process_come_from_the_kernel():
    assert cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)


@pytest.fixture
def rig(server: Server):
    with Penstock(server.address, prefix="bench") as app:
        rig = Rig(app, server.address, "quick", "free")
        yield rig
        rig.clear()


def test_only_commands_that_were_sent_are_counted(rig: Rig):
    for _ in range(2):  # the first call of each loads its script
        rig.tasks.noop.enqueue(1, 2, "")
    rig.tasks.queue.count()
    before = rig.commands()
    rig.tasks.noop.enqueue(1, 2, "")
    rig.tasks.queue.count()
    assert rig.commands() - before == 2


def test_all_jobs_of_a_drain_are_counted(rig: Rig):
    with rig.workers(1, 10) as started:
        done = drain_jobs(rig, started, some_calls(rig.tasks.noop, 500))
    assert done.jobs == 502
    assert min(done.seconds, done.usage.server, done.usage.workers) > 0
    assert rig.tasks.queue.count().completed == 502


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of children")
def test_the_users_own_settings_make_no_other_workers(rig: Rig, tmp_path: Path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.penstock]\nprocesses = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_PROCESSES", "2")
    with rig.workers(1, 10) as started:
        (pid,) = started.pids
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


def test_a_worker_that_ends_is_reported_with_its_output():
    expected = r"a worker ended with code 2, it printed: .*prefix 'a b'"
    with pytest.raises(PenstockError, match=expected), workers(QUEUE, 1, 1, {"PENSTOCK_PREFIX": "a b"}):
        pass


def test_an_error_of_the_caller_is_not_blamed_on_the_server(rig: Rig, server: Server):
    with pytest.raises(ZeroDivisionError), raw_client(rig.app):
        _ = 1 / 0
    server.kill()
    with pytest.raises(ServerUnavailable, match="lost the server"), raw_client(rig.app) as client:
        client.ping()
    server.start()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can pin")
@pytest.mark.parametrize("pin", ["same", "split"])
def test_a_placement_ends_with_its_run(server: Server, pin: Pin):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one CPU only")
    with placed(pin, ServerInUse(server.address, server.pid)):
        ours, its = os.sched_getaffinity(0), os.sched_getaffinity(server.pid)
        assert (len(ours), len(its), ours == its) == (1, 1, pin == "same")
    assert os.sched_getaffinity(0) == os.sched_getaffinity(server.pid) == before


# --- locks ---


def test_a_perfect_order_meets_its_targets_and_an_unfair_one_does_not():
    def in_order(served: Sequence[int], late: float = 0.0) -> list[HoldTimes]:
        """All request the lock at 0, get it in this order, 1 ms apart, and hold it for 2 ms."""
        return [HoldTimes(0, 0.003 * n + late * (n == 8), 0.003 * n + 0.002) for n in served]

    def met(times_held: list[HoldTimes]) -> list[bool | None]:
        return [one.met for one in contention("penstock", times_held)]

    assert met(in_order(range(16))) == [None, True, True]
    assert met(in_order(range(40))) == [None, True, False]  # one waited for 39 others, among 15 competitors
    assert met(in_order(range(16), late=0.0019)) == [None, False, True]


def test_competitors_return_values_and_a_failure_is_reported(server: Server):
    times_held = run_together(contend, [(penstock, server.address, "x", 3, 0.0)] * 2)
    assert [len(some) for some in times_held] == [3, 3]
    assert lock_order([one for some in times_held for one in some])
    with pytest.raises(PenstockError, match="ended early"):
        run_together(contend, [(penstock, "no such address", "x", 3, 0.0)])


def lock_order(times_held: Sequence[HoldTimes]) -> bool:
    order = sorted(times_held, key=lambda one: one.acquired)
    return all(earlier.released <= later.acquired for earlier, later in pairwise(order))


# --- the command ---


@pytest.fixture
def server():
    """A server that no other test uses, because its keys are inspected."""
    with Server() as started:
        yield started


def test_a_caller_that_stops_iterating_leaves_no_worker_and_no_key(server: Server):
    with bench(BenchOptions(only=("backlog",), pace="quick", url=server.address)) as run:
        _, figures = next(iter(run))
        next(figures)
        assert len(server.client.client_list()) > 4
    assert server.client.keys() == []
    eventually(lambda: len(server.client.client_list()) == 1)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_scenario_has_a_summary(topic: str):
    assert all(scenario.summary for scenario in load_topic(topic).chosen(()))


@pytest.mark.parametrize(
    ("topic", "scenario"),
    [("waiting", "idle"), ("peers", "uncontended"), ("logs", "logs-count")],
)
def test_the_topics_of_developers_have_the_options_of_the_command(topic: str, scenario: str):
    words = [sys.executable, str(ROOT / "benchmarks" / "own.py"), topic, "--only", "none"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, scenario in done.stderr) == (Exit.USAGE, True), done.stderr


def test_a_run_on_a_named_server_prints_its_figures_and_deletes_its_keys(run, server: Server):
    server.client.set("penstock-bench", "mine")
    done = run("bench", "--quick", "--json", "--only", "enqueue,latency", "--url", server.address)
    report = json.loads(done.stdout)
    assert done.returncode == Exit.OK, done.stderr
    assert (report["conditions"]["pace"], report["conditions"]["appendonly"]) == ("quick", "no")
    figures = {(one["scenario"], one["name"]): one for one in report["figures"]}
    assert {scenario for scenario, _ in figures} == {"enqueue", "latency"}
    assert len(figures) == len(report["figures"])
    assert all(one["value"] > 0 for one in report["figures"])
    assert figures["enqueue", "enqueue"]["ratio"] > 1
    assert figures["latency", "p50"]["target"] == {"of": "ratio", "bound": "at most", "limit": 4}
    assert server.client.keys() == [b"penstock-bench"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can pin")
def test_on_one_cpu_on_a_server_of_its_own(run, tmp_path):
    done = run("bench", "jobs", "--quick", "--only", "enqueue", "--pin", "same", "--aof", TMPDIR=str(tmp_path))
    assert done.returncode == Exit.OK, done.stderr
    assert "appendonly yes" in done.stdout
    assert "server, workers and client on one CPU" in done.stdout
    assert "× the time of a trivial EVALSHA" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("penstock-bench")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_leaves_no_key_and_no_worker(start, server: Server, number):
    bench = start("bench", "--only", "drain", PENSTOCK_URL=server.address)
    eventually(lambda: server.client.dbsize() > 3)
    eventually(lambda: len(server.client.client_list()) > 4)
    bench.send_signal(number)
    _, errors = bench.communicate(timeout=scaled(60))
    assert was_interrupted(bench)
    assert errors.endswith("penstock: interrupted\n")
    assert server.client.keys() == []
    eventually(lambda: len(server.client.client_list()) == 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("locks!",), "no topic 'locks!': choose one of jobs"),
        (("--only", "enqueue,speed"), "--only 'speed' is not one of: round-trips, enqueue"),
        (("--quick", "--full"), "--quick or --full"),
        (("--pin", "split", "--url", "unix:///gone"), "only a server that this command started"),
        (("--aof", "--url", "unix:///gone"), "--aof"),
        (("--url", "valkey+cluster://127.0.0.1:1"), "a cluster cannot be measured"),
    ],
)
def test_impossible_options_are_reported_in_one_line(run, words, expected):
    done = run("bench", *words)
    assert done.returncode == Exit.USAGE
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
