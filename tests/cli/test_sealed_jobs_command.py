"""The command line on an app that seals: it opens what it can, and shows the id of the key for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command
from tests.conftest import Apps
from tests.seals import MARKER, TestSeal, stored
from tests.servers import Server

APP = """
from penstock import Penstock, Settings
from tests.seals import TestSeal

seal = TestSeal("k1")
app = Penstock(settings=Settings(prefix={prefix!r}, seal=seal))


@app.task(queue="mail")
async def greet(to: str) -> str:
    if to == "nobody":
        raise ValueError("no " + to)
    return "dear " + to
"""


@pytest.fixture
def spec(shop: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"sealing_app_of_{shop.settings.prefix}"
    (tmp_path / f"{name}.py").write_text(APP.format(prefix=shop.settings.prefix))
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


@pytest.fixture
def job(shop: Penstock, penstock: Command, spec: str) -> str:
    _, out, _ = penstock("job", "enqueue", "greet", json.dumps([MARKER]), "--app", spec)
    return out.removeprefix("Enqueued ").rstrip(".\n")


def test_a_call_from_the_command_line_is_sealed_by_its_app(
    shop: Penstock, penstock: Command, spec: str, job: str, server: Server
):
    assert stored(server.client, MARKER) == []
    code, out, err = penstock("job", "show", job, "--app", spec)
    assert (code, err) == (Exit.OK, "")
    assert MARKER in out


def test_without_the_key_the_id_of_the_key_is_shown(shop: Penstock, penstock: Command, job: str):
    code, out, err = penstock("job", "show", job)
    assert (code, err) == (Exit.OK, "")
    assert '["greet", "sealed with key k1"]' in out
    code, out, err = penstock("job", "show", job, "--json")
    assert (code, err) == (Exit.OK, "")
    assert json.loads(out)["body"] == ["greet", "sealed with key k1"]


def test_the_environment_names_the_codec(
    shop: Penstock, penstock: Command, spec: str, job: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PENSTOCK_SEAL", spec.replace(":app", ":seal"))
    code, out, err = penstock("job", "show", job)
    assert (code, err) == (Exit.OK, "")
    assert MARKER in out
    code, out, err = penstock("job", "enqueue", "greet", '{"to": "ada"}', "--queue", "mail")
    (one, two) = shop.queue("mail").claim(2)
    assert {one._claim.record.sealed_by, two._claim.record.sealed_by} == {"k1"}
    one.release()
    two.release()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nothing", "PENSTOCK_SEAL: 'nothing' does not name an object, as module:name does"),
        ("no_such_module:seal", "PENSTOCK_SEAL: 'no_such_module:seal' cannot be imported: ModuleNotFoundError"),
        ("json:dumps", "give an object with the methods seal(body) and open(sealed, key)"),
        ("tests.seals:TestSeal", "seal=TestSeal: give an object of this class, not the class"),
    ],
)
def test_a_codec_that_cannot_be_used_is_refused(
    shop: Penstock, penstock: Command, monkeypatch: pytest.MonkeyPatch, value: str, words: str
):
    monkeypatch.setenv("PENSTOCK_SEAL", value)
    code, _, err = penstock("queue", "ls")
    assert code != Exit.OK
    assert words in " ".join(err.split())


def test_a_dead_letter_is_shown_repaired_and_grouped(
    shop: Penstock, penstock: Command, apps: Apps, spec: str, job: str
):
    with apps.make(prefix=shop.settings.prefix, seal=TestSeal("k1")) as sealing:
        (item,) = sealing.queue("mail").claim()
        item.fail(f"ValueError: {MARKER}")
    _, out, _ = penstock("dead", "show", job)
    assert "ValueError (sealed with key k1)" in out
    _, out, _ = penstock("dead", "ls", "mail", "--app", spec)
    assert MARKER in " ".join(out.split())
    _, out, _ = penstock("dead", "groups", "mail")
    assert "ValueError (sealed with key" in " ".join(out.split())
    code, _, err = penstock("dead", "retry", job, "--arguments", '{"to": "bo"}', "--app", spec)
    assert (code, err) == (Exit.OK, "")
    _, out, _ = penstock("job", "show", job)
    assert "they were sealed with key k1" in " ".join(out.split())
    _, out, _ = penstock("job", "show", job, "--app", spec)
    assert '"bo"' in out
    assert f'they were {{"to": "{MARKER}"}}' in " ".join(out.split())


def test_dead_messages_are_shown(shop: Penstock, penstock: Command, apps: Apps, spec: str):
    with apps.make(prefix=shop.settings.prefix, seal=TestSeal("k1")) as sealing:
        box = sealing.mailbox("box")
        box.post(MARKER)
        (message,) = box.claim(1)
        message.fail(MARKER)
    _, out, _ = penstock("dead", "ls", "mailbox:box", "--json")
    letter: dict[str, Any] = json.loads(out)["letters"][0]
    assert (letter["body"], letter["reason"]) == ("sealed with key k1", "(sealed with key k1)")
    _, out, _ = penstock("dead", "show", letter["id"], "--app", spec)
    assert out.count(MARKER) == 2
    shop.mailbox("box").delete()
