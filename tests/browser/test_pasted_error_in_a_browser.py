"""The search of the site gets the words of one section for a pasted error. `make test-browser` installs the browser."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pages.search import SEPARATOR
from tests.pages.test_trouble import ROOT, TEXTS

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("make test-browser installs chromium", allow_module_level=True)

# The page does not search: it notes what a search would be asked for.
WORKER = "window.sent = []; window.Worker = class {}; Worker.prototype.postMessage = (message) => sent.push(message);"

SECTIONS = [
    *(
        {"location": f"https://site.example/howto/trouble/#{n}", "title": f"<code>{text}</code>", "text": ""}
        for n, text in enumerate(TEXTS)
    ),
    {
        "location": "https://site.example/guide/order/#limits",
        "title": "Rate limit",
        "text": "How many jobs of a customer run at once",
    },
    {
        "location": "https://site.example/reference/errors/#latchtimeout",
        "title": "LatchTimeout",
        "text": "The latch did not open in time",
    },
    {"location": "https://site.example/zh/", "title": "Penstock", "text": "\u4efb\u52a1\u6392\u961f"},
]


def words(title: str) -> list[str]:
    return re.split(SEPARATOR, title.lower().replace("<code>", " ").replace("</code>", " "))


@pytest.fixture(scope="module")
def asked() -> Iterator[Callable[[str], str]]:
    """Returns a function that types a query, and says for what the search is asked."""
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # the sandbox of chromium refuses root
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        page: Any = browser.new_page()
        page.add_script_tag(content=WORKER)
        page.add_script_tag(path=ROOT / "tests" / "pages" / "pasted.js")
        index = {"config": {"separator": SEPARATOR}, "items": SECTIONS}
        page.evaluate(
            "(index) => { window.search = new Worker(); search.postMessage({ type: 0, data: index }); }", index
        )

        def ask(query: str) -> str:
            command = "(input) => { search.postMessage({ type: 2, data: { input } }); return sent.at(-1).data.input; }"
            answer: str = page.evaluate(command, query)
            return answer

        yield ask
        browser.close()


@pytest.mark.parametrize(
    ("pasted", "asked_for"),
    [
        (
            "penstock.errors.ServerUnavailable: no server answers at redis://10.1.2.3:6379, tried for 30.0 s: Error",
            "no server answers at tried for s",
        ),
        ("penstock.errors.LockTimeout: lock 'invoice:7' was not free within 5.0 s", "lock was not free within s"),
        ("BadCall: send_email(): Object missing required field `to`", "object missing required field"),
        ("LatchTimeout: latch 'ready' did not open within 3 s", "latchtimeout latch did not open"),
    ],
)
def test_what_no_page_has_is_left_out(asked: Callable[[str], str], pasted: str, asked_for: str):
    assert asked(pasted) == asked_for


@pytest.mark.parametrize("text", TEXTS)
def test_each_text_of_the_page_on_trouble_finds_itself(asked: Callable[[str], str], text: str):
    pasted = asked(f"x.py line 17 SomeError: {text.replace('…', 'zebra')} ({'walnut ' * 5})").split()
    assert len(pasted) > 1
    found = [one for one in SECTIONS if set(pasted) <= set(words(one["title"]))]
    assert found[0]["title"] == f"<code>{text}</code>"


@pytest.mark.parametrize(
    "typed", ["retry", "rate limit", "how many jobs", "\u4efb\u52a1\u6392\u961f", "job of a customer"]
)
def test_what_a_person_types_stays(asked: Callable[[str], str], typed: str):
    assert asked(typed) == typed
