"""A cluster migrates the slot of a transaction or a rate limit: both nodes refuse every script as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Penstock, RateLimit, Transaction
from penstock.core.idempotency import IdempotencyKey
from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from tests.servers import Cluster, Server
from tests.slot_moves import SlotMove


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


def send(node: Server, call: RoundTrip[Any], *, asking: bool = False) -> Any:
    """Call a script as a driver does. Returns the reply, or the code of the error."""
    with node.client.pipeline(transaction=False) as pipe:
        if asking:
            pipe.execute_command("ASKING")
        pipe.execute_command("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)
        reply = pipe.execute(raise_on_error=False)[-1]
    return error_code(reply) if isinstance(reply, Exception) else reply


def committed(tx: Transaction) -> RoundTrip[Any]:
    commit = Transaction.commit.operation(tx)
    assert isinstance(commit, RoundTrip)
    return commit


@pytest.mark.parametrize("carried", ["nothing", "one", "all"])
@pytest.mark.parametrize("kind", ["transaction", "guarded", "bucket", "window"])
def test_no_script_is_half_done_while_its_slot_is_migrated(cluster: Cluster, kind: str, carried: str):
    app, caller = Penstock(cluster.address), IdempotencyKey("c", 1)
    if kind in {"transaction", "guarded"}:
        main = "{a}:x"
        app.transaction().set(main, 1).set("{a}:y", 1).commit()
        tx = app.lock("{a}:lock", lease=60).acquire().transaction() if kind == "guarded" else app.transaction()
        calls = [committed(tx.incrby(main)), committed(app.transaction().set("{a}:new", 1))]
    else:
        limit: RateLimit = app.rate_limit("x", limit=1, per=60, kind="bucket" if kind == "bucket" else "window")
        main = limit.bindings.declared[1]
        limit.try_acquire()
        packed = limit.bindings.pack("penstock/h/1/x", 1, "penstock:wake:x/1")
        calls = [limit.bindings.acquire(packed, caller, join=True), limit.bindings.withdraw(packed, caller)]
    move = SlotMove.of(cluster, main)
    source, target = move.nodes
    keys = sorted(source.client.keys("*"))
    moved = {"nothing": [], "one": [main.encode()], "all": keys}[carried]
    with move:
        move.carry(*moved)
        for call in calls:
            for node, asking in ((source, False), (target, True)):
                assert send(node, call, asking=asking) in {"TRYAGAIN", "ASK"}
        assert sorted(source.client.keys("*")) == sorted(set(keys) - set(moved))
    app.close()
