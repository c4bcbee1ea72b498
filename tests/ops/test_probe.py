"""Questions to servers that need no script, on both faces."""

import math
from typing import Any

import pytest

from penstock.core.keys import key_pattern
from penstock.core.operations import FindNodes, Operation, SendCommands, verb
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ServerError, ServerRefused, ServerUnavailable
from penstock.ops import probe
from penstock.settings import Settings


@pytest.fixture(params=["blocking", "aio"])
def face(request):
    return request.param


class Probe:
    """Performs single effects, and operations built on them."""

    def __init__(self, driver: ServerDriver) -> None:
        self._driver = driver

    @verb
    def nodes(self, key: str = "") -> Operation[list[Any]]:
        return (yield FindNodes(key))

    @verb
    def ask(self, node: Any, *commands: Any) -> Operation[list[Any]]:
        return (yield SendCommands(node, commands))

    @verb
    def run(self, operation: Operation[Any]) -> Operation[Any]:
        return (yield from operation)


@pytest.fixture
def ask(app):
    return Probe(app._driver)


@pytest.fixture
async def at():
    """Makes a driver for a server that the test started."""
    made: list[ServerDriver] = []

    def reach(address: str, **settings: Any) -> Probe:
        made.append(ServerDriver(address, Settings(**settings)))
        return Probe(made[-1])

    yield reach
    for driver in made:
        await driver.aclose()


@pytest.mark.parametrize(("place", "number"), [("valkey", 1), ("redis", 1), ("cluster", 3)])
async def test_every_server_that_holds_keys_is_found(do, ask, deployment, number):
    nodes = await do(ask.nodes)
    assert len(set(nodes)) == len(nodes) == number
    if number > 1:
        assert {port for _, port in nodes} == {node.port for node in deployment.nodes}
        assert await do(ask.nodes, "{a}") == [("127.0.0.1", deployment.owner("{a}").port)]


async def test_replies_come_in_order_and_a_refusal_is_one_of_them(do, ask):
    (node,) = await do(ask.nodes)
    pong, refused, again = await do(ask.ask, node, ("PING",), ("HGET", "x"), ("PING",))
    assert (pong, again) == (b"PONG", b"PONG")
    assert isinstance(refused, ServerError)


async def test_an_answer_that_the_server_refuses_is_none(do, at, start):
    own = start()
    own.ask("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-info", "-config")
    ask = at(f"unix://few:x@{own.socket}")
    (node,) = await do(ask.nodes)
    (refused,) = await do(ask.ask, node, ("INFO",))
    assert isinstance(refused, ServerRefused)
    facts = await do(ask.run, probe.read_facts(node))
    assert (facts.info, facts.config, facts.number("used_memory")) == (None, None, 0)


async def test_a_server_that_restarts_is_asked_again(do, at, start):
    own = start()
    ask = at(own.address)
    (node,) = await do(ask.nodes)
    own.restart()
    assert await do(ask.ask, node, ("PING",)) == [b"PONG"]


async def test_a_server_that_does_not_answer_raises(do, at, tmp_path):
    ask = at(f"unix://{tmp_path}/nobody", give_up_after=0.1)
    (node,) = await do(ask.nodes)
    with pytest.raises(ServerUnavailable):
        await do(ask.ask, node, ("PING",))


async def test_a_scan_finds_each_key_that_matches_once(do, app, ask, server):
    names = {f"{{{app.settings.prefix}:q}}:user:{n}".encode() for n in range(3000)}
    server.client.mset(dict.fromkeys(names, 1))
    server.client.mset({f"other:{n}": 1 for n in range(3000)})
    (node,) = await do(ask.nodes)
    assert await do(ask.run, probe.scan_keys(node, key_pattern(app.settings.prefix))) == (names, True)
    some, complete = await do(ask.run, probe.scan_keys(node, key_pattern(app.settings.prefix), 100))
    assert not complete
    assert 100 < len(some) < 3000
    assert some < names
    server.client.delete(*names, *(f"other:{n}" for n in range(3000)))


@pytest.mark.parametrize("place", ["cluster"])
async def test_each_node_of_a_cluster_has_a_key_for_a_trial_write(do, ask, deployment):
    for node in await do(ask.nodes):
        key = await do(ask.run, probe.find_probe_key(node, "any"))
        assert deployment.owner(key).port == node[1]
    with pytest.raises(ServerError, match="failover"):
        await do(ask.run, probe.find_probe_key(("127.0.0.1", 1), "any"))


@pytest.mark.parametrize(
    ("fsync", "is_right"),
    [
        ("always", lambda times: max(times) < 1),
        ("no", lambda times: times[0] == math.inf),
    ],
)
async def test_confirmations_are_timed(do, at, start, fsync, is_right):
    ask = at(start("--appendonly", "yes", "--appendfsync", fsync).address)
    (node,) = await do(ask.nodes)
    times = await do(ask.run, probe.time_confirmations(node, "{any:?0}:probe", 3 if fsync == "always" else 1))
    assert is_right(times)


async def test_a_server_without_an_append_only_file_confirms_nothing(do, at, start):
    ask = at(start().address)
    (node,) = await do(ask.nodes)
    assert await do(ask.run, probe.time_confirmations(node, "{any:?0}:probe")) is None
