"""`core/waiting.lua`: an event wakes every face that waits, whatever became of the others."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.scripts import Script, cut, read
from tests.faces import Faces

_SCRIPTS = """
--- keys: base
--- args: address: str, ms: int
function script.add(base, address, ms)
  return waiting.add("waiting", address, ms)
end

--- keys: base
function script.report(base)
  return waiting.report("waiting")
end

--- keys: base
function script.wake(base)
  return waiting.wake("waiting")
end
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, Script]:
    files = {name: read(name) for name in ("core/notify.lua", "core/waiting.lua")}
    return dict(cut({**files, "test.lua": _SCRIPTS}))


@pytest.fixture
def call(client: Any, scripts: dict[str, Script]) -> Any:
    return lambda name, *args: client.eval(scripts[name].source, 1, "{x}:", *args)


def test_an_event_wakes_each_face_that_registered_before_it_once(call: Any, client: Any, faces: Faces):
    assert call("report") == 0
    for address in faces.open("a", "b"):
        call("add", address, 60_000)
    assert call("report") == 0
    assert faces.heard() == {"a": [b"1 0"], "b": [b"1 0"]}
    assert not client.keys("*")
    assert call("report") == 0
    assert faces.heard() == {}


def test_who_was_woken_and_registers_again_is_not_woken_by_the_same_event(call: Any, faces: Faces):
    addresses = faces.open(*(f"f{n}" for n in range(70)))
    for address in addresses:
        call("add", address, 60_000)
    assert call("report") == 6
    first = faces.heard()
    assert list(first.values()).count([b"1 0"]) == 64
    (deputy,) = [messages for messages in first.values() if messages != [b"1 0"]]
    assert deputy == [b"1 1000"]
    for name in first:
        call("add", f"{name}/1", 60_000)
    assert call("wake") == 0
    assert sum(messages == [b"1 0"] for messages in faces.heard().values()) == 6
    assert call("wake") == 0
    assert faces.heard() == {}


def test_a_face_that_is_registered_keeps_its_place_when_another_listener_of_it_registers(call: Any, faces: Faces):
    addresses = faces.open(*(f"f{n:02}" for n in range(70)))
    for address in addresses:
        call("add", address, 60_000)
    call("report")
    faces.heard()
    call("add", addresses[-1], 60_000)  # it has not been woken yet, and must be, for its first listener
    assert call("wake") == 0
    assert faces.heard()["f69"] == [b"1 0"]


def test_the_faces_of_processes_that_died_do_not_delay_the_others(call: Any, client: Any, faces: Faces):
    for n in range(400):
        call("add", f"gone{n:03}/1", 60_000)
    call("add", *faces.open("here"), 60_000)
    assert call("report") == 0
    assert faces.heard() == {"here": [b"1 0"]}
    assert not client.keys("*")


def test_one_call_looks_at_a_bounded_number_of_addresses(call: Any, client: Any):
    client.zadd("{x}:waiting", {f"gone{n}/1": 0 for n in range(2000)})
    left = [call("report")]
    while left[-1]:
        left.append(call("wake"))
    assert 4 <= len(left) <= 5
    assert not client.keys("*")


def test_addresses_of_processes_that_died_do_not_accumulate_where_nothing_happens(call: Any, client: Any, faces: Faces):
    (here,) = faces.open("here")
    for n in range(1000):
        call("add", f"gone{n}/1", 60_000)
        call("add", here, 60_000)
    assert client.zcard("{x}:waiting") < 100
    assert client.zscore("{x}:waiting", here) == 0
    assert faces.heard() == {}
    assert 0 < client.pttl("{x}:waiting") <= 60_000


def test_a_damaged_address_is_dropped(call: Any, client: Any):
    client.zadd("{x}:waiting", {"no slash": 0, b"\xff\x00": 0})
    assert call("report") == 0
    assert not client.keys("*")
