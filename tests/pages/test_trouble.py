"""The texts of errors on the page on trouble are those that are raised, and the search of the site finds them."""

import ast
import asyncio
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import valkey

from penstock import Penstock, Settings, current
from penstock.errors import PenstockError
from penstock.testing import TemporaryServer, run_jobs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "trouble.md").read_text("utf-8")
TEXTS = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"[\s\S]*?".join(re.escape(part) for part in re.split("…+", text)))


def strings_of_the_source() -> Iterator[str]:
    """Each string, with `…` for what is put into it, and all Lua."""
    for path in (ROOT / "src").rglob("*.lua"):
        yield re.sub(r"%[sd]", "…", path.read_text("utf-8"))
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)


def test_each_text_that_is_not_raised_here_is_in_the_source():
    joined = "\n".join(strings_of_the_source())
    assert len(TEXTS) > 20
    assert len(set(TEXTS)) == len(TEXTS)
    others = [text for text in TEXTS if not any(words in text for words in (*RAISED, *SERVER_SAYS))]
    assert [text for text in others if any(part not in joined for part in re.split("…+", text))] == []


# --- each text that a program can easily get is raised ---


def send_email(to: str, subject: str) -> None:
    del to, subject


def fail() -> None:
    raise ValueError("no such customer")


def in_a_coroutine(app: Penstock) -> None:
    async def call() -> None:
        app.queue("mail").count()

    asyncio.run(call())


def a_failed_job(app: Penstock) -> None:
    job = app.task(queue="mail")(fail).enqueue()
    run_jobs(app, dead=True)
    job.result(timeout=5)


def a_full_queue(app: Penstock) -> None:
    app.queue("mail").bound(jobs=1)
    app.queue("mail").put_many(["a", "b"])


def a_held_lock(app: Penstock) -> None:
    with app.lock("a"), ThreadPoolExecutor(1) as other:
        other.submit(app.lock("a", wait=0.01).acquire).result()


def a_lock_twice(app: Penstock) -> None:
    with app.lock("a"), app.lock("a"):
        pass


def a_lost_lock(app: Penstock) -> None:
    with app.lock("a", lease=0.1, renew=False) as held:
        time.sleep(0.15)
        held.check()


RAISED: dict[str, Callable[[Penstock], object]] = {
    "no server answers at": lambda _: (
        Penstock("redis://127.0.0.1:1", settings=Settings(give_up_after=0.1)).queue("q").count()
    ),
    "no server address is set": lambda _: Penstock().queue("q").count(),
    "would block": in_a_coroutine,
    "missing required field": lambda app: app.task(queue="mail")(send_email).enqueue("ada"),  # type: ignore[call-arg]
    "Expected": lambda app: app.task(queue="mail")(send_email).enqueue("ada", 7),  # type: ignore[arg-type]
    "store the data elsewhere": lambda app: app.queue("mail").put("a" * 2_000_000),
    "half a character": lambda app: app.queue("mail").put("a\ud800"),
    "unfinished jobs": a_full_queue,
    "is ready, nobody has started it": lambda app: app.task(queue="mail")(fail).enqueue().result(timeout=0.1),
    "its result is gone": lambda app: app.job("mail:01M7Z4X65C1XEC55FE8YEVQSP3").result(timeout=0.1),
    "failed: ": a_failed_job,
    "runs in no job": lambda _: current(),
    "was not free within": a_held_lock,
    "holds it already": a_lock_twice,
    "was lost": a_lost_lock,
    "when a write is safe": lambda app: app.task(queue="mail")(fail).using(durable=True).enqueue(),
}

SERVER_SAYS: dict[str, tuple[str, ...]] = {
    "used memory": ("CONFIG", "SET", "maxmemory", "1"),
    "READONLY": ("REPLICAOF", "127.0.0.1", "1"),
    "Authentication required": ("CONFIG", "SET", "requirepass", "secret"),
}


def heading_with(words: str) -> str:
    (text,) = (text for text in TEXTS if words in text)
    return text


@pytest.mark.parametrize("words", RAISED)
def test_a_text_is_raised(words: str, monkeypatch: pytest.MonkeyPatch):
    with TemporaryServer() as server, Penstock(server.address) as app:
        monkeypatch.setenv("PENSTOCK_EMBEDDED", "0")
        monkeypatch.delenv("PENSTOCK_URL", raising=False)
        with pytest.raises((PenstockError, RuntimeError)) as raised:
            RAISED[words](app)
    assert pattern(heading_with(words)).search(str(raised.value))


@pytest.mark.parametrize("words", SERVER_SAYS)
def test_the_server_causes_a_text(words: str):
    with TemporaryServer() as server, Penstock(server.address, settings=Settings(give_up_after=0.1)) as app:
        app.queue("mail").put("a")
        with valkey.from_url(server.address) as client:
            client.execute_command(*SERVER_SAYS[words])
            if words == "Authentication required":
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(PenstockError) as raised:
            app.queue("mail").put("b")
    assert pattern(heading_with(words)).search(str(raised.value))
