"""A page with a search box: names appear while the user types, and those that are picked most often come first.

    python examples/search_box/server.py        then open http://127.0.0.1:8000

The page asks `/search?q=…` after each letter. When the user picks a name, it posts the id to `/pick`, which bumps the
weight of the name. Set $PENSTOCK_URL to use a server of your own, and $PORT for another port.
"""

from __future__ import annotations

import json
import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from penstock import Penstock
from penstock.errors import BadName

PEOPLE = [
    ("Ada Lovelace", "u1", 0, "mathematician"),
    ("Émilie du Châtelet", "u2", 0, "physicist"),
    ("Conan O’Brien", "u3", 0, "comedian"),
    ("Nguyễn Thị Minh Khai", "u4", 0, "politician"),
    ("John Johnson", "u5", 0, "singer"),
    ("Jo Smith", "u6", 0, "sculptor"),
    ("Jürgen Müller", "u7", 0, "footballer"),
    ("<b>Robert</b> Tables", "u8", 0, "pupil"),
    ("한강", "u9", 0, "novelist"),
    ("Семён Будённый", "u10", 0, "soldier"),
]
PAGE = (Path(__file__).parent / "page.html").read_bytes()

app = Penstock(prefix="search-box")
people = app.directory("people", words=True, accents=False, equivalents={"ü": "ue"})


class SearchBox(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/":
            self._answer(HTTPStatus.OK, PAGE, "text/html; charset=utf-8")
        elif address.path == "/search":
            self._search(parse_qs(address.query).get("q", [""])[0])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        id = self.rfile.read(min(1024, int(self.headers["Content-Length"] or 0))).decode(errors="replace")
        if self.path == "/pick" and id and people.bump(id) is not None:
            self._answer(HTTPStatus.NO_CONTENT)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _search(self, typed: str) -> None:
        try:
            found = people.complete(typed, limit=8, by="weight", typos=True)
        except BadName as error:  # a text that can be no name, for example one of more than 1024 bytes
            self._answer(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain; charset=utf-8")
            return
        entries = [
            {"id": entry.id, "pieces": entry.pieces(), "role": (entry.payload or b"").decode(), "picked": entry.weight}
            for entry in found
        ]
        self._answer(HTTPStatus.OK, json.dumps(entries).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    people.clear()
    people.add_many(PEOPLE)
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), SearchBox) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            people.clear()


main()
