"""While a cluster migrates the slot of a queue, each script is refused whole or done whole, and done in the end.

The server checks the declared keys before it runs a script. One of them never exists, so during the migration the
source node answers TRYAGAIN or ASK, and the target node TRYAGAIN.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from valkey.exceptions import ResponseError

from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from penstock.jobs.bindings import scripts
from tests.jobs.stand import OF_QUEUE, FakeWorker, Stand, every_script, ids
from tests.servers import Cluster, eventually
from tests.slot_moves import SlotMove, serves


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


class Migration(SlotMove):
    """The migration of a slot from `source` to `target`; the slot has a queue with jobs in every state."""

    def __init__(self, cluster: Cluster) -> None:
        for node in cluster.nodes:
            node.client.flushall()
        move = SlotMove.of(cluster, Stand(None).base)
        super().__init__(move.source, move.target, move.slot)
        self.at_source, self.at_target = Stand(self.source.client), Stand(self.target.client)
        self._fill()
        for stand in (self.at_source, self.at_target):
            for script in scripts().scripts.values():
                stand.client.script_load(script.source)

    def _fill(self) -> None:
        stand = self.at_source
        stand.put("dead", "j", tenant="ada")
        worker = FakeWorker(stand, "v", lease=1000)
        worker.settle(worker.claim()[0], ending="bury", text="why")
        worker.claim(1)
        stand.put("a", "b", tenant="ada")
        stand.put("c", tenant="bo", priority=1)
        stand.put("s", delay=5)
        stand.run(stand.bindings.result("a", stand.base + "p/1"))

    def attempt(self, name: str) -> list[str]:
        """Send a script as a driver does: to the node of the slot, then to the other node with ASKING."""
        call = every_script(self.at_source.bindings)[name]
        answers = []
        for send in (self.at_source.raw, self._ask):
            try:
                send(call)
            except ResponseError as refused:
                answers.append(error_code(refused))
            else:
                answers.append("done")
        return answers

    def _ask(self, call: RoundTrip[object]) -> None:
        self._asking("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)

    def _asking(self, *command: object) -> object:
        with self.target.client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command)
            _, reply = pipeline.execute(raise_on_error=False)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def stored(self) -> list[dict[str, object]]:
        """Everything that both nodes store, as bytes."""
        return [
            {key: self.source.client.dump(key) for key in self.at_source.names()},
            {key: self._asking("DUMP", key) for key in self.at_target.names()},
        ]


@pytest.fixture
def migration(cluster: Cluster) -> Iterator[Migration]:
    made = Migration(cluster)
    yield made
    made.undo()


SOME = [
    "jobs",
    "lane:5:ada",
    "front:5:ada",
    "rotation:5",
    "delayed",
    "held:v",
    "leases",
    "failures",
    "listeners",
    "tenants",
]


@pytest.mark.parametrize(
    "migrated", [[], ["meta"], ["jobs"], SOME, [*SOME, "meta"], ["meta", "rotation:1", "age"], None]
)
def test_no_script_is_half_done_during_a_slot_migration(migration: Migration, migrated: list[str] | None):
    """`migrated` None: all keys have been migrated, but the nodes do not know yet that the migration is over."""
    everything = [key.removeprefix(migration.at_source.base) for key in migration.at_source.names()]
    migrated = everything if migrated is None else migrated
    migration.begin()
    migration.carry(*(migration.at_source.base + name for name in everything if name in migrated))
    before = migration.stored()
    for name in OF_QUEUE:
        assert migration.attempt(name) == ["ASK" if "meta" in migrated else "TRYAGAIN", "TRYAGAIN"], name
    assert migration.stored() == before


def test_a_queue_without_keys_is_refused_as_well(migration: Migration):
    migration.source.client.flushall()
    migration.begin()
    for name in OF_QUEUE:
        assert migration.attempt(name) == ["ASK", "TRYAGAIN"], name
    assert (migration.at_source.names(), migration.at_target.names()) == ([], [])


def test_everything_is_there_when_the_slot_has_moved(migration: Migration):
    before = migration.at_source.dump()
    migration.begin()
    migration.carry(*migration.at_source.names()[::2])
    migration.finish()
    eventually(lambda: serves(migration.target, migration.slot))
    assert migration.at_target.dump() == before
    assert ids(FakeWorker(migration.at_target, "w").claim(9)) == ["c", "a", "b"]
    for name in OF_QUEUE:
        migration.at_target.run(every_script(migration.at_target.bindings)[name])
