"""What pages show beside Python blocks: tables of commands, cells of a notebook, the text of a failed assertion."""

import ast
import asyncio
import inspect
import re
import textwrap
from datetime import date, timedelta
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli import main
from penstock.testing import TemporaryServer, assert_enqueued, run_jobs
from tests.pages.blocks import is_as_shown

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def shown(page: str, command: str) -> str:
    """What a page shows below a command."""
    _, found, rest = (HOWTO / page).read_text("utf-8").partition(f"\n$ {command}\n")
    assert found
    return rest.partition("```")[0]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_table_of_a_counted_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = shown("count-logs.md", "penstock logs count /var/log/nginx --by day")
    day = date(2015, 5, 17)
    with (tmp_path / "access.log").open("w") as log:
        for requests in (1_632, 2_893, 2_896, 2_579):
            for n in range(requests):
                log.write(f'192.0.2.7 - - [{day:%d/%b/%Y}:10:05:{n % 60:02} +0000] "GET / HTTP/1.1" 200 5 "-" "curl"\n')
            day += timedelta(days=1)
    now = printed(capsys, "logs", "count", str(tmp_path), "--by", "day")
    took = re.compile(r"^\d+\.\d s\.$", re.MULTILINE)
    assert took.sub("… s.", now) == took.sub("… s.", table)


def test_the_table_of_queues(capsys: pytest.CaptureFixture[str]):
    table = shown("operate.md", "penstock queue ls")
    with TemporaryServer() as server, Penstock(server.address) as app:

        @app.task(queue="mail")
        def fail() -> None:
            raise ValueError

        for _ in range(6):
            fail.enqueue()
        run_jobs(app, dead=True)
        app.queue("mail").put_many(["a"] * 1_203)
        app.queue("mail").put_many(["a"] * 5, delay=600)
        app.queue("raw").put_many(["a"] * 10)
        app.queue("raw").claim(10, lease=600)
        app.queue("raw").pause()
        now = printed(capsys, "queue", "ls", "--url", server.address)
    ages = re.compile(r" +(?:\d+(?:\.\d)?) (?:s|ms|min)(?= )")
    assert ages.sub(" …", now) == ages.sub(" …", table)


def cells(page: str) -> list[tuple[str, str]]:
    """The cells of a notebook, each with what is printed below it."""
    blocks = re.findall(r"^```text\n(In \[.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = []
    for cell in re.split(r"^In \[\d+\]: ", "".join(blocks), flags=re.MULTILINE)[1:]:
        source, _, output = cell.partition("\nOut[")
        found.append((re.sub(r"^   \.\.\.: ?", "", source, flags=re.MULTILINE), output.partition("]: ")[2].strip()))
    return found


def test_the_cells_of_a_notebook(monkeypatch: pytest.MonkeyPatch):
    page = cells((HOWTO / "notebooks.md").read_text("utf-8"))
    assert len(page) == 4

    async def run(names: dict[str, object]) -> None:
        for source, output in page:
            *body, last = ast.parse(source).body
            if output:
                assert isinstance(last, ast.Expr)
                last = ast.Assign([ast.Name("_", ast.Store())], last.value)
            tree = ast.fix_missing_locations(ast.Module([*body, last], []))
            value = eval(compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(value):
                await value
            assert repr(names.get("_")) == output or not output

    with TemporaryServer() as server:
        monkeypatch.setenv("PENSTOCK_URL", server.address)
        names: dict[str, object] = {"__name__": "__main__"}
        asyncio.run(run(names))
        names["app"].close()  # type: ignore[attr-defined]


def test_the_text_of_a_failed_assertion():
    page = (HOWTO / "test.md").read_text("utf-8")
    text = re.search(r"(?:^ {4}.*\n)+", page[page.index("the error lists the calls") :], re.MULTILINE)
    with TemporaryServer() as server, Penstock(server.address) as app:

        @app.task(queue="mail")
        def send_email(to: str, subject: str) -> None: ...

        send_email.using(priority=2).enqueue("ada@example.org", subject="Welcome")
        with pytest.raises(AssertionError) as raised:
            assert_enqueued(send_email, "ada@example.com", subject="Welcome")
    assert text is not None
    assert is_as_shown(str(raised.value).strip() + "\n", textwrap.dedent(text[0]))
