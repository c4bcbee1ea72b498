"""`penstock schedule …`: list, add, run, pause, resume and remove schedules."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from tests.command_line import Command

APP = """
from penstock import Penstock

app = Penstock(prefix={prefix!r})


@app.task(queue="mail")
async def greet(name: str) -> None: ...
"""


@pytest.fixture
def spec(shop: Penstock, tmp_path: Path) -> str:
    path = tmp_path / f"mail_app_of_{shop.settings.prefix}.py"
    path.write_text(APP.format(prefix=shop.settings.prefix))
    return f"{path}:app"


def add(penstock: Command, spec: str, name: str = "morning") -> tuple[int, str, str]:
    return penstock(
        "schedule",
        "add",
        name,
        "greet",
        "--app",
        spec,
        "--cron",
        "0 7 * * *",
        "--timezone",
        "Europe/Berlin",
        "--arguments",
        '{"name": "ada"}',
    )


def listed(penstock: Command, *words: str) -> list[dict[str, Any]]:
    code, out, _ = penstock("schedule", "ls", *words, "--json")
    assert code == Exit.OK
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_a_schedule_is_added_run_paused_resumed_and_removed(shop: Penstock, penstock: Command, spec: str):
    code, out, err = add(penstock, spec)
    assert code == Exit.OK, err
    assert out.startswith("Added mail:morning, 0 7 * * * Europe/Berlin; next 2")
    (one,) = listed(penstock)
    assert (one["id"], one["state"], one["body"]) == ("mail:morning", "active", ["greet", {"name": "ada"}])
    assert penstock("schedule", "pause", "morning")[1] == "Paused mail:morning.\n"
    assert [one["state"] for one in listed(penstock, "mail")] == ["paused"]
    assert penstock("schedule", "run", "mail:morning")[1].startswith("Enqueued mail:schedule:morning:")
    assert shop.queue("mail").count().ready == 1
    assert penstock("schedule", "resume", "morning")[1].startswith("Resumed mail:morning; next 2")
    assert "mail:morning" in penstock("schedule", "ls")[1]
    assert penstock("schedule", "rm", "morning")[1] == "Removed mail:morning.\n"
    assert penstock("schedule", "ls")[1] == "There are no schedules.\n"


def test_what_is_wrong_is_one_line_that_says_so(shop: Penstock, penstock: Command, spec: str):
    shop.queue("mail").put(1)
    add(penstock, spec)
    code, _, err = penstock("schedule", "pause", "mornin")
    assert (code, "no schedule 'mornin'" in err, "there is morning" in err) == (Exit.FAILED, True, True)
    for words, text in [
        (("add", "x", "greet", "--cron", "0 7 * * *"), "needs the app"),
        (("add", "x", "greet", "--app", spec, "--cron", "0 7 * * *"), "name"),
        (("add", "x", "gret", "--app", spec, "--cron", "0 7 * * *"), "did you mean 'greet'"),
        (("add", "x", "greet", "--app", spec, "--cron", "often", "--arguments", '{"name": "a"}'), "five fields"),
        (("add", "x", "greet", "--app", spec, "--cron", "* * * * *", "--arguments", "3"), "not a JSON object"),
        (("rm",), "name the schedules"),
    ]:
        code, _, err = penstock("schedule", *words)
        assert code != Exit.OK
        assert text in err, err


def test_a_schedule_is_shown_with_its_last_runs(shop: Penstock, penstock: Command, spec: str):
    add(penstock, spec)
    assert penstock("schedule", "show", "morning")[0] == Exit.OK
    penstock("schedule", "run", "morning")
    (item,) = shop.queue("mail").claim()
    item.complete()
    code, out, _ = penstock("schedule", "show", "mail:morning")
    assert code == Exit.OK
    assert re.search(rf"{item.id} +completed +in [\d.]+ m?s +[\d.]+ s ago", out)
    assert re.search(r"completed in [\d.]+ m?s +0 ", penstock("schedule", "ls")[1])
    (run,) = json.loads(penstock("schedule", "show", "morning", "--json")[1])["runs"]
    assert (run["job"], run["outcome"]) == (item.id, "completed")
    code, _, err = penstock("schedule", "show", "evening")
    assert code == Exit.FAILED
    assert "no schedule 'evening'" in err
