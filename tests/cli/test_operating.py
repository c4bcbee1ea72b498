"""`penstock queue|job|dead|worker …`: what a person reads, what a program reads, and nothing destroyed by accident."""

import asyncio
import contextlib
import getpass
import io
import json
import re
import socket
import sys
import time
import unicodedata

import pytest

from penstock import Concurrency, Penstock, Rate, Retention, current
from penstock.cli import COMMANDS
from penstock.cli.exits import Exit
from penstock.jobs.claims import Registration
from penstock.jobs.durable_bindings import StepBindings
from penstock.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.servers import Server


@pytest.fixture
def start():
    with contextlib.ExitStack() as started:
        yield lambda *options: started.enter_context(Server(*options))


class Keyboard(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes stdout a terminal of this width, and stdin a terminal with typed input."""

    def become(width, typed=""):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(sys, "stdin", Keyboard(typed))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    return become


def bury(queue, n, reason="it broke"):
    """Ids of dead letters, those of one moment in no order."""
    queue.put_many(range(n))
    items = queue.claim(n)
    for item in items:
        item.fail(reason)
    return [item.id for item in items]


# --- what is read ---


def test_every_read_answers_with_one_json_document(shop, penstock):
    (dead,) = bury(shop.queue("mail"), 1)
    job = shop.queue("mail").put({"to": "Zoë"}, tenant="acme")
    read = {
        ("queue", "ls"): lambda said: said[0]["counts"]["ready"] == 1,
        ("queue", "show", "mail"): lambda said: said["largest"][0]["name"] == "acme",
        ("job", "show", job.id): lambda said: said["body"] == {"to": "Zoë"} and said["status"] == "ready",
        ("dead", "ls", "mail"): lambda said: said["total"] == 1 and said["letters"][0]["id"] == dead,
        ("dead", "show", dead): lambda said: said["reason"] == "it broke",
        ("worker", "ls"): lambda said: said == [],
        ("job", "ls", "--state", "dead"): lambda said: [one["id"] for one in said["jobs"]] == [dead],
    }
    for words, is_right in read.items():
        code, out, err = penstock(*words, "--json")
        assert (code, err) == (Exit.OK, ""), words
        assert is_right(json.loads(out)), out


def test_nothing_is_there_yet(shop, penstock):
    assert penstock("queue", "ls")[1] == "No queue was used here yet.\n"
    assert penstock("worker", "ls")[1] == "There are no workers.\n"
    shop.queue("mail").put(1)
    assert penstock("dead", "ls", "mail")[1] == "No dead letters in mail.\n"
    assert penstock("dead", "ls", "mail", "--tag", "a")[1] == "No dead letter of mail has the tag 'a'.\n"
    assert penstock("dead", "ls", "mailbox:m", "--tag", "a")[0] == Exit.USAGE


def test_a_list_of_queues_shows_what_waits(shop, penstock):
    shop.queue("mail").put_many(range(1234))
    shop.queue("raw").put(1, delay=60)
    shop.queue("raw").pause()
    _, out, _ = penstock("queue", "ls")
    _, _, mail, raw = out.splitlines()
    assert mail.split()[:2] == ["mail", "1,234"]
    assert raw.split() == ["raw", "0", "1", "0", "0", "0", "0", "paused"]


def test_jobs_that_wait_for_other_jobs_are_shown_where_there_are_some(shop, penstock):
    @shop.task(queue="mail")
    def part() -> None: ...

    job = part.enqueue()
    assert "waiting" not in penstock("queue", "ls")[1] + penstock("queue", "show", "mail")[1]
    shop.queue("raw").put(1)
    for _ in range(2):
        part.using(after=job).enqueue()
    headings, _, mail, raw = penstock("queue", "ls")[1].splitlines()
    assert " ".join(headings.split()) == "queue ready oldest delayed sleeping parked waiting running dead"
    assert (mail.split()[-3:], raw.split()[-3:]) == (["2", "0", "0"], ["0", "0", "0"])
    shown = penstock("queue", "show", "mail")[1]
    assert re.search("^waiting +2, for other jobs$", shown, re.MULTILINE)
    assert re.search("^workers +0$", shown, re.MULTILINE)
    (item,) = shop.queue("mail").claim()
    item.fail("it broke")
    assert "mail has 1 dead letter; 2 jobs wait for other jobs" in penstock("doctor")[1]


def test_an_outbox_is_shown_until_it_is_delivered(shop, penstock, monkeypatch):
    async def deliver(*args):
        pass

    async def work():
        await Worker(shop, WorkerSettings(queues=("orders",), burst=True)).run()
        await shop._driver.aclose_loop()

    @shop.task(queue="mail")
    def remind(n: int) -> None: ...

    @shop.task(queue="orders")
    def order(n: int) -> None:
        current().stage.enqueue(remind.call(n))

    monkeypatch.setattr("penstock.worker.delivery.deliver", deliver)
    shop.enqueue_many(order.call(n) for n in range(3))
    asyncio.run(work())
    assert re.search(r"outbox +3 to mail, the oldest for ", penstock("queue", "show", "orders")[1])
    (said,) = json.loads(penstock("queue", "show", "orders", "--json")[1])["outbox"]
    assert (said["queue"], said["entries"]) == ("mail", 3)
    assert "outbox" not in penstock("queue", "show", "mail")[1]


def test_a_tenant_is_paused_shown_and_resumed(shop, penstock):
    shop.queue("mail").put(1, tenant="ada")
    shop.queue("mail").put(2, tenant="bo")
    code, out, _ = penstock("queue", "pause", "mail", "--tenant", "ada")
    assert (code, out) == (0, "mail, tenant 'ada' is paused; 0 running jobs continue, 2 wait.\n")
    shop.queue("mail").claim(5)
    assert penstock("queue", "ls")[1].splitlines()[-1].split()[-3:] == ["1", "scope", "paused"]
    detail = json.loads(penstock("queue", "show", "mail", "--json")[1])
    (pause,) = detail["pauses"]
    author = f"{getpass.getuser()}@{socket.gethostname()}"
    assert pause.pop("since") == pytest.approx(time.time(), abs=60)
    assert pause == {"task": None, "tenant": "ada", "parked": 1, "paused": True, "by": author}
    assert re.search(rf"tenant ada +1  paused [\d.]+ s ago by {author}", penstock("queue", "show", "mail")[1])
    assert penstock("queue", "resume", "mail", "--tenant", "ada")[0] == 0
    assert [item.body for item in shop.queue("mail").claim(5)] == [1]
    assert "both" not in penstock("queue", "show", "mail")[1]
    code, _, err = penstock("queue", "pause", "mail", "--tenant", "ada", "--task", "send")
    assert code != 0
    assert "one at a time" in err


def test_what_stays_paused_is_named_with_the_command_that_resumes_it(shop, penstock):
    shop.queue("mail").put(1, tenant="ada b")
    shop.queue("mail").pause(tenant="ada b")
    shop.queue("mail").pause(task="send")
    shop.queue("mail").pause()
    shop.queue("mail").claim(5)
    assert penstock("queue", "resume", "mail", "--task", "send")[1].splitlines() == [
        "mail, task send is resumed; 1 job waits.",
        "mail, tenant ada b stays paused: penstock queue resume mail --tenant 'ada b'",
        "mail stays paused: penstock queue resume mail",
    ]
    shown = penstock("queue", "show", "mail")[1]
    assert "To continue: penstock queue resume mail, with --task or --tenant and its name." in shown
    shop.queue("mail").pause(task="send")
    assert penstock("queue", "resume", "mail")[1].splitlines() == [
        "mail is resumed; 1 job waits.",
        "mail, task send stays paused: penstock queue resume mail --task send",
        "mail, tenant ada b stays paused: penstock queue resume mail --tenant 'ada b'",
    ]
    for number in range(12):
        shop.queue("mail").pause(task=f"t{number:02}")
    said = penstock("queue", "resume", "mail")[1].splitlines()
    assert (len(said), said[-1]) == (12, "4 more stay paused: penstock queue show mail")


def test_the_order_of_a_queue_is_chosen_and_shown(shop, penstock):
    shop.queue("mail").put(1)
    code, out, _ = penstock("queue", "order", "mail", "--by-time")
    assert code == 0
    assert out == "mail: tenants share the time of the workers equally; jobs that become due wait behind other jobs.\n"
    assert "open; tenants share the time of the workers" in penstock("queue", "show", "mail")[1]
    penstock("queue", "order", "mail", "--due-first", "--no-by-time")
    counts = shop.queue("mail").count()
    assert (counts.by_time, counts.due_first) == (False, True)
    assert penstock("queue", "order", "mail")[0] == Exit.USAGE
    assert penstock("queue", "order", "none", "--by-time")[0] == Exit.FAILED


def test_what_a_queue_keeps_is_set_and_shown(shop, penstock):
    shop.queue("mail").put(1)
    assert "keeps    all dead letters" in penstock("queue", "show", "mail")[1]
    _, out, _ = penstock("queue", "keep", "mail", "--dead-letters", "1000", "--dead-age", "30d")
    assert out == "mail keeps 1,000 dead letters, dead letters for 30 d.\n"
    assert shop.queue("mail").kept() == Retention(dead_letters=1000, dead_age=30 * 86400)
    _, out, _ = penstock("queue", "keep", "mail", "--arguments")
    assert out == "mail keeps 1,000 dead letters, dead letters for 30 d, arguments of ended jobs.\n"
    assert penstock("queue", "keep", "mail")[1] == out, "without an option it only shows"
    _, out, _ = penstock("queue", "keep", "mail", "--no-arguments", "--results", "5")
    assert out == "mail keeps 1,000 dead letters, dead letters for 30 d, 5 results.\n"
    assert shop.queue("mail").kept() == Retention(dead_letters=1000, dead_age=30 * 86400, results=5)
    _, out, _ = penstock("queue", "keep", "mail", "--reset", "--finished", "10")
    assert shop.queue("mail").kept() == Retention(finished=10)
    shop.queue("mail").keep(dead_letters=1000, dead_age=30 * 86400)
    assert penstock("queue", "keep", "mail", "--results", "-1")[0] != 0


def test_a_queue_shows_jobs_that_no_worker_knows(shop, penstock):
    job = shop.queue("mail").put("no call")

    async def work():
        async with Penstock(shop._driver.connector.address, prefix=shop.settings.prefix) as app:
            await Worker(app, WorkerSettings(queues=("mail",), burst=True)).run()

    import asyncio

    asyncio.run(work())
    _, out, _ = penstock("queue", "show", "mail")
    assert f"{job.id}  a bare value, not a call of a task" in out


def test_an_id_is_never_cut_and_a_reason_gives_way_at_a_terminal(shop, penstock, terminal):
    name = "a-queue-with-a-rather-long-name-that-somebody-made-up"
    ids = bury(shop.queue(name), 3, "it broke in a way that takes more words than there is room for " * 3)
    terminal(80)
    _, out, _ = penstock("dead", "ls", name)
    lines = out.splitlines()
    assert all(any(job_id in line for line in lines) for job_id in ids)
    assert all(len(line) <= 80 or line in ids for line in lines)
    assert "…" in out


def test_a_pipe_gets_whole_lines(shop, penstock):
    reason = "it broke in a way that takes more words than eighty columns have room for, by far"
    bury(shop.queue("mail"), 1, reason)
    _, out, _ = penstock("dead", "ls", "mail")
    assert reason in out.splitlines()[-1]


def test_a_hostile_name_cannot_drive_the_terminal(shop, penstock, terminal):
    shop.queue("mail").put(1, tenant="\x1b[31m\x07red \u202edne")
    bury(shop.queue("mail"), 1, "\x1b]0;title\x07\r\nreason")
    terminal(80)
    for words in (("queue", "show", "mail"), ("dead", "ls", "mail")):
        _, out, _ = penstock(*words)
        said = out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[31m", "").replace("\x1b[0m", "")
        assert not [c for c in said if unicodedata.category(c) in {"Cc", "Cf"} and c != "\n"]
        assert "\\x1b" in said


def test_wide_characters_stand_in_columns(shop, penstock):
    shop.queue("mail").put(1, tenant="名前")
    shop.queue("mail").put(1, tenant="plain")
    rows = penstock("queue", "show", "mail")[1].splitlines()[-2:]
    assert sorted(rows) == [
        "plain       1        0         0       0        0     0",
        "名前        1        0         0       0        0     0",
    ]


def test_dead_letters_come_in_pages(shop, penstock):
    ids = bury(shop.queue("mail"), 5)
    code, out, _ = penstock("dead", "ls", "mail", "--limit", "2", "--offset", "1")
    assert code == Exit.OK
    assert sum(job_id in out for job_id in ids) == 2
    assert out.endswith("2 to 3 of 5; --limit and --offset select others.\n")
    assert penstock("dead", "ls", "mail", "--offset", "9")[1] == "mail has only 5.\n"
    assert penstock("dead", "ls", "mail", "--limit", "0")[0] == Exit.USAGE


def test_a_dead_letter_shows_its_traceback_line_by_line(shop, penstock):
    @shop.task(queue="mail")
    def fail() -> None:
        raise ValueError("never")

    job = fail.enqueue()
    import asyncio

    asyncio.run(Worker(shop, WorkerSettings(burst=True)).run())
    _, out, _ = penstock("dead", "show", job.id)
    assert "\nTraceback (most recent call last):\n" in out
    assert out.endswith("ValueError: never\n")


def test_a_delayed_job_says_when_it_is_due(shop, penstock):
    job = shop.queue("mail").put(1, delay=3600, tenant="acme")
    _, out, _ = penstock("job", "show", job.id)
    facts = {line.split()[0]: line for line in out.splitlines()}
    assert "delayed" in facts["status"]
    assert "in 60 min" in facts["due"]


def test_the_job_of_a_task_names_it(shop, penstock):
    @shop.task(queue="mail")
    async def send(to: str) -> None: ...

    call, value = send.enqueue("Zoë"), shop.queue("mail").put("a value")
    assert json.loads(penstock("job", "show", call.id, "--json")[1])["task"] == send.name
    assert re.search(rf"^task +{re.escape(send.name)}$", penstock("job", "show", call.id)[1], re.MULTILINE)
    assert json.loads(penstock("job", "show", value.id, "--json")[1])["task"] == ""
    assert not re.search("^task ", penstock("job", "show", value.id)[1], re.MULTILINE)


def test_a_missing_thing_is_reported_in_one_line(shop, penstock):
    shop.queue("mail").put(1)
    for words, expected in {
        ("queue", "show", "mial"): "no queue 'mial'",
        ("queue", "pause", "mial"): "no queue 'mial'",
        ("job", "show", "mail:nobody"): "no job mail:nobody",
        ("dead", "show", "mail:nobody"): "it is unknown",
        ("job", "retry", "mail:nobody"): "no job mail:nobody",
    }.items():
        code, out, err = penstock(*words)
        assert (code, out, err.count("\n")) == (Exit.FAILED, "", 1), words
        assert expected in err


def test_a_job_that_is_not_dead_is_not_retried_and_why(shop, penstock):
    job = shop.queue("mail").put(1)
    code, out, err = penstock("job", "retry", job.id)
    assert (code, out) == (Exit.FAILED, "")
    assert f"job {job.id} is ready: only a dead letter can be retried; `penstock job run-again`" in err


def test_one_that_cannot_be_cancelled_does_not_stop_the_others(shop, penstock):
    running = shop.queue("mail").put(1)
    (item,) = shop.queue("mail").claim()
    waiting = shop.queue("mail").put(2)
    code, out, err = penstock("job", "cancel", running.id, waiting.id, "--yes")
    assert (code, out) == (Exit.FAILED, f"{waiting.id} cancelled\n")
    assert f"job {running.id} is running" in err
    item.complete()


# --- limits ---


def test_a_used_up_rate_shows_when_its_next_unit_comes_and_a_parked_job_its_limit(shop: Penstock, penstock):
    @shop.task(queue="mail", limit=[Rate(2, per=600, key="{to}", name="sends"), Concurrency(9)])
    def send(to: str) -> None: ...

    @shop.task(queue="mail", limit=Concurrency(1))
    def tidy() -> None: ...

    sent = [send.enqueue("ada") for _ in range(3)]
    tidied = [tidy.enqueue() for _ in range(2)]
    assert len(list(shop.queue("mail").claim(10))) == 3
    limits = {one["name"]: one for one in json.loads(penstock("queue", "limits", "mail", "--json")[1])}
    (usage,) = limits["sends"]["keys"]
    assert 295 < usage.pop("next_in") <= 300
    assert usage == {"key": "ada", "used": 0, "left": 0, "held_for": None, "parked": 1}
    assert limits["tidy"]["keys"] == [{"key": "", "used": 1, "left": 0, "next_in": None, "held_for": None, "parked": 1}]
    table = penstock("queue", "limits", "mail")[1]
    assert re.search(r"sends +rate +2 in 10 min +ada +0 +in (5 min|29\d s) +1", table), table

    assert re.search(r"parked at +limit sends, key ada\n", penstock("job", "show", sent[2].id)[1])
    assert re.search(r"parked at +limit tidy\n", penstock("job", "show", tidied[1].id)[1])
    shop.queue("mail").pause(task=tidy)
    late = tidy.enqueue()
    assert re.search(
        r"parked at +a pause of its task or tenant, or a closed key\n", penstock("job", "show", late.id)[1]
    )
    assert (sent[2].info().limit, sent[2].info().limit_key, late.info().limit) == ("sends", "ada", "")


def test_an_operator_closes_a_key_of_a_rate_and_opens_it(shop: Penstock, penstock):
    @shop.task(queue="mail", limit=Rate(100, per=1, key="{to}", name="sends"))
    def send(to: str) -> None: ...

    send.enqueue("ada")
    assert penstock("queue", "hold-limit", "mail", "sends", "ada", "--for", "15m")[1] == (
        "sends of mail for key ada is closed for 15 min.\n"
    )
    assert shop.queue("mail").claim(1) == []
    assert re.search(r"sends +rate .* ada +0 +closed for (15 min|14 min .*) +1", penstock("queue", "limits", "mail")[1])
    assert (
        penstock("queue", "hold-limit", "mail", "sends", "ada", "--open")[1] == "sends of mail for key ada is open.\n"
    )
    (item,) = shop.queue("mail").claim(1)
    item.complete()
    code, _, error = penstock("queue", "hold-limit", "mail", "sends", "ada")
    assert code
    assert "one of --for, --until and --open" in error
    code, _, error = penstock("queue", "hold-limit", "mail", "sends", "ada", "--until", "2001-01-01T00:00:00+00:00")
    assert code
    assert "name a time in the future, by the server's clock" in error


def test_a_rate_whose_units_belong_to_admitted_jobs_has_none_left(shop: Penstock):
    @shop.task(queue="mail", limit=Rate(2, per=600))
    def send() -> None: ...

    for _ in range(3):
        send.enqueue()
    (limit,) = shop.queue("mail").limits()
    (usage,) = limit.keys
    assert (usage.used, usage.left, usage.next_in, usage.parked) == (2, 0, None, 1)


def test_what_an_operator_chose_is_shown_without_rounding(shop: Penstock, penstock):
    @shop.task(queue="mail", limit=Rate(2, per=600, name="sends"))
    def send() -> None: ...

    send.enqueue()
    shop.queue("mail").claim(1)
    assert "at most 2 in 150 s" in penstock("queue", "limit", "mail", "sends", "--most", "2", "--per", "150")[1]
    assert re.search(r"sends +rate +2 in 150 s ", penstock("queue", "limits", "mail")[1])
    assert "dead letters for 60 h" in penstock("queue", "keep", "mail", "--dead-age", "60h")[1]


# --- which server, which app ---


def test_the_command_line_says_where_over_the_environment(shop, apps, penstock, server):
    other = apps.make()
    other.queue("theirs").put(1)
    _, out, _ = penstock("queue", "ls", "--url", server.address, "--prefix", other.settings.prefix, "--json")
    assert [queue["name"] for queue in json.loads(out)] == ["theirs"]
    other.close()


def test_an_app_that_names_its_server_in_code_is_asked(shop, penstock, server, tmp_path, monkeypatch):
    shop.queue("mail").put(1)
    text = f"from penstock import Penstock\nmine = Penstock({server.address!r}, prefix={shop.settings.prefix!r})\n"
    (tmp_path / "shop_of_a_test.py").write_text(text)
    monkeypatch.setenv("PENSTOCK_URL", "valkey://127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_PREFIX", "nobody")
    _, out, _ = penstock("queue", "ls", "--app", "shop_of_a_test:mine", "--json")
    assert [queue["name"] for queue in json.loads(out)] == ["mail"]


@pytest.mark.parametrize("words", ["queue ls", "queue pause mail", "lock break a --yes", "queue ls --app here.py:mine"])
def test_looking_makes_no_server_where_there_never_was_one(penstock, monkeypatch, tmp_path, words: str):
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "here.py").write_text("from penstock import Penstock\nmine = Penstock()\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = penstock(*words.split())
    assert code == Exit.USAGE
    assert "no server" in err
    assert not (tmp_path / ".penstock").exists()


def test_nobody_answers_at_the_address(penstock, monkeypatch, tmp_path):
    monkeypatch.setattr("penstock.cli.where.REPLY_TIMEOUT", 0.1)
    code, out, err = penstock("queue", "ls", "--url", f"unix://{tmp_path}/nobody")
    assert (code, out, err.count("\n")) == (Exit.SERVER, "", 1)


def test_a_server_that_is_frozen_is_given_up(penstock, monkeypatch, start):
    monkeypatch.setattr("penstock.cli.where.REPLY_TIMEOUT", 0.2)
    own = start()
    with own.frozen():
        code, out, err = penstock("queue", "ls", "--url", own.address)
    assert (code, out, err.count("\n")) == (Exit.SERVER, "", 1)


# --- nothing is destroyed by accident ---


DESTROYS = [
    (("queue", "purge", "mail"), "cancels 2 waiting jobs of queue mail"),
    (("queue", "purge", "mail", "--tenant", "acme"), "cancels 1 waiting job of queue mail, tenant 'acme'"),
    (("dead", "rm", "--all", "mail"), "deletes 3 dead letters of queue mail for good"),
    (("dead", "retry", "--all", "mail"), "runs 3 dead letters of queue mail again"),
    (("dead", "rm", "mail:x"), "deletes 1 dead letter for good"),
    (("job", "cancel", "mail:x", "mail:y"), "cancels 2 jobs"),
]


@pytest.fixture
def full(shop):
    bury(shop.queue("mail"), 3)
    shop.queue("mail").put(1, tenant="acme")
    shop.queue("mail").put(2)
    return shop.queue("mail")


@pytest.mark.parametrize(("words", "expected"), DESTROYS)
def test_without_a_terminal_and_without_yes_nothing_is_done(full, shop, server, penstock, monkeypatch, words, expected):
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    before = full.count()
    code, out, err = penstock(*words)
    assert (code, out) == (Exit.USAGE, "")
    assert expected in err
    assert f", at {server.address}, prefix {shop.settings.prefix!r}.\n" in err
    assert "add --yes" in err
    assert (full.count().waiting, full.count().dead) == (before.waiting, before.dead)


@pytest.mark.parametrize(("words", "expected"), DESTROYS[:4])
def test_at_a_terminal_anything_but_yes_is_no(full, penstock, terminal, words, expected):
    for typed in ("", "y\n", "no\n"):
        terminal(80, typed)
        code, out, err = penstock(*words)
        assert (code, out) == (Exit.USAGE, "")
        assert expected in err
        assert err.endswith("penstock: nothing was done\n")
    assert (full.count().waiting, full.count().dead) == (2, 3)


@pytest.mark.parametrize("words", [words for words, _ in DESTROYS[:4]])
def test_what_came_after_the_question_is_spared(full, penstock, monkeypatch, words):
    class Slow(Keyboard):
        def readline(self, *_):
            time.sleep(0.01)
            bury(full, 2)
            full.put_many(range(3), tenant="acme")
            return "yes\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = full.count()
    assert penstock(*words)[0] == Exit.OK
    gone = before.waiting + before.dead + 5 - full.count().waiting - full.count().dead
    assert gone == {"purge": 2 - ("acme" in words), "rm": 3, "retry": 0}[words[1]]
    assert full.count().dead >= 2


@pytest.mark.parametrize(
    ("words", "done", "waiting", "dead"),
    [
        (("queue", "purge", "mail"), "Cancelled 2 jobs of queue mail.", 0, 3),
        (("queue", "purge", "mail", "--tenant", "acme"), "Cancelled 1 job of queue mail, tenant 'acme'.", 1, 3),
        (("dead", "rm", "--all", "mail"), "Removed 3 dead letters of mail.", 2, 0),
        (("dead", "retry", "--all", "mail"), "Requeued 3 jobs of mail.", 5, 0),
    ],
)
@pytest.mark.parametrize("way", ["typed", "--yes", "-y"])
def test_who_agrees_gets_it_done(full, penstock, terminal, words, done, waiting, dead, way):
    terminal(80, "yes\n")
    code, out, _ = penstock(*words, *([] if way == "typed" else [way]))
    assert (code, out) == (Exit.OK, f"{done}\n")
    assert (full.count().waiting, full.count().dead) == (waiting, dead)


def test_ids_or_all_of_a_queue_but_not_both(full, penstock):
    for words in (("dead", "rm"), ("dead", "retry"), ("dead", "rm", "mail:x", "--all", "mail"), ("job", "cancel")):
        assert penstock(*words, "--yes")[0] == Exit.USAGE


def test_waiting_jobs_are_promoted_and_changed(shop, penstock):
    queue = shop.queue("mail")
    job, running = queue.put("x", delay=600), queue.put("y")
    queue.claim()
    assert penstock("job", "promote", job.id) == (Exit.OK, f"{job.id} promoted\n", "")
    assert penstock("job", "edit", job.id, "--priority", "2") == (Exit.OK, f"{job.id} changed\n", "")
    assert (job.info().priority, job.info().status) == (2, "ready")
    assert penstock("job", "edit", job.id, "--delay", "2h")[0] == Exit.OK
    assert job.info().since - time.time() == pytest.approx(7200, abs=600)
    assert penstock("job", "edit", job.id, "--at", "2040-01-01T00:00:00+00:00")[0] == Exit.OK
    assert job.info().since == 2208988800
    code, out, err = penstock("job", "promote", running.id)
    assert (code, out) == (Exit.FAILED, "")
    assert "is running: only a waiting job can be changed" in err


@pytest.mark.parametrize("words", [(), ("--priority", "10"), ("--delay", "1h", "--priority", "1"), ("--delay", "x")])
def test_a_wrong_change_of_a_job_is_refused(shop, penstock, words):
    job = shop.queue("mail").put("x")
    assert penstock("job", "edit", job.id, *words)[0] == Exit.USAGE
    assert job.info().priority == 5


def test_rm_with_older_spares_the_latest_dead_letters(shop, penstock):
    queue = shop.queue("mail")
    shop.clock.now_ms = int((time.time() - 7200) * 1000)
    bury(queue, 3)
    shop.clock.now_ms = 0
    bury(queue, 2)
    code, out, err = penstock("dead", "rm", "--all", "mail", "--older", "1h", "--yes")
    assert (code, out) == (Exit.OK, "Removed 3 dead letters of mail.\n")
    assert "deletes 3 dead letters of queue mail that died more than 60 min ago" in err
    assert queue.count().dead == 2


@pytest.mark.parametrize(
    "words", [("mail:x", "--older", "7d"), ("--all", "mail", "--older", "7 days"), ("--all", "mail", "--older", "7")]
)
def test_rm_with_a_wrong_age_removes_nothing(full, penstock, words):
    code, out, err = penstock("dead", "rm", *words, "--yes")
    assert (code, out) == (Exit.USAGE, "")
    assert "--older" in err
    assert full.count().dead == 3


# --- the table of commands ---


@pytest.mark.parametrize("noun", sorted({c.name.split()[0] for c in COMMANDS if " " in c.name}))
def test_a_noun_lists_its_verbs(penstock, noun):
    code, out, _ = penstock(noun, "--help")
    assert code == Exit.OK
    verbs = [command.name.split()[1] for command in COMMANDS if command.name.startswith(f"{noun} ")]
    assert all(verb in out for verb in verbs)


def test_a_wrong_verb_is_reported_with_the_right_one(penstock):
    code, out, err = penstock("queue", "lss")
    assert (code, out) == (Exit.USAGE, "")
    assert 'Did you mean "ls"' in err
    assert "See penstock queue --help" in err


# --- jobs by filter ---


def test_jobs_are_listed_by_what_they_are(shop, penstock):
    shop.queue("mail").put_many(range(3), tenant="acme")
    late = shop.queue("raw").put(1, delay=600)
    (dead,) = bury(shop.queue("raw"), 1)
    _, out, err = penstock("job", "ls", "--queue", "mail", "--tenant", "acme")
    assert (out.count("mail:"), err) == (3, "")
    _, out, _ = penstock("job", "ls")
    assert [out.count(name) for name in ("mail:", late.id, dead)] == [3, 1, 1]
    _, out, _ = penstock("job", "ls", "--state", "delayed", "--older-than", "0.0s")
    assert f"{late.id}  delayed  due in " in out
    assert penstock("job", "ls", "--task", "greet")[1] == "No job matches.\n"


def test_a_long_search_says_how_far_it_is_and_goes_on(shop, penstock):
    shop.queue("a").put_many(range(5), tenant="acme", priority=1)
    shop.queue("b").put_many(["some words" * 9] * 200)
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(20):
        code, out, err = penstock("job", "ls", "--limit", "30", *cursor)
        assert code == Exit.OK
        seen += [line.split()[0] for line in out.splitlines() if line.startswith(("a:", "b:"))]
        if not err:
            break
        searched, _, token = err.partition("; to continue: --cursor ")
        assert searched == f"penstock: searched {len(seen):,} of 205 jobs"
        cursor = ["--cursor", token.strip()]
    assert len(seen) == len(set(seen)) == 205


def test_a_worker_shows_what_it_runs(shop, penstock):
    shop.queue("mail").put_many(range(3))
    queue = shop.queue("mail")
    registration = Registration("host:7", 10)
    turn = queue._driver.blocking.run(queue.first.bindings.turn("inc", 1, lease=60, want=2, registration=registration))
    _, out, _ = penstock("worker", "show", "host:7")
    assert "host:7 in queue mail: 2 jobs of 10 at once" in out
    assert out.count("running") == 2
    job = f"mail:{turn.claims[0].token[6:].decode()}"
    _, out, _ = penstock("job", "show", job)
    assert "worker       host:7" in out
    assert "claimed      " in out
    _, out, _ = penstock("job", "ls", "--worker", "host:7", "--json")
    assert [one["worker"] for one in json.loads(out)["jobs"]] == ["host:7"] * 2
    code, _, err = penstock("worker", "show", "host:8")
    assert (code, "host:7" in err) == (Exit.FAILED, True)


def test_a_worker_shows_what_it_runs_in_each_of_its_queues(shop, penstock):
    registration = Registration("host:7", 10)
    for name, jobs in (("a", 1), ("b", 2)):
        shop.queue(name).put_many(range(jobs))
        queue = shop.queue(name)
        turn = queue.first.bindings.turn("inc", 1, lease=60, want=2, registration=registration)
        queue._driver.blocking.run(turn)
    _, out, err = penstock("worker", "show", "host:7")
    assert "host:7 in queue b: 2 jobs of 10 at once" in out
    assert (out.count("running"), err) == (3, "")


@pytest.mark.parametrize(
    "words", [("--state", "gone"), ("--worker", "h:1", "--state", "dead"), ("--cursor", "x"), ("--older-than", "1y")]
)
def test_a_bad_filter_is_wrong_usage(shop, penstock, words):
    shop.queue("mail").put(1)
    code, _, err = penstock("job", "ls", *words)
    assert code == Exit.USAGE
    assert err.count("\n") == 1


def test_jobs_that_match_are_counted_and_then_changed(shop, penstock):
    mail = shop.queue("mail")
    mail.put_many(range(3), tenant="acme")
    mail.put_many(range(2), tenant="bo")
    select = ("--queue", "mail", "--tenant", "acme")
    code, _, err = penstock("job", "cancel", *select)
    assert code == Exit.USAGE
    assert "This cancels 3 jobs of queue mail (tenant 'acme')" in err
    assert mail.count().ready == 5
    code, out, _ = penstock("job", "cancel", *select, "--yes")
    assert (code, out) == (Exit.OK, "3 of 3 jobs cancelled.\n")
    assert penstock("job", "cancel", *select, "--yes")[1] == "No job matches.\n"
    assert mail.count().ready == 2


def test_dead_letters_that_match_are_retried_and_deleted(shop, penstock):
    for reason in ("one", "two"):
        bury(shop.queue("mail"), 2, reason)
    ids = [letter.id for letter in shop.queue("mail").dead.list()]
    words = ("--queue", "mail", "--id-prefix", ids[0], "--yes")
    assert penstock("job", "retry", *words)[1] == "1 of 1 job requeued.\n"
    assert penstock("job", "rm", "--queue", "mail", "--yes")[1] == "3 of 3 jobs removed.\n"
    counts = shop.queue("mail").count()
    assert (counts.ready, counts.dead) == (1, 0)
    assert penstock("job", "rm", "--queue", "mail", "--state", "ready", "--yes")[0] == Exit.USAGE


def test_jobs_are_moved_by_id_and_by_filter(shop, penstock):
    jobs = shop.queue("mail").put_many(range(4))
    code, out, _ = penstock("job", "move", jobs[0].id, "--to", "raw")
    assert (code, out) == (Exit.OK, f"{jobs[0].id} moved to raw\n")
    assert penstock("job", "move", "--queue", "mail", "--to", "raw", "--yes")[1] == "3 of 3 jobs moved.\n"
    assert (shop.queue("mail").count().ready, shop.queue("raw").count().ready) == (0, 4)
    code, _, err = penstock("job", "move", jobs[0].id, "--to", "raw")
    assert (code, "cancelled" in err) == (Exit.FAILED, True)
    assert penstock("job", "move", "--queue", "raw", "--to", "raw", "--yes")[0] == Exit.USAGE


@pytest.mark.parametrize("words", [("cancel",), ("retry", "mail:x", "--queue", "mail"), ("rm", "--task", "greet")])
def test_a_bulk_action_needs_ids_or_a_queue(shop, penstock, words):
    shop.queue("mail").put(1)
    assert penstock("job", *words, "--yes")[0] == Exit.USAGE


def test_the_steps_of_a_job_are_shown_and_it_gets_signals(shop, penstock):
    job = shop.queue("mail").put("x")
    (item,) = shop.queue("mail").claim()
    bindings = StepBindings(shop.queue("mail").first.bindings)
    shop._driver.blocking.run(bindings.record(item._incarnation, item._claim.token, "1", "charge", b"7"))
    code, out, _ = penstock("job", "show", job.id)
    assert code == Exit.OK
    assert re.search(r"1 +charge +done", out)
    assert json.loads(penstock("job", "show", job.id, "--json")[1])["steps"][0]["does"] == "charge"
    assert penstock("job", "signal", job.id, "go", '{"by": "ada"}')[:2] == (Exit.OK, f"{job.id} has got signal go\n")
    code, _, err = penstock("job", "signal", job.id, "go", "text")
    assert (code, '"text"' in err) == (Exit.USAGE, True)
    item.complete()
    assert penstock("job", "signal", job.id, "go")[0] == Exit.FAILED


def test_a_doctor_without_the_password_says_so_as_every_command_does(start, penstock):
    server = start("--requirepass", "secret")
    for command in (("doctor",), ("queue", "ls")):
        code, out, err = penstock(*command, "--url", server.address.replace("unix://", "unix://:wrong@"))
        assert (code, out) == (Exit.SERVER, "")
        assert "the server wants another user or password" in err
        assert "wrong@" not in err


def test_an_empty_queue_is_removed(shop, penstock):
    queue = shop.queue("typo")
    job = queue.put(1)
    assert "nothing was done: add --yes" in penstock("queue", "rm", "typo")[2]
    code, _, err = penstock("queue", "rm", "typo", "--yes")
    assert code == Exit.FAILED
    assert "queue typo is not empty: 1 ready; nothing was removed" in err
    job.cancel()
    code, out, _ = penstock("queue", "rm", "typo", "--yes")
    assert (code, out) == (Exit.OK, "Removed typo.\n")
    assert "no queue 'typo'" in penstock("queue", "rm", "typo", "--yes")[2]
    assert "typo" not in penstock("queue", "ls")[1]


def test_dead_letters_are_grouped_and_a_group_is_retried_or_removed(shop, penstock):
    queue = shop.queue("mail")
    queue.put_many(range(5))
    for number, item in enumerate(queue.claim(5)):
        item.fail(f"order {number} is refused" if number < 3 else f"host-{number} is down")
    out = penstock("dead", "groups", "mail")[1]
    assert re.search(r"[0-9a-f]{8} +3 .*mail:.*order # is refused", out)
    largest, other = json.loads(penstock("dead", "groups", "mail", "--json")[1])["groups"]
    assert (largest["count"], other["error"]) == (3, "# is down")
    _, out, err = penstock("dead", "groups", "mail", "--most", "2")
    assert "examined the latest 2 of 5" in err
    code, out, _ = penstock("dead", "retry", "--all", "mail", "--group", largest["key"], "--yes")
    assert (code, out) == (Exit.OK, "Requeued 3 dead letters of mail.\n")
    code, out, _ = penstock("dead", "rm", "--all", "mail", "--group", other["key"], "--yes")
    assert (code, out) == (Exit.OK, "Removed 2 dead letters of mail.\n")
    counts = queue.count()
    assert (counts.ready, counts.dead) == (3, 0)
    for words, says in (
        (("retry", "--all", "mail", "--group", other["key"], "--yes"), "has no dead letter of group"),
        (("rm", "--all", "mail", "--group", "zzz", "--yes"), "eight hexadecimal digits"),
        (("rm", "mail:1", "--group", other["key"], "--yes"), "--group selects dead letters of a queue"),
        (("rm", "--all", "mail", "--group", other["key"], "--older", "1h", "--yes"), "give one of them"),
    ):
        code, _, err = penstock("dead", *words)
        assert code != Exit.OK
        assert says in err
    queue.purge()


def test_why_a_job_does_not_run_is_one_line(shop, penstock):
    job = shop.queue("mail").put(1)
    code, out, _ = penstock("job", "why", job.id)
    assert (code, out) == (
        Exit.OK,
        f"{job.id}: no live worker serves queue mail: start one with `penstock worker`.\n",
    )
    assert "why" in penstock("job", "show", job.id)[1]
    answer = json.loads(penstock("job", "why", job.id, "--json")[1])
    assert (answer["kind"], answer["position"]) == ("no_worker", 0)
    code, _, err = penstock("job", "why", "mail:none")
    assert code == Exit.FAILED
    assert "no job mail:none" in err


def test_a_job_is_found_by_a_key_without_its_queue(shop: Penstock, penstock):
    job = shop.queue("mail").put("hi", delay=3600)
    key = job.id.partition(":")[2]
    shop.queue("other").put(1)
    assert re.search(rf"job +{job.id}\n", penstock("job", "show", key)[1])
    assert penstock("job", "why", key)[1].startswith(f"{job.id}: ")
    assert f"delayed  {job.id}" in penstock("job", "tree", key)[1]
    code, _, err = penstock("job", "show", "nothing-of-this-name")
    assert code == Exit.FAILED
    assert "no job nothing-of-this-name in any queue" in err
