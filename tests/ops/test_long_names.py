"""A name of ten thousand characters makes no long error and no long table, whichever component it is given to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Penstock, PenstockError
from penstock.cli import main
from penstock.terminal.tables import show_table
from tests.servers import Server

NAME = "x" * 10_000
WITH_SPACES = "x " * 5_000
LONGEST = 700
"""Characters of an error, the hint included."""

USES: dict[str, Callable[[Penstock, str], Any]] = {
    "queue": lambda app, name: app.queue(name).put(1),
    "tenant": lambda app, name: app.queue("mail").put(1, tenant=name),
    "id": lambda app, name: app.queue("mail").put(1, id=name),
    "job": lambda app, name: app.job(f"mail:{name}").info(),
    "no job": lambda app, name: app.job(name).status(),
    "requeue": lambda app, name: app.queue("mail").dead.requeue(name),
    "task": lambda app, name: app.task(name=name)(lambda: None),
    "lock": lambda app, name: app.lock(name, wait=0).acquire(),
    "locks": lambda app, name: app.lock([name, "b"], wait=0).acquire(),
    "semaphore": lambda app, name: app.semaphore(name, limit=1, wait=0).acquire(),
    "read-write lock": lambda app, name: app.read_write_lock(name, lease=10, wait=0).read().acquire(),
    "rate limit": lambda app, name: app.rate_limit(name, limit=1, per=1).try_acquire(),
    "election": lambda app, name: app.election(name, wait=0).campaign(),
    "latch": lambda app, name: app.latch(name, count=1).count_down(),
    "barrier": lambda app, name: app.barrier(name, parties=2).wait(0.01),
    "transaction": lambda app, name: app.transaction(name).set(name, 1).commit(),
    "contacts": lambda app, name: app.contacts(name).touch("Bo"),
    "contact": lambda app, name: app.contacts("ada").touch(name),
    "directory": lambda app, name: app.directory(name).add("Bo"),
    "entry": lambda app, name: app.directory("staff").add("Bo", name),
    "mailbox": lambda app, name: app.mailbox(name).post(1),
    "message id": lambda app, name: app.mailbox("ada").post(1, id=name),
    "position": lambda app, name: app.mailbox("ada").ack(name),
    "chat": lambda app, name: app.chats.get(name).send("ada", 1),
    "new chat": lambda app, name: app.chats.create([name], sender="ada"),
    "member": lambda app, name: app.chats.get("ops").join(name),
    "sender": lambda app, name: app.chats.get("ops").send(name, 1),
    "device": lambda app, name: app.chats.get("ops").reader("ada", name).pull(),
    "channel": lambda app, name: app.files(name).open(["a"]),
    "receiver": lambda app, name: app.files("access").open([name]),
}


@pytest.mark.parametrize("name", [NAME, WITH_SPACES], ids=["word", "spaces"])
def test_an_error_cuts_a_long_name(server: Server, name: str):
    long: dict[str, str] = {}
    with Penstock(server.address, prefix=f"long{len(set(name))}") as app:
        app.chats.create(["ada"], id="ops")
        for use, act in USES.items():
            try:
                act(app, name)
            except (PenstockError, ValueError) as error:
                if len(str(error)) > LONGEST:
                    long[use] = str(error)[:200]
    assert long == {}


COMMANDS = [
    "queue show",
    "queue pause",
    "queue history",
    "job show mail:",
    "dead ls",
    "dead show mail:",
    "chat ls",
    "lock break",
    "rwlock show",
    "election show",
    "latch show",
    "barrier show",
    "mailbox show",
    "directory count",
    "files ls",
    "schedule run",
    "worker show",
    "no-such-noun",
    "queue",
]


def test_the_command_line_cuts_a_long_name(server: Server, capsys: pytest.CaptureFixture[str]):
    long: dict[str, str] = {}
    for words in COMMANDS:
        *command, last = words.split()
        given = [*command, last + NAME] if last.endswith(":") else [*command, last, NAME]
        main([*given, "--url", server.address])
        shown = capsys.readouterr()
        if len(shown.out) + len(shown.err) > 2000:
            long[words] = (shown.err + shown.out)[:200]
    assert long == {}


def test_a_table_cuts_what_is_too_long_for_a_name(capsys: pytest.CaptureFixture[str]):
    show_table({"name": "name", "jobs": "number"}, [[NAME, 1], ["mail", 2]])
    assert len(capsys.readouterr().out) < 5 * 1100


def test_the_message_itself_stays_whole():
    error = PenstockError(f"{NAME!r} {WITH_SPACES!r}: use another name")
    assert str(error).endswith(": use another name")
    assert len(str(error)) < 600
    assert NAME in error.args[0]
