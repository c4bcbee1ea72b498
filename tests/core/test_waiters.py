"""`core/waiters.lua`: a noun of its own lets requests wait for seats, and no lock is involved."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.scripts import Script, cut, read
from tests.faces import Faces

FILES = ("core/clock.lua", "core/notify.lua", "core/deputy.lua", "core/waiters.lua")
SEATS = """
-- Takes a seat: returns 0 if the request has it, else the ticket with which it waits.
--- keys: base seat
--- args: request: str, ticket: int
function script.sit(base, seat, request, ticket)
  local r, us = cmsgpack.unpack(request), clock.micros()
  local view = waiters.view(math.floor(us / 1000))
  waiters.mark_alive(r, view.now)
  local is_first = waiters.is_first(view, base, request, ticket)
  if is_first and redis.call("SET", seat, r[_request.TOKEN], "NX", "PX", r[_request.LEASE_MS]) then
    waiters.stop_waiting(view, request, r, ticket)
    return 0
  end
  return (waiters.wait(view, request, r, ticket, us, view.now + redis.call("PTTL", seat)))
end

-- Leaves the seat. The first waiter that can be reached is asked to take it. Returns how many wait.
--- keys: base seat
function script.stand(base, seat)
  local view = waiters.view(clock.now(0))
  redis.call("DEL", seat)
  repeat
    local head, r = waiters.head(view, base)
  until not head or waiters.notify(view, head, r, "0")
  return waiters.list(base, 100)[1]
end

-- Waits for units, or leaves the waiters. Returns the units that the waiters want together.
--- keys: base seat
--- args: request: str, join: int
function script.want(base, seat, request, join)
  local r, us = cmsgpack.unpack(request), clock.micros()
  if join == 1 then
    waiters.join(waiters.view(math.floor(us / 1000)), request, r, 0, us)
  else
    waiters.leave(request, r)
  end
  return tonumber(redis.call("GET", base .. "units") or 0)
end
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, Script]:
    return dict(cut({**{name: read(name) for name in FILES}, "test.lua": SEATS}))


@pytest.fixture
def call(client: Any, scripts: dict[str, Script]) -> Any:
    return lambda name, *args: client.eval(scripts[name].source, 2, "{x}:", "{x}:seat", *args)


def request(name: str, units: int = 0, lease_ms: int = 10_000) -> bytes:
    """The request of process `name`, whose face has the same name."""
    return msgspec.msgpack.encode((f"penstock/{name}/1/t", lease_ms, f"{name}/1", ("{x}:", "{x}:seat"), units))


def test_requests_are_served_in_order_of_arrival(call: Any, client: Any, faces: Faces):
    faces.open("a", "b", "c")
    assert call("sit", request("a"), 0) == 0
    tickets = {name: call("sit", request(name), 0) for name in "bc"}
    assert 0 < tickets["b"] < tickets["c"]
    faces.heard()
    assert call("stand") == 2
    assert [name for name, messages in faces.heard().items() if b"1 0" in messages] == ["b"]
    assert call("sit", request("c"), tickets["c"]) == tickets["c"], "b is before it"
    assert call("sit", request("b"), tickets["b"]) == 0
    assert client.get("{x}:seat") == b"penstock/b/1/t"


def test_a_waiter_whose_process_is_gone_holds_nobody_up(call: Any, client: Any, faces: Faces):
    faces.open("a", "b", "c")
    call("sit", request("a"), 0)
    for name in "bc":
        call("sit", request(name), 0)
    faces.end("b")
    assert call("stand") == 1
    assert b"1 0" in faces.heard()["c"]


def test_units_of_those_that_wait_are_counted_once_each(call: Any, client: Any, faces: Faces):
    faces.open("a", "b")
    assert call("want", request("a", 3), 1) == 3
    assert call("want", request("a", 3), 1) == 3
    assert call("want", request("b", 4), 1) == 7
    assert call("want", request("a", 3), 0) == 4
    assert call("want", request("a", 3), 0) == 4
    assert call("want", request("b", 4), 0) == 0
    assert not client.keys("*")
