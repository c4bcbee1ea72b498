"""A cluster moves the slot of a queue: every script is refused whole or done whole, and is done in the end.

The server looks at the declared keys before it runs a script. One of them never exists, so while the slot is on the
move it answers TRYAGAIN or ASK on the node it leaves, and TRYAGAIN on the node it goes to.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from valkey.exceptions import ResponseError

from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from penstock.jobs.bindings import scripts
from tests.jobs.stand import Hand, Stand, every_step, ids
from tests.servers import Cluster, Server, eventually


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


class Move:
    """A queue with jobs in every state, whose slot leaves `source` for `target`."""

    def __init__(self, cluster: Cluster) -> None:
        for node in cluster.nodes:
            node.client.flushall()
        self.source = self.target = cluster.owner(Stand(None).base)
        self.there = Stand(self.source.client)
        self._fill()
        self.slot = int(self.source.ask("CLUSTER", "KEYSLOT", self.there.base))
        self.target = next(node for node in cluster.nodes if node is not self.source)
        self.here, self.there = self.there, Stand(self.target.client)
        for stand in (self.here, self.there):
            for script in scripts().scripts.values():
                stand.client.script_load(script.source)

    def _fill(self) -> None:
        stand = self.there
        stand.put("dead", "j", tenant="ada")
        hand = Hand(stand, "v", lease=1000)
        hand.settle(hand.claim()[0], ending="bury", text="why")
        hand.claim(1)
        stand.put("a", "b", tenant="ada")
        stand.put("c", tenant="bo", priority=1)
        stand.put("s", delay=5)
        stand.run(stand.bindings.result("a", "p/1"))

    def begin(self) -> None:
        ids = [node.ask("CLUSTER", "MYID") for node in (self.source, self.target)]
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", ids[0])
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", ids[1])

    def carry(self, *keys: str) -> None:
        """Some keys go over, the old way: one by one."""
        self.source.ask("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)

    def end(self) -> None:
        if rest := self.here.names():
            self.carry(*rest)
        new = self.target.ask("CLUSTER", "MYID")
        for node in (self.target, self.source):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", new)

    def give_back(self) -> None:
        self.source.client.flushall()
        self.target.client.flushall()
        old = self.source.ask("CLUSTER", "MYID")
        for node in (self.source, self.target):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", old)
        eventually(lambda: self._served_by(self.source))

    def _served_by(self, node: Server) -> bool:
        try:
            node.client.exists(self.here.base)
        except ResponseError:
            return False
        return True

    def attempt(self, name: str) -> list[str]:
        """Send a script the way a driver does: to the node of the slot, then to the other with ASKING."""
        step = every_step(self.here.bindings)[name]
        answers = []
        for send in (self.here.raw, self._ask):
            try:
                send(step)
            except ResponseError as refused:
                answers.append(error_code(refused))
            else:
                answers.append("done")
        return answers

    def _ask(self, step: RoundTrip[object]) -> None:
        self._asking("EVALSHA", step.script.sha, len(step.keys), *step.keys, *step.args)

    def _asking(self, *command: object) -> object:
        with self.target.client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command)
            _, reply = pipeline.execute(raise_on_error=False)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def held(self) -> list[dict[str, object]]:
        """What both nodes hold, byte by byte."""
        return [
            {key: self.source.client.dump(key) for key in self.here.names()},
            {key: self._asking("DUMP", key) for key in self.there.names()},
        ]


@pytest.fixture
def move(cluster: Cluster) -> Iterator[Move]:
    made = Move(cluster)
    yield made
    made.give_back()


ANY = sorted(scripts().scripts)
SOME = [
    "jobs",
    "lane:5:ada",
    "front:5:ada",
    "turns:5",
    "delayed",
    "held:v",
    "leases",
    "reasons",
    "listeners",
    "tenants",
]


@pytest.mark.parametrize("carried", [[], ["meta"], ["jobs"], SOME, [*SOME, "meta"], ["meta", "turns:1", "age"], None])
def test_no_script_is_half_done_while_the_slot_moves(move: Move, carried: list[str] | None):
    """None: all keys have gone over, but the nodes have not been told that the move is over."""
    everything = [key.removeprefix(move.here.base) for key in move.here.names()]
    carried = everything if carried is None else carried
    move.begin()
    if keys := [move.here.base + name for name in everything if name in carried]:
        move.carry(*keys)
    before = move.held()
    for name in ANY:
        assert move.attempt(name) == ["ASK" if "meta" in carried else "TRYAGAIN", "TRYAGAIN"], name
    assert move.held() == before


def test_a_queue_that_has_no_key_yet_waits_as_well(move: Move):
    move.source.client.flushall()
    move.begin()
    for name in ANY:
        assert move.attempt(name) == ["ASK", "TRYAGAIN"], name
    assert (move.here.names(), move.there.names()) == ([], [])


def test_everything_is_there_when_the_slot_has_moved(move: Move):
    before = move.here.dump()
    move.begin()
    move.carry(*move.here.names()[::2])
    move.end()
    eventually(lambda: move._served_by(move.target))
    assert move.there.dump() == before
    assert ids(Hand(move.there, "w").claim(9)) == ["c", "a", "b"]
    for name in ANY:
        move.there.run(every_step(move.there.bindings)[name])
