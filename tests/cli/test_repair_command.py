"""`penstock dead retry --arguments` and `penstock job run-again`: a job runs again, with other arguments or its own."""

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


@pytest.fixture
def done(shop: Penstock, penstock: Command, spec: str) -> Job[object]:
    _, out, _ = penstock("job", "enqueue", "greet", '["ada"]', "--app", spec, "--tenant", "acme")
    assert "keeps arguments of ended jobs" in penstock("queue", "keep", "mail", "--arguments")[1]
    job = shop.job(out.removeprefix("Enqueued ").rstrip(".\n"))
    (item,) = shop.queue("mail").claim()
    item.complete()
    return job


def test_ended_jobs_run_again_as_new_ones(shop: Penstock, penstock: Command, spec: str, done: Job[object]):
    assert "arguments of ended jobs" in penstock("queue", "show", "mail")[1]
    assert '{"to": "ada"}' in penstock("job", "show", done.id)[1]
    code, out, err = penstock("job", "run-again", done.id, "mail:none")
    assert code == Exit.FAILED
    assert "no row of job mail:none" in err
    new = shop.job(" ".join(out.split()).partition("runs again as ")[2])
    assert (new.info().body, new.info().tenant) == (["greet", {"to": "ada"}], "acme")
    assert "can run again when it has ended" in penstock("job", "run-again", new.id)[2]
    penstock("queue", "keep", "mail", "--no-arguments")
    code, _, err = penstock("job", "run-again", done.id)
    assert code == Exit.FAILED
    assert "penstock queue keep mail --arguments" in " ".join(err.split())
    code, out, _ = penstock("job", "run-again", done.id, "--arguments", '{"to": "bo"}', "--app", spec)
    assert code == Exit.OK
    other = shop.job(" ".join(out.split()).partition("runs again as ")[2])
    assert (other.info().body, other.info().tenant) == (["greet", {"to": "bo"}], "acme")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name jobs by their ids"),
        (("ID", "--arguments", '{"to": "bo"}'), "needs the app that has the task: --app"),
        (("ID", "--arguments", '["bo"]', "--app", "SPEC"), "not a JSON object"),
        (("ID", "--arguments", '{"to": 7}', "--app", "SPEC"), "Expected `str`, got `int`"),
        (("ID", "ID", "--arguments", '{"to": "bo"}', "--app", "SPEC"), "is for one job"),
        (("ID", "nothing"), "must have the form queue:key"),
    ],
    ids=range(6),
)
def test_a_mistake_enqueues_nothing(
    shop: Penstock, penstock: Command, spec: str, done: Job[object], words: tuple[str, ...], says: str
):
    before = shop.queue("mail").count().unfinished
    code, _, err = penstock("job", "run-again", *(word.replace("SPEC", spec).replace("ID", done.id) for word in words))
    assert code == Exit.USAGE
    assert says in " ".join(err.split())
    assert shop.queue("mail").count().unfinished == before


def test_a_job_that_is_named_twice_runs_again_once(shop: Penstock, penstock: Command):
    shop.queue("mail").keep(arguments=True)
    job = shop.queue("mail").put("x")
    (item,) = shop.queue("mail").claim()
    item.complete()
    code, out, _ = penstock("job", "run-again", job.id, job.id)
    assert (code, out.count(" runs again as ")) == (Exit.OK, 1)
    assert [item.complete() for item in shop.queue("mail").claim(9)] == [None]


def test_a_filter_for_more_jobs_than_one_command_runs_again_says_so(
    shop: Penstock, penstock: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.cli.job_actions.MOST_AGAIN", 2)
    queue = shop.queue("mail")
    queue.keep(arguments=True)
    for n in range(3):
        queue.put(n)
    for item in queue.claim(3):
        item.complete()
    words = ("job", "run-again", "--queue", "mail", "--state", "completed", "--yes")
    code, out, err = penstock(*words)
    assert (code, len(out.splitlines()), "more jobs match; these are the latest 2" in err) == (Exit.OK, 2, True)
    monkeypatch.setattr("penstock.cli.job_actions.MOST_AGAIN", 3)
    code, out, err = penstock(*words)
    assert (code, len(out.splitlines()), "more jobs match" in err) == (Exit.OK, 3, False)


def test_ended_jobs_run_again_by_a_filter(shop: Penstock, penstock: Command):
    queue = shop.queue("mail")
    queue.keep(arguments=True)
    for n, tenant in enumerate(("acme", "acme", "bo")):
        queue.put(n, tenant=tenant)
    for item in queue.claim(3):
        item.complete()
    words = ("job", "run-again", "--queue", "mail", "--state", "completed", "--tenant", "acme")
    code, _, err = penstock(*words)
    assert (code, queue.count().ready) == (Exit.USAGE, 0), "it asks first"
    assert "--yes" in err
    code, out, _ = penstock(*words, "--yes")
    assert (code, len(out.splitlines())) == (Exit.OK, 2)
    assert sorted(item.body for item in queue.claim(5)) == [0, 1]
    assert penstock("job", "run-again", "--queue", "mail", "--state", "expired", "--yes")[1] == "No job matches.\n"
    for wrong in (["--queue", "mail"], ["--queue", "mail", "--state", "dead"], ["--state", "completed"], []):
        assert penstock("job", "run-again", *wrong, "--yes")[0] == Exit.USAGE
    assert penstock("job", "run-again", "mail:x", "--queue", "mail")[0] == Exit.USAGE
