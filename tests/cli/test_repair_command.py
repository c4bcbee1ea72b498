"""`penstock dead retry --arguments`: a dead letter runs again with other arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.jobs.job import Job
from tests.command_line import Command

APP = """
from penstock import Penstock, Unique

app = Penstock(prefix={prefix!r})


@app.task(queue="mail", unique=Unique("{{to}}"))
async def greet(to: str, times: int = 1) -> None: ...
"""


@pytest.fixture
def spec(shop: Penstock, tmp_path: Path) -> str:
    path = tmp_path / f"repairing_app_of_{shop.settings.prefix}.py"
    path.write_text(APP.format(prefix=shop.settings.prefix))
    return f"{path}:app"


@pytest.fixture
def dead(shop: Penstock, penstock: Command, spec: str) -> Job[object]:
    _, out, _ = penstock("job", "enqueue", "greet", '["ada"]', "--app", spec, "--tenant", "acme")
    job = shop.job(out.removeprefix("Enqueued ").rstrip(".\n"))
    (item,) = shop.queue("mail").claim()
    item.fail("no such person")
    return job


def test_a_dead_letter_runs_again_with_other_arguments(shop: Penstock, penstock: Command, spec: str, dead: Job[object]):
    code, out, err = penstock("dead", "retry", dead.id, "--arguments", '{"to": "bo", "times": 2}', "--app", spec)
    assert (code, err) == (Exit.OK, "")
    assert "requeued with these arguments" in out
    info = dead.info()
    assert (str(info.status), info.tenant, info.body) == ("ready", "acme", ["greet", {"to": "bo", "times": 2}])
    code, out, _ = penstock("job", "show", dead.id)
    assert code == Exit.OK
    assert 'they were {"to": "ada"}' in " ".join(out.split())
    assert "no such person" in out
    assert penstock("dead", "retry", dead.id, "--arguments", '{"to": "cy"}', "--app", spec)[0] == Exit.FAILED


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ID", "--arguments", '{"to": "bo"}'), "needs the app that has the task: --app"),
        (("ID", "--arguments", '["bo"]', "--app", "SPEC"), "not a JSON object"),
        (("ID", "--arguments", "{to: bo}", "--app", "SPEC"), "not a JSON object"),
        (("ID", "--arguments", '{"to": 7}', "--app", "SPEC"), "Expected `str`, got `int`"),
        (("ID", "--arguments", '{"too": "bo"}', "--app", "SPEC"), "no parameter too"),
        (("ID", "ID", "--arguments", '{"to": "bo"}', "--app", "SPEC"), "is for one job"),
        (("--all", "mail", "--arguments", '{"to": "bo"}', "--app", "SPEC"), "is for one job"),
        (("mail:none", "--arguments", '{"to": "bo"}', "--app", "SPEC"), "is not a dead letter"),
    ],
    ids=range(8),
)
def test_what_does_not_fit_changes_nothing(
    penstock: Command, spec: str, dead: Job[object], words: tuple[str, ...], says: str
):
    before = dead.info()
    code, _, err = penstock("dead", "retry", *(word.replace("SPEC", spec).replace("ID", dead.id) for word in words))
    assert code != Exit.OK
    assert says in " ".join(err.split())
    assert dead.info() == before
