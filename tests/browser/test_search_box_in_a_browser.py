"""A browser types into the search box of the examples. `make test-browser` installs what this needs."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.search_box import search_box
from tests.servers import Server
from tests.speed import scaled

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("make test-browser installs chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # the sandbox of chromium refuses root
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One for all tests, because it starts slowly on a crowded machine. A single test picks a name."""
    with Server() as server, search_box(server) as address:
        yield address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    opened = browser.new_page()
    opened.set_default_timeout(scaled(20) * 1000)
    faults: list[Any] = []
    opened.on("pageerror", lambda fault: faults.append(fault))  # noqa: PLW0108 (playwright takes no method of a list)
    opened.goto(address)
    yield opened
    opened.close()
    assert faults == []


def names(page: Any, *wanted: str) -> list[str]:
    """The names in the list, once there are as many as wanted."""
    sync_api.expect(page.get_by_role("option")).to_have_count(len(wanted), timeout=scaled(20) * 1000)
    return page.locator("li span").all_text_contents()


@pytest.mark.parametrize(
    ("typed", "name", "marked"),
    [
        ("o'br", "Conan O’Brien", ["O’Br"]),
        ("muel", "Jürgen Müller", ["Mül"]),
        ("jo jo", "John Johnson", ["Jo", "Jo"]),
        ("nguyê", "Nguyễn Thị Minh Khai", ["Nguyễ"]),
        ("하", "한강", ["한"]),
        ("lovelaec", "Ada Lovelace", ["Lovelace"]),
        ("<b>", "<b>Robert</b> Tables", ["<b>"]),
    ],
)
def test_names_appear_while_a_user_types(page: Any, typed: str, name: str, marked: list[str]):
    page.get_by_role("combobox").press_sequentially(typed, delay=20)
    assert names(page, name) == [name]
    # The answer to the letters before the last one may have the same name, and come first.
    sync_api.expect(page.locator("mark")).to_have_text(marked)


def test_a_user_picks_a_name_with_the_keyboard_and_then_it_comes_first(page: Any):
    box = page.get_by_role("combobox")
    box.press_sequentially("jo", delay=20)
    assert names(page, "Jo Smith", "John Johnson") == ["Jo Smith", "John Johnson"]
    box.press("ArrowDown")
    box.press("Enter")
    sync_api.expect(page.get_by_role("status")).to_have_text("You picked John Johnson.")
    assert box.input_value() == "John Johnson"
    box.fill("")
    box.press_sequentially("jo", delay=20)
    assert names(page, "John Johnson", "Jo Smith") == ["John Johnson", "Jo Smith"]


def test_nothing_is_found_and_a_text_that_is_too_long_is_reported(page: Any):
    box = page.get_by_role("combobox")
    box.press_sequentially("xyz")
    sync_api.expect(page.get_by_role("status")).to_have_text("Nobody found.")
    box.fill("x" * 2000)
    sync_api.expect(page.get_by_role("status")).to_contain_text("2,000 bytes, the limit is 1,024")
