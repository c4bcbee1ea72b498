"""What a completed job has staged: the script side. It is applied with the completion, once, and all or nothing."""

from typing import Any

import pytest

from penstock.core.writes import pack_rows, packable, write
from penstock.jobs.claims import Settlement
from penstock.jobs.counts import Outgoing
from penstock.jobs.failures import Failures
from tests.jobs.stand import FakeWorker, Stand, record

Row = tuple[Any, ...]


def effects(*writes: Row, calls: tuple[str, ...] = (), sent: tuple[tuple[str, str], ...] = ()) -> bytes:
    """`writes`: command, key, arguments. `calls`: ids. `sent`: queues and ids."""
    keys = [*dict.fromkeys(key for _, key, *_ in writes)]
    rows = [write(command, keys.index(key) + 1, [packable(arg) for arg in args]) for command, key, *args in writes]
    drafted = packable(record())
    there = [part for queue, id in sent for part in (queue, id, drafted)]
    return pack_rows((keys, rows, [part for id in calls for part in (id, drafted)], there))


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    stand.put("a", "b")
    return FakeWorker(stand, "w")


def complete(worker: FakeWorker, claim: Any, packed: bytes, result: bytes = b"null") -> Any:
    return worker.turn(0, Settlement(claim.token, result, effects=packed))


def key(stand: Stand, name: str) -> str:
    return stand.bindings.keys.user(name)


def test_writes_and_calls_are_applied_with_the_completion(stand: Stand, worker: FakeWorker):
    one, two = worker.claim(2)
    sales = key(stand, "sales")
    complete(
        worker, one, effects(("HINCRBY", sales, "ann", 1), ("ZADD", key(stand, "best"), "5", "ann"), calls=("c",)), b"7"
    )
    assert stand.client.hgetall(sales) == {b"ann": b"1"}
    assert stand.client.zscore(key(stand, "best"), "ann") == 5
    assert (stand.states("a", "b", "c"), stand.done("a")) == ("-xr", b"c7")
    complete(worker, two, effects(("HINCRBY", sales, "ann", 2)))
    assert stand.client.hget(sales, "ann") == b"3"
    assert stand.counts() == "1 0 0 0"


def test_a_repeated_turn_applies_them_once(stand: Stand, worker: FakeWorker):
    (claim,) = worker.claim()
    complete(worker, claim, effects(("INCRBY", key(stand, "n"), 1), calls=("c",), sent=(("other", "d"),)))
    before = stand.dump()
    worker.repeat_turn()
    complete(worker, claim, effects(("INCRBY", key(stand, "n"), 1)))
    assert stand.client.get(key(stand, "n")) == b"1"
    assert stand.dump()["outbox:other"] == before["outbox:other"]


def test_a_worker_that_lost_its_lease_applies_nothing(stand: Stand, worker: FakeWorker):
    (claim,) = worker.claim()
    stand.advance(11)
    other = FakeWorker(stand, "v")
    (again,) = other.claim()
    assert not complete(worker, claim, effects(("INCRBY", key(stand, "n"), 1))).alive
    turn = complete(other, claim, effects(("INCRBY", key(stand, "n"), 1), calls=("c",)))
    assert [stale.token for stale in turn.stale] == [claim.token]
    assert stand.client.get(key(stand, "n")) is None
    complete(other, again, effects(("INCRBY", key(stand, "n"), 1)))
    assert stand.client.get(key(stand, "n")) == b"1"


@pytest.mark.parametrize(
    "writes",
    [
        [("INCRBY", "text", 1)],
        [("INCRBY", "n", 1), ("HSET", "text", "f", "v")],
        [("SET", "n", "x"), ("INCRBY", "n", 1)],
        [("HINCRBY", "h", "f", 1), ("HINCRBY", "h", "f", 2**53 - 1)],
    ],
    ids=["alone", "type", "own write", "too large"],
)
def test_if_a_write_is_impossible_nothing_is_written_and_the_job_is_a_dead_letter(
    stand: Stand, worker: FakeWorker, writes: list[Row]
):
    stand.client.set(key(stand, "text"), "x")
    (claim,) = worker.claim()
    packed = effects(*[(command, key(stand, name), *rest) for command, name, *rest in writes], calls=("c",))
    turn = complete(worker, claim, packed)
    assert not turn.stale
    names = {name for name in stand.dump() if name.startswith("user:")}
    assert (names, stand.states("a", "b", "c")) == ({"user:text"}, "dr-")
    failure = Failures.read(stand.run(stand.bindings.show("a")).failures)
    assert "a staged write is impossible, and nothing was written" in failure.reason
    assert key(stand, writes[-1][1]) in failure.reason
    assert stand.run(stand.bindings.requeue(["a"])) == 1


def test_effects_of_running_work_pass_a_full_server(stand: Stand, worker: FakeWorker):
    (claim,) = worker.claim()
    stand.client.config_set("maxmemory", 1)
    try:
        complete(worker, claim, effects(("INCRBY", key(stand, "n"), 1), calls=("c",), sent=(("other", "d"),)))
    finally:
        stand.client.config_set("maxmemory", 0)
    assert (stand.client.get(key(stand, "n")), stand.states("c")) == (b"1", "r")


def test_a_job_that_stages_nothing_costs_no_command(stand: Stand, worker: FakeWorker):
    plain, staging = worker.claim(2)
    stand.put("c", "d")
    worker.claim()  # the last job of a worker costs another command
    FakeWorker(stand, "other").claim()  # the last job of a queue costs fewer commands
    costs = []
    for one, packed in ((plain, b""), (staging, effects(("HINCRBY", key(stand, "sales"), "ann", 1)))):
        before = sum(row["calls"] for row in stand.client.info("commandstats").values())
        complete(worker, one, packed)
        costs.append(sum(row["calls"] for row in stand.client.info("commandstats").values()) - before)
    assert costs[1] - costs[0] == 1, "the write itself"


# --- the outbox ---


@pytest.fixture
def other(stand: Stand) -> Stand:
    there = Stand(stand.client, "other")
    there.clock = stand.clock
    there.bindings.clock = stand.clock
    return there


def offered(turn: Any) -> list[Any]:
    return [turn.outbox.queue, turn.outbox.entries] if turn.outbox else []


def with_calls_for(worker: FakeWorker, *ids: str) -> Any:
    (claim,) = worker.claim()
    packed = effects(sent=tuple(("other", id) for id in ids))
    return worker.turn(0, Settlement(claim.token, effects=packed), address="{t:q}:p/1")


def test_a_call_of_another_queue_is_delivered_by_the_worker_whose_turn_caused_it(
    stand: Stand, other: Stand, worker: FakeWorker
):
    name, entries = offered(with_calls_for(worker, "x", "y"))
    assert (name, entries[1::4], entries[2::4]) == ("other", [b"enqueue"] * 2, [b"x", b"y"])
    other.run(other.bindings.deliver("q", entries))
    assert other.states("x", "y") == "rr"
    assert stand.run(stand.bindings.delivered("other", int(entries[-4]))) == []
    assert not {"outbox:other", "ticks"} & {name.removeprefix(stand.base) for name in stand.names()}


def test_what_arrives_again_is_recognised_however_late(stand: Stand, other: Stand, worker: FakeWorker):
    _, first = offered(with_calls_for(worker, "x", "y"))
    other.run(other.bindings.deliver("q", first[:4]))
    other.run(other.bindings.deliver("q", first))
    done = FakeWorker(other, "v")
    done.turn(0, *[Settlement(claim.token) for claim in done.claim(2)])
    stand.advance(3600)
    other.run(other.bindings.deliver("q", first))
    assert other.counts() == "0 0 0 0"
    _, second = offered(with_calls_for(FakeWorker(stand, "u"), "z"))
    assert second[:8] == first, "they are offered until they were answered"
    other.run(other.bindings.deliver("q", second))
    assert other.counts() == "1 0 0 0"


def test_an_operator_sees_what_waits_and_since_when(stand: Stand, other: Stand, worker: FakeWorker):
    stand.advance(1)
    _, entries = offered(with_calls_for(worker, "x", "y"))
    stand.advance(7)
    assert stand.run(stand.bindings.overview(1)).outbox == [Outgoing("other", 2, 7.0)]
    stand.run(stand.bindings.delivered("other", int(entries[-4])))
    assert stand.run(stand.bindings.overview(1)).outbox == []


def test_another_worker_is_offered_them_after_five_seconds(stand: Stand, worker: FakeWorker):
    entries = offered(with_calls_for(worker, "x"))
    second = FakeWorker(stand, "v")
    assert not offered(second.turn(0, address="{t:q}:p/1"))
    stand.advance(5)
    assert offered(second.turn(0, address="{t:q}:p/1")) == entries


def test_a_deleted_queue_that_begins_again_repeats_no_number(stand: Stand, other: Stand, worker: FakeWorker):
    _, first = offered(with_calls_for(worker, "x"))
    other.run(other.bindings.deliver("q", first))
    stand.client.delete(*[name for name in stand.names() if name.startswith(stand.base)])
    stand.advance(1)
    stand.put("a")
    _, entries = offered(with_calls_for(FakeWorker(stand, "v"), "y"))
    other.run(other.bindings.deliver("q", entries))
    assert other.states("x", "y") == "rr"


def test_many_entries_are_offered_in_pieces(stand: Stand, other: Stand, worker: FakeWorker):
    _, entries = offered(with_calls_for(worker, *[f"x{n}" for n in range(250)]))
    pieces = []
    while entries:
        pieces.append(len(entries) // 4)
        other.run(other.bindings.deliver("q", entries))
        entries = stand.run(stand.bindings.delivered("other", int(entries[-4])))
    assert pieces == [100, 100, 50]
    assert other.counts() == "250 0 0 0"
