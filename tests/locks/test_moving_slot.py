"""A cluster migrates the slot of a lock or a semaphore that has waiters: it refuses every script as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock import Penstock
from penstock.driver.retrying import error_code
from penstock.locks.leased import LeasedResource
from tests.locks.conftest import FrozenFace
from tests.servers import Cluster, Server
from tests.slot_moves import SlotMove


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


def send(node: Server, leased: LeasedResource[Any, Any], name: str, *args: Any, asking: bool = False) -> Any:
    """Call a script as a driver does. Returns the reply, or the code of the error."""
    declared = leased.bindings.declared
    with node.client.pipeline(transaction=False) as pipe:
        if asking:
            pipe.execute_command("ASKING")
        pipe.execute_command("EVAL", leased.bindings.scripts[name].source, len(declared), *declared, *args)
        reply = pipe.execute(raise_on_error=False)[-1]
    return error_code(reply) if isinstance(reply, ResponseError) else reply


def request(leased: LeasedResource[Any, Any], who: str, address: str) -> bytes:
    return leased.bindings.request.pack(f"penstock/h/1/{who}", address)


def dump(node: Server, keys: list[bytes]) -> dict[bytes, Any]:
    with node.client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.execute_command("ASKING")
            pipe.execute_command("DUMP", key)
        found = pipe.execute(raise_on_error=False)[1::2]
    return {
        key: error_code(one) if isinstance(one, ResponseError) else one for key, one in zip(keys, found, strict=True)
    }


KINDS: dict[str, Callable[[Penstock], LeasedResource[Any, Any]]] = {
    "lock": lambda app: app.lock("{a}:x", lease=60),
    "locks": lambda app: app.lock(["{a}:x", "{a}:y"], lease=60),
    "semaphore": lambda app: app.semaphore("x", limit=2, lease=60),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("carried", ["nothing", "the lock", "what is beside it", "all"])
def test_no_script_is_half_done_while_its_slot_is_migrated(
    cluster: Cluster, frozen_face: FrozenFace, kind: str, carried: str
):
    app = Penstock(cluster.address)
    leased = KINDS[kind](app)
    main = leased.bindings.declared[1]
    move = SlotMove.of(cluster, main)
    source, target = move.nodes
    address = frozen_face(cluster, "h", main)
    for n in range(6):
        send(source, leased, "acquire", request(leased, str(n), address), 0, 1)
    send(source, leased, "release", request(leased, "0", address))
    keys = sorted(source.client.keys("*"))
    wanted = {
        "nothing": [],
        "the lock": [main.encode()],
        "what is beside it": [k for k in keys if k != main.encode()],
        "all": keys,
    }[carried]
    calls: dict[str, tuple[Any, ...]] = {
        "acquire": (request(leased, "new", address), 0, 1),
        "release": (request(leased, "1", address),),
        "renew": (request(leased, "1", address), 9000, 0, *([1] if kind != "semaphore" else []), "a/1"),
        "show": (10,),
        "now": (),
        "set_limit": (5,),
        "list_permits": (0, 0, 10),
        "end_holding": ("", "why"),
    }
    with move:
        move.carry(*wanted)
        before = {node: dump(node, keys) for node in move.nodes}
        for name in leased.bindings.scripts.scripts:
            for node, asking in ((source, False), (target, True)):
                assert send(node, leased, name, *calls[name], asking=asking) in {"TRYAGAIN", "ASK"}, name
        assert {node: dump(node, keys) for node in move.nodes} == before
    app.close()
