"""Every `--json` prints one document with the fields and types of `json_schemas.json`: programs rely on them.

A change that is meant: `PENSTOCK_WRITE_SCHEMAS=1 .venv/bin/pytest tests/cli/test_json_schemas.py` writes the file anew.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from penstock import Concurrency, Penstock
from penstock.cli import COMMANDS
from penstock.jobs.claims import Registration
from penstock.jobs.notes import encode_notes
from penstock.jobs.output import pack_block
from penstock.testing import MovableClock
from tests.command_line import Command
from tests.servers import eventually

FILE = Path(__file__).with_name("json_schemas.json")
WRITE = "PENSTOCK_WRITE_SCHEMAS" in os.environ

ELSEWHERE = {
    "demo": "tests/demo/test_demo.py",
    "bench": "tests/bench/test_bench.py",
    "outbox ls": "tests/sql/test_outbox_commands.py",
    "server status": "tests/cli/test_server_command.py",
}
"""Commands that start servers of their own. The tests that do this look at what they print."""

LOG = '203.0.113.9 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326\n'


def takes_json(target: str) -> bool:
    module, _, name = target.partition(":")
    app = App()
    app.default(getattr(import_module(module), name))
    return any("--json" in argument.names for argument in app.assemble_argument_collection())


def shape(value: Any) -> Any:
    """The types of a document: an array of the different shapes of its elements, an object of the shapes of its fields.

    A whole number and a fraction are both "number", because the same figure may be either.
    """
    match value:
        case dict():
            return {name: shape(value[name]) for name in sorted(value)}
        case list():
            shapes = {json.dumps(one): one for one in map(shape, value)}
            return [shapes[text] for text in sorted(shapes)]
        case bool() | None:
            return json.dumps(value) if value is None else "boolean"
        case int() | float():
            return "number"
    return "string"


@pytest.fixture
def commands(shop: Penstock, tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """The words of each command with `--json`, on a server that has one of everything."""
    clock = MovableClock(shop)
    with ExitStack() as open_until_the_end:
        jobs = add_jobs(shop, clock)
        add_messages_and_names(shop)
        hold_everything(shop, open_until_the_end)
        (tmp_path / "access.log").write_text(LOG * 3)
        (tmp_path / "names.txt").write_text("u1\tEmil\n")
        yield {
            "worker ls": [],
            "worker show": ["host:7"],
            "task ls": [],
            "queue ls": [],
            "queue show": ["mail"],
            "top": ["--once"],
            "queue history": ["mail"],
            "queue limits": ["mail"],
            "job ls": ["--queue", "mail"],
            "job show": [jobs["tried"]],
            "job why": [jobs["last"]],
            "job output": [jobs["talks"]],
            "job log": [jobs["talks"]],
            "job tree": [jobs["last"]],
            "dead ls": ["mail"],
            "dead groups": ["mail"],
            "dead show": [jobs["dead"]],
            "schedule ls": [],
            "schedule show": ["mail:hourly"],
            "mailbox ls": [],
            "mailbox show": ["ada"],
            "chat ls": [],
            "chat show": ["team"],
            "contacts ls": [],
            "contacts show": ["user:17"],
            "directory ls": [],
            "directory import": ["staff", "names.txt"],
            "directory complete": ["people", "em"],
            "directory top": ["people"],
            "directory get": ["people", "u1"],
            "directory count": ["people"],
            "files send": ["access.log", "--channel", "logs", "--to", "agg"],
            "files receive": ["--channel", "logs", "--as", "agg", "--into", "saved", "--wait", "0"],
            "files ls": [],
            "logs count": ["access.log"],
            "lock ls": [],
            "semaphore ls": [],
            "semaphore show": ["market"],
            "ratelimit ls": [],
            "ratelimit show": ["api"],
            "rwlock ls": [],
            "rwlock show": ["book"],
            "election ls": [],
            "election show": ["chief"],
            "latch ls": [],
            "latch show": ["import"],
            "barrier ls": [],
            "barrier show": ["start"],
            "doctor": [],
        }


def add_jobs(shop: Penstock, clock: MovableClock) -> dict[str, str]:
    """A job in each state, with a tenant, a limit, a schedule, jobs that wait for others, and a worker."""

    @shop.task(queue="mail")
    async def send(to: str) -> str:
        return to

    @shop.task(queue="mail", limit=Concurrency(1, key="{to}"))
    async def call(to: str) -> None: ...

    mail = shop.queue("mail")
    tried = send.using(tenant="acme").enqueue("Zoë")
    (claim,) = mail.claim(1)
    claim.retry(0, "it was busy")
    buried = send.enqueue("nobody")
    for claim in mail.claim(5):
        if claim.id == buried.id:
            claim.fail("it broke")
        else:
            claim.release()
    last = send.using(after=[send.enqueue("first")]).enqueue("last")
    call.enqueue("ada")
    call.enqueue("ada")
    send.using(delay=3600).enqueue("later")
    shop.schedules.add("hourly", send.call("hour"), every=3600)
    mail.pause(tenant="bo")
    turn = mail.first.bindings.turn("inc", 1, lease=60, want=1, registration=Registration("host:7", 10), memory=2048)
    shop._driver.blocking.run(turn)
    emits = shop.queue("talk").put("hello")
    run, bindings = shop._driver.blocking.run, emits.shard.bindings
    (emitting,) = run(bindings.turn("other", 1, lease=60, want=1, registration=Registration("host:8", 10))).claims
    chunk = pack_block(1, [b'"so that --json prints a line"'], missed=0, attempt=1)
    line = encode_notes(b"", [b"so that --json prints a line"])
    token = emitting.token
    run(bindings.turn("other", 2, lease=60, want=0, emitted=[(token, chunk)], notes=[(token, line)]))
    for _ in range(2):  # a turn in each of two intervals of the history
        clock.advance(10)
        for claim in mail.claim(1):
            claim.release()
    return {"tried": tried.id, "dead": buried.id, "last": last.id, "talks": emits.id}


def add_messages_and_names(shop: Penstock) -> None:
    ada = shop.mailbox("ada")
    ada.post("hello")
    ada.post("and again")
    chat = shop.chats.create(members=["ada", "bo"], id="team")
    shop.contacts("user:17").touch("Zoë")
    chat.send("ada", "hello")
    people = shop.directory("people")
    people.add("Emil", id="u1")
    people.add("Emma", id="u2", payload=b"rank 1")


def hold_everything(shop: Penstock, until: ExitStack) -> None:
    until.enter_context(shop.lock("till", lease=10))
    until.enter_context(shop.read_write_lock("book", lease=10).read())
    until.enter_context(shop.semaphore("market", limit=2))
    shop.rate_limit("api", limit=100, per=86400).acquire(50)
    until.enter_context(shop.election("chief", value="one"))
    shop.latch("import", count=3).count_down()
    parties = shop.barrier("start", parties=2)
    waits = threading.Thread(target=parties.wait)
    waits.start()
    eventually(lambda: parties.info().waiting == 1)

    def end() -> None:
        parties.wait()
        waits.join()

    until.callback(end)


def test_every_command_with_json_has_a_schema(commands: dict[str, list[str]]):
    wanted = {command.name for command in COMMANDS if takes_json(command.target)}
    assert set(commands) | set(ELSEWHERE) == wanted
    assert set(json.loads(FILE.read_text("utf-8"))) == set(commands)


def test_every_json_document_has_the_fields_and_types_of_its_schema(commands: dict[str, list[str]], penstock: Command):
    found: dict[str, Any] = {}
    for command, words in commands.items():
        _, out, err = penstock(*command.split(), *words, "--json")
        assert out, (command, err)
        found[command] = shape(json.loads(out))
    if WRITE:
        FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert found == json.loads(FILE.read_text("utf-8"))
