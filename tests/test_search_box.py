"""The search box of the examples, without a browser. `tests/browser` types into it."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.search_box import search_box
from tests.servers import Server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Server() as server, search_box(server) as started:
        yield started


def search(address: str, typed: str) -> Any:
    with urllib.request.urlopen(f"{address}/search?q={urllib.parse.quote(typed)}", timeout=30) as answer:
        return json.load(answer)


def post(address: str, path: str, body: bytes) -> int:
    try:
        with urllib.request.urlopen(f"{address}{path}", data=body, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_page_is_served(address: str):
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert b'role="combobox"' in answer.read()


def test_a_search_returns_names_in_pieces(address: str):
    (found,) = search(address, "o'br")
    assert found == {
        "id": "u3",
        "pieces": [["Conan ", False], ["O’Br", True], ["ien", False]],
        "role": "comedian",
        "picked": 0.0,
    }
    assert [one["id"] for one in search(address, "muel")] == ["u7"]
    assert [one["id"] for one in search(address, "jo jo")] == ["u5"]
    assert search(address, "xyz") == []


def test_a_picked_name_comes_first(address: str):
    assert [one["id"] for one in search(address, "jo")] == ["u6", "u5"]
    assert post(address, "/pick", b"u5") == 204
    assert [one["id"] for one in search(address, "jo")][:2] == ["u5", "u6"]
    assert post(address, "/pick", b"nobody") == post(address, "/pick", b"") == post(address, "/other", b"u5") == 404


def test_a_text_that_can_be_no_name_is_refused_with_the_reason(address: str):
    with pytest.raises(urllib.error.HTTPError) as refused:
        search(address, "x" * 2000)
    assert refused.value.code == 400
    assert b"2,000 bytes, the limit is 1,024" in refused.value.read()
    refused.value.close()
