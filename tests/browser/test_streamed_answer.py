"""A browser shows an answer while a worker writes it, and misses nothing when its connection is cut."""

import contextlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.search_box import web_example
from tests.servers import Server
from tests.speed import scaled

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("make test-browser installs chromium", allow_module_level=True)

PROGRAM = Path(__file__).parents[2] / "examples" / "streamed_answers.py"
ANSWER = "Water falls through the penstock and turns the wheel."
WATCH = """addEventListener("DOMContentLoaded", () => {
  window.texts = [];
  const log = document.querySelector("[role=log]");
  new MutationObserver(() => texts.push(log.textContent)).observe(log, { childList: true, characterData: true });
})"""
"""Notes each text that the page has shown."""


class CuttingProxy:
    """Between a browser and a web server. It cuts the first stream of events after some of them."""

    def __init__(self, port: int, events: int) -> None:
        self._port, self._left = port, events
        self.cuts = 0
        self.resumed: list[str] = []
        """Each `Last-Event-ID` that the browser has sent."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up and (last := re.search(rb"(?i)last-event-id: ([^\r]+)", data)):
                    self.resumed.append(last[1].decode())
                target.sendall(data)
                if not up and not self.cuts:
                    self._left -= data.count(b"\ndata: ")
                    if self._left <= 0:
                        self.cuts += 1
                        break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def address() -> Iterator[str]:
    with Server() as server, web_example(server, PROGRAM, "serve") as found:
        yield found


@pytest.fixture
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # the sandbox of chromium refuses root
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        page = opened.new_page()
        page.set_default_timeout(scaled(20) * 1000)
        faults: list[Any] = []
        page.on("pageerror", lambda fault: faults.append(fault))  # noqa: PLW0108 (playwright takes no method of a list)
        yield page
        opened.close()
        assert faults == []


def ask(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_role("textbox").fill("What is a penstock?")
    page.get_by_role("button").click()


def expect_the_answer(page: Any) -> None:
    sync_api.expect(page.get_by_role("status")).to_have_text("completed", timeout=scaled(30) * 1000)
    assert page.get_by_role("log").text_content() == ANSWER


def expect_each_word_once(page: Any) -> None:
    words = [word + " " for word in ANSWER.split()]
    words[-1] = "wheel."
    shown = ["".join(words[:n]) for n in range(1, 10)]
    assert [text for text in page.evaluate("texts") if text] == [*shown[:5], *shown]  # the first run fails


def test_an_answer_appears_word_by_word_and_is_there_after_a_reload(page: Any, address: str):
    page.add_init_script(WATCH)
    ask(page, address)
    page.wait_for_function("texts.length > 1")
    page.reload()
    expect_the_answer(page)
    expect_each_word_once(page)
    page.reload()
    expect_the_answer(page)


def test_a_page_whose_stream_is_cut_resumes_behind_its_last_event(page: Any, address: str):
    proxy = CuttingProxy(int(address.rpartition(":")[2]), events=3)
    page.add_init_script(WATCH)
    try:
        ask(page, proxy.address)
        expect_the_answer(page)
    finally:
        proxy.close()
    expect_each_word_once(page)
    assert proxy.cuts == 1
    (last,) = proxy.resumed
    assert last.partition("-")[0] in ("1", "2", "3")  # Chromium forgets what it has not read when a stream ends early
