"""Penstock and its peers on the same work, side by side in one run, on one server.

    make bench-peers                                        # installs the peers into .peers, and measures all
    python benchmarks/peers.py --pin split --rounds 5 [--jobs 20000] [penstock dramatiq …]

Peers that are not installed are skipped. Each row gets an empty server. One process enqueues no-op jobs, one after
another; then one worker process starts and drains them; then an idle worker gets jobs one at a time. Seconds and CPU of
the drain count from the first job to the last, as the worker process measures them; the server's CPU includes the
worker's start.

The rounds are interleaved, so that a busy minute of the machine affects every library. Before and after each row a loop
of fixed work shows how fast the machine is at the moment. If the two differ by more than a fifth, the row is measured
once more. The tables show medians, and how far the loop varied. Ctrl-C ends the run early, with the rows that it has.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("PEERS_FOLDER", HERE.parent / ".peers"))
OWN, THEIRS = sys.executable, str(FOLDER / "venv" / "bin" / "python")
PATIENCE = 300.0
DRIFT = 0.2
BULLMQ = ("node", "work/on_bullmq.mjs")
YARDSTICK = "evalsha"


@dataclass(frozen=True)
class Peer:
    """A row of the tables: how its processes are started, and what they measure."""

    title: str
    worker: tuple[str, ...]
    """The command of one worker process, with the quietest and fastest options of its documentation. (): no worker."""
    package: str = ""
    """Its name on PyPI or npm; "": a part of this project."""
    share: float = 1.0
    """The share of the jobs that a slow library gets."""
    bulk: bool = False
    latency: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    producer: tuple[str, ...] = ()
    """The command that produces jobs, if it is not this file."""


def penstock(work: str) -> tuple[str, ...]:
    return (OWN, "-m", "penstock", "worker", f"work.{work}", "-c", "100", "--log-level", "error")


def theirs(module: str, *options: str) -> tuple[str, ...]:
    return (THEIRS, "-m", module, *options)


HUEY = ("work.on_huey.huey", "--worker-type", "thread", "--workers", "4", "--quiet")
PEERS = {
    YARDSTICK: Peer("bare EVALSHA", ()),
    "penstock": Peer("penstock", penstock("on_penstock"), bulk=True),
    "penstock_threads": Peer("penstock, threads", penstock("on_penstock_threads"), latency=False),
    "penstock_results": Peer("penstock, results kept", penstock("on_penstock_results"), latency=False),
    "dramatiq": Peer(
        "dramatiq",
        theirs("dramatiq", "work.on_dramatiq", "--processes", "1", "--threads", "8"),
        "dramatiq",
        environment={"dramatiq_queue_prefetch": "500"},
    ),
    "huey": Peer("huey", theirs("huey.bin.huey_consumer", *HUEY), "huey"),
    "saq": Peer("saq", theirs("saq", "work.on_saq.settings", "--quiet"), "saq", share=0.5),
    "bullmq": Peer("bullmq", (*BULLMQ, "work"), "bullmq", bulk=True, producer=BULLMQ),
    "arq": Peer("arq", theirs("arq", "work.on_arq.WorkerSettings"), "arq", share=0.5),
    "rq": Peer(
        "rq",
        theirs("rq.cli", "worker", "--url", "{url}", "--worker-class", "rq.SimpleWorker", "--quiet"),
        "rq",
        share=0.1,
    ),
}

COLUMNS = {
    "enqueue_per_s": "enqueue/s",
    "bulk_per_s": "bulk enqueue/s",
    "drain_per_s": "drain/s",
    "producer_cpu": "CPU of the producer",
    "server_cpu_enqueue": "of the server, enqueue",
    "worker_cpu": "of the worker",
    "server_cpu_drain": "of the server, drain",
    "bytes_per_job": "B/job",
    "latency_p50": "idle latency p50, ms",
    "latency_p99": "p99, ms",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="peer", help=", ".join(PEERS))
    parser.add_argument("--pin", choices=("same", "split", "free"), default="split")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--latencies", type=int, default=300, help="jobs of an idle worker in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write all measurements to this file, as JSON, for charts.py")
    parser.add_argument("--produce", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        produce(*options.produce)
        return
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"no peer {', '.join(unknown)}: there are {', '.join(PEERS)}")
    versions = {name: found for name in options.peers or PEERS if (found := version_of(PEERS[name]))}
    result = measure_all(options, versions)
    print(text_of(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def measure_all(options: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    from penstock import Penstock
    from penstock.bench.placement import placed
    from penstock.ops.raw_client import raw_client
    from penstock.testing import TemporaryServer

    rows: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    load = os.getloadavg()[0]
    with (
        TemporaryServer() as own,
        placed(options.pin, own),
        Penstock(own.address) as app,
        raw_client(app) as server,
    ):
        url = open_a_port(server)
        try:
            for number in range(1, options.rounds + 1):
                for name in versions:
                    print(f"round {number} of {options.rounds}: {name}", file=sys.stderr)
                    rows[name].append(steady(lambda name=name: measure(name, options, url, server)))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        found = server.info("server")
    measured = max(map(len, rows.values()))
    name = "valkey" if "valkey_version" in found else "redis"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "pin": options.pin,
        "jobs": options.jobs,
        "rounds": measured,
        "load": [load, os.getloadavg()[0]],
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}",
        "software": f"Python {platform.python_version()}, {name.title()} {found[f'{name}_version']}",
        "versions": versions,
        "titles": {name: PEERS[name].title for name in versions},
        "rows": {name: runs for name, runs in rows.items() if runs},
    }


# --- one row ---


def calibrate() -> float:
    """Milliseconds for a fixed piece of work in Python, the best of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        total = 0
        for number in range(200_000):
            total += number % 7
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def steady(measured: Any) -> dict[str, float]:
    """A measurement during which the speed of the machine did not change much; the second one in any case."""
    row: dict[str, float] = {}
    for _ in range(2):
        before = calibrate()
        row = measured()
        after = calibrate()
        row |= {"loop_before": before, "loop_after": after}
        if abs(before - after) <= DRIFT * min(before, after):
            break
    return row


def measure(name: str, options: argparse.Namespace, url: str, server: Any) -> dict[str, float]:
    """One round of one library."""
    peer = PEERS[name]
    jobs = round(options.jobs * peer.share)
    row: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        environment = {
            **os.environ,
            **peer.environment,
            "PEERS_URL": url,
            "PEERS_DONE": str(done),
            "PEERS_JOBS": str(jobs),
            "PEERS_NODE": str(FOLDER / "node"),
            "PYTHONPATH": python_path(),
        }
        server.flushall()
        memory, spent = server.info("memory")["used_memory"], server_cpu(server)
        produced = run_producer(name, "enqueue", environment)
        row["enqueue_per_s"] = jobs / produced["seconds"]
        row["producer_cpu"] = produced["cpu"] / jobs * 1e4
        row["server_cpu_enqueue"] = (server_cpu(server) - spent) / jobs * 1e4
        row["bytes_per_job"] = (server.info("memory")["used_memory"] - memory) / jobs
        if peer.worker:
            spent = server_cpu(server)
            with worker_of(peer, environment, url) as (process, output):
                drained = wait_until_done(name, done, process, output)
            row["drain_per_s"] = jobs / drained["seconds"]
            row["worker_cpu"] = drained["cpu"] / jobs * 1e4
            row["server_cpu_drain"] = (server_cpu(server) - spent) / jobs * 1e4
        if peer.bulk:
            server.flushall()
            row["bulk_per_s"] = jobs / run_producer(name, "bulk", environment)["seconds"]
        if peer.worker and peer.latency and options.latencies:
            server.flushall()
            done.unlink()
            environment["PEERS_JOBS"] = str(options.latencies)
            with worker_of(peer, environment, url) as (process, output):
                time.sleep(2.0)  # until it is idle
                run_producer(name, "paced", environment)
                delays = sorted(wait_until_done(name, done, process, output)["delays"])
            row["latency_p50"] = median(delays) * 1e3
            row["latency_p99"] = delays[int(len(delays) * 0.99)] * 1e3
    return row


class worker_of:  # noqa: N801 - reads as a function
    """A worker process of the library, for the length of a block."""

    def __init__(self, peer: Peer, environment: dict[str, str], url: str) -> None:
        self._command = [part.replace("{url}", url) for part in peer.worker]
        self._environment = environment

    def __enter__(self) -> tuple[subprocess.Popen[bytes], Any]:
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command, cwd=HERE, env=self._environment, stdout=self._output, stderr=self._output
        )
        return self._process, self._output

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def wait_until_done(name: str, done: Path, process: subprocess.Popen[bytes], output: Any) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    while not done.exists():
        if process.poll() is not None or time.monotonic() > until:
            output.seek(0)
            raise SystemExit(f"the worker of {name} did not do its jobs: {output.read().decode()[-500:]}")
        time.sleep(0.05)
    time.sleep(0.2)  # the last acknowledgements
    figures: dict[str, Any] = json.loads(done.read_text())
    return figures


def run_producer(name: str, how: str, environment: dict[str, str]) -> dict[str, float]:
    peer = PEERS[name]
    interpreter = THEIRS if peer.package else OWN
    command = (*peer.producer, how) if peer.producer else (interpreter, __file__, "--produce", name, how)
    output = subprocess.check_output(command, env=environment, cwd=HERE)
    figures: dict[str, float] = json.loads(output)
    return figures


def produce(name: str, how: str) -> None:
    """Runs in a process of its own: enqueue the jobs, and print seconds and CPU."""
    work, jobs = import_module(f"work.on_{name}"), int(os.environ["PEERS_JOBS"])
    getattr(work, "connect", lambda: None)()
    began = time.perf_counter(), time.process_time()
    if how == "bulk":
        work.enqueue_bulk(range(jobs))
    else:
        work.enqueue(paced(jobs) if how == "paced" else range(jobs))
    print(json.dumps({"seconds": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}))


def paced(jobs: int) -> Iterator[float]:
    """The time, every 15 ms or so: until then an idle worker has settled the last job."""
    for number in range(jobs):
        time.sleep(0.010 + 0.010 * (number * 7 % 10) / 10)
        now = time.monotonic()
        yield now if now % 1 else now + 1e-6


# --- the server and the versions ---


def open_a_port(server: Any) -> str:
    """Every library connects over the loopback, because some cannot use a unix socket. There is no append-only file."""
    server.config_set("appendonly", "no")
    server.config_set("bind", "127.0.0.1")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server.config_set("port", port)
    return f"redis://127.0.0.1:{port}/0"


def server_cpu(server: Any) -> float:
    cpu = server.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def python_path() -> str:
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def version_of(peer: Peer) -> str:
    """The installed version; "" if the peer is not installed."""
    if not peer.package:
        from penstock import __version__

        return __version__
    if peer.producer:
        manifest = FOLDER / "node" / "node_modules" / peer.package / "package.json"
        return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else ""
    ask = f"from importlib.metadata import version; print(version({peer.package!r}))"
    try:
        return subprocess.run((THEIRS, "-c", ask), capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# --- the table ---


def medians(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The median of each figure of each row."""
    return {
        name: {key: median(run[key] for run in runs) for key in COLUMNS if all(key in run for run in runs)}
        for name, runs in result["rows"].items()
    }


def conditions(result: dict[str, Any]) -> str:
    loops = [run[key] for runs in result["rows"].values() for run in runs for key in ("loop_before", "loop_after")]
    return (
        f"{result['date']}, --pin {result['pin']}, {result['jobs']:,} jobs, medians of {result['rounds']}; "
        f"{result['machine']}, {result['software']}, load {result['load'][0]:.1f} to {result['load'][1]:.1f}; "
        f"the calibration loop took {min(loops):.1f} to {max(loops):.1f} ms, in the median {median(loops):.1f}"
    )


def text_of(result: dict[str, Any]) -> str:
    """The conditions and a Markdown table. CPU is in seconds per 10,000 jobs."""
    lines = [conditions(result), "", f"| | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in medians(result).items():
        cells = [number(row[key]) if key in row else "" for key in COLUMNS]
        lines.append(f"| {label(result, name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def label(result: dict[str, Any], name: str) -> str:
    """The title of a row, with the version of its library. The yardstick is no library."""
    library, comma, variant = str(result["titles"][name]).partition(",")
    return library if name == YARDSTICK else f"{library} {result['versions'][name]}{comma}{variant}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value > 50 else f"{value:.2f}"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
