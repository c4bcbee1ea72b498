"""`penstock job enqueue`: a call from the terminal, checked against the app or sent as it is."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.ops.inspect import Inspector
from tests.command_line import Command

APP = """
from datetime import datetime

from penstock import Concurrency, Penstock

app = Penstock(prefix={prefix!r})


@app.task(queue="mail", limit=Concurrency(1, key="{{to}}"))
async def greet(to: str, at: datetime | None = None) -> None: ...
"""


@pytest.fixture
def spec(shop: Penstock, tmp_path: Path) -> str:
    path = tmp_path / f"greeting_app_of_{shop.settings.prefix}.py"
    path.write_text(APP.format(prefix=shop.settings.prefix))
    return f"{path}:app"


def test_a_call_is_checked_against_the_app(shop: Penstock, penstock: Command, spec: str):
    words = ("--app", spec, "--tenant", "acme", "--priority", "2", "--delay", "10m")
    arguments = '{"to": "ada", "at": "2026-03-01T07:00:00+01:00"}'
    code, out, err = penstock("job", "enqueue", "greet", arguments, *words, "--tag", "order:17", "--tag", "vip")
    assert (code, err) == (Exit.OK, "")
    job = shop.job(out.removeprefix("Enqueued ").rstrip(".\n")).info()
    assert (job.task, job.tenant, job.priority, str(job.status)) == ("greet", "acme", 2, "delayed")
    assert tuple(job.tags) == ("order:17", "vip")
    assert datetime.fromisoformat(job.body[1]["at"]).hour == 7
    assert (job.since or 0) - (job.enqueued or 0) == pytest.approx(600, abs=1)


def test_limits_and_the_queue_of_the_task_apply(shop: Penstock, penstock: Command, spec: str):
    for arguments in ('["ada"]', '{"to": "ada"}'):
        assert penstock("job", "enqueue", "greet", arguments, "--app", spec)[0] == Exit.OK
    assert (shop.queue("mail").count().ready, shop.queue("mail").count().parked) == (1, 1)
    assert penstock("job", "enqueue", "greet", '["ada"]', "--app", spec, "--queue", "other")[0] == Exit.OK
    assert shop.queue("other").count().ready == 1


def test_without_an_app_the_call_is_sent_as_it_is_and_says_so(shop: Penstock, penstock: Command):
    code, out, err = penstock("job", "enqueue", "greet", '{"who": 7}', "--queue", "raw", "--tenant", "bo", "--tag", "a")
    assert code == Exit.OK
    assert "not checked: without --app" in err
    job = shop.job(out.removeprefix("Enqueued ").rstrip(".\n")).info()
    assert (job.body, job.tenant, tuple(job.tags)) == (["greet", {"who": 7}], "bo", ("a",))
    assert (shop.queue("raw").claim()[0]).body == ["greet", {"who": 7}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("greet", '{"to": "ada"}'), "name the queue, --queue NAME, or the app"),
        (("greet", "{to: ada}", "--queue", "raw"), "neither a JSON object nor a JSON array"),
        (("greet", '"ada"', "--queue", "raw"), "neither a JSON object nor a JSON array"),
        (("greet", '["ada"]', "--queue", "raw"), "give the arguments by name"),
        (("", "{}", "--queue", "raw"), "a name has 1 to 255 bytes"),
        (("x" * 256, "{}", "--queue", "raw"), "a name has 1 to 255 bytes"),
        (("greet", "{}", "--queue", "raw", "--priority", "12"), "--priority 12"),
        (("greet", "{}", "--queue", "bad name{"), "queue"),
        (("greet", "{}", "--queue", "raw", "--tag", "x" * 65), "a tag has 1 to 64 bytes"),
        (("greet", "{}", "--queue", "raw", "--tenant", "x" * 256), "at most 255 bytes"),
        (("greet", '{"to": 7}', "--app", "SPEC"), "Expected `str`, got `int`"),
        (("greet", '{"too": "ada"}', "--app", "SPEC"), "no parameter too"),
        (("gret", "{}", "--app", "SPEC"), "did you mean 'greet'?"),
        (("greet", "{}", "--app", "no_such_module:app"), "no module 'no_such_module'"),
    ],
)
def test_a_call_that_cannot_be_is_one_clear_error(
    shop: Penstock, penstock: Command, spec: str, words: tuple[str, ...], says: str
):
    code, out, err = penstock("job", "enqueue", *(spec if word == "SPEC" else word for word in words))
    assert code != Exit.OK
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert sum(view.counts.waiting for view in Inspector(shop).queues.all()) == 0


def test_a_call_goes_to_the_shard_of_its_tenant(shop: Penstock, penstock: Command):
    queue = shop.queue("split", shards=3)
    for tenant in "abcdef":
        assert penstock("job", "enqueue", "greet", "{}", "--queue", "split", "--tenant", tenant)[0] == Exit.OK
    for tenant in "abcdef":
        assert queue.tenant(tenant).count().ready == 1
