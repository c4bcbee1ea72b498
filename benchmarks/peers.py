"""Penstock and its peers on the same work, one library after another, on one server in one run.

    pip install 'dramatiq[redis]' huey saq typing_extensions arq rq     # libraries that are not installed are skipped
    python benchmarks/peers.py --pin same [--jobs 20000] [--rounds 3] [penstock dramatiq …]

Each library gets an empty server. One process enqueues no-op jobs, one after another; then one worker process starts
and drains them. Seconds and CPU of the drain count from the first job to the last, as the worker process measures them.
The server's CPU includes the worker's start. The table shows medians of the rounds.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from penstock import Penstock, PenstockError, __version__
from penstock.bench.placement import placed
from penstock.ops.raw_client import raw_client
from penstock.testing import TemporaryServer

HERE = Path(__file__).parent
PEERS = ("penstock", "dramatiq", "huey", "saq", "arq", "rq")
PATIENCE = 300.0
COLUMNS = {
    "enqueue_per_s": "enqueue/s",
    "drain_per_s": "drain/s",
    "producer_cpu": "producer",
    "worker_cpu": "worker",
    "server_cpu_enqueue": "server, enqueue",
    "server_cpu_drain": "server, drain",
    "bytes_per_job": "B/job",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="peer", help=", ".join(PEERS))
    parser.add_argument("--pin", choices=("same", "split", "free"), default="free")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        produce(options.produce, options.jobs)
        return
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"no peer {', '.join(unknown)}: there are {', '.join(PEERS)}")
    chosen = [name for name in options.peers or PEERS if find_spec(name)]
    rows = {name: [] for name in chosen}
    with (
        TemporaryServer() as own,
        placed(options.pin, own),
        Penstock(own.address) as app,
        raw_client(app) as server,
    ):
        url = open_a_port(server)
        for _ in range(options.rounds):  # round by round, so that a busy minute of the machine affects every library
            for name in chosen:
                server.flushall()
                rows[name].append(measure(name, options.jobs, url, server))
    medians = {name: {key: median(run[key] for run in runs) for key in COLUMNS} for name, runs in rows.items()}
    if options.json:
        print(
            json.dumps({"pin": options.pin, "jobs": options.jobs, "rounds": options.rounds, "peers": medians}, indent=2)
        )
    else:
        show(medians, options)


def open_a_port(server):
    """Every library connects over the loopback, because some cannot use a unix socket. There is no append-only file."""
    server.config_set("appendonly", "no")
    server.config_set("bind", "127.0.0.1")
    port = free_port()
    server.config_set("port", port)
    return f"redis://127.0.0.1:{port}/0"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def measure(name, jobs, url, server):
    """One round of one library."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        environment = {**os.environ, "PEERS_URL": url, "PEERS_DONE": str(done), "PYTHONPATH": python_path()}
        os.environ["PEERS_URL"] = url
        work = import_module(f"work.on_{name}")
        jobs = round(jobs * getattr(work, "SHARE", 1))
        environment |= {"PEERS_JOBS": str(jobs), **getattr(work, "ENVIRONMENT", {})}
        memory, spent = server.info("memory")["used_memory"], server_cpu(server)
        produced = json.loads(subprocess.check_output(
            [sys.executable, __file__, "--produce", name, "--jobs", str(jobs)], env=environment, cwd=HERE,
        ))  # fmt: skip
        enqueue_cpu = server_cpu(server) - spent
        held = server.info("memory")["used_memory"] - memory
        spent = server_cpu(server)
        drained = drain(name, work.COMMAND, done, environment)
        return {
            "enqueue_per_s": jobs / produced["seconds"],
            "drain_per_s": jobs / drained["seconds"],
            "producer_cpu": produced["cpu"] / jobs * 1e4,
            "worker_cpu": drained["cpu"] / jobs * 1e4,
            "server_cpu_enqueue": enqueue_cpu / jobs * 1e4,
            "server_cpu_drain": (server_cpu(server) - spent) / jobs * 1e4,
            "bytes_per_job": held / jobs,
        }


def drain(name, command, done, environment):
    """Start the worker and wait until it has done all jobs."""
    arguments = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    if command[0] == "penstock":
        arguments = [sys.executable, "-m", *command]
    with tempfile.TemporaryFile() as output:
        worker = subprocess.Popen(arguments, cwd=HERE, env=environment, stdout=output, stderr=output)
        try:
            until = time.monotonic() + PATIENCE
            while not done.exists():
                if worker.poll() is not None or time.monotonic() > until:
                    output.seek(0)
                    raise PenstockError(f"the worker of {name} did not do its jobs: {output.read().decode()[-500:]}")
                time.sleep(0.05)
            time.sleep(0.2)  # the last acknowledgements
        finally:
            worker.terminate()
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
    return json.loads(done.read_text())


def produce(name, jobs):
    """Runs in a process of its own: enqueue the jobs and print seconds and CPU."""
    work = import_module(f"work.on_{name}")
    getattr(work, "connect", lambda: None)()
    began = time.perf_counter(), time.process_time()
    work.enqueue(jobs)
    print(json.dumps({"seconds": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}))


def server_cpu(server):
    cpu = server.info("cpu")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def python_path():
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def show(rows, options):
    print(
        f"pin {options.pin}, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}; CPU is seconds per 10,000 jobs\n"
    )
    print("| peer |", " | ".join(COLUMNS.values()), "|")
    print("|---|" + "---|" * len(COLUMNS))
    for name, row in rows.items():
        numbers = [f"{row[key]:,.0f}" if row[key] > 50 else f"{row[key]:.2f}" for key in COLUMNS]
        print(f"| {name} {__version__ if name == 'penstock' else version(name)} |", " | ".join(numbers), "|")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
