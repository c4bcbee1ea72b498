"""What running jobs emit: the script side. Chunks are fenced as settlements are, and a repeated block counts once."""

import pytest

from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.output import OutputPage, pack_block, read_after
from tests.jobs.stand import FakeWorker, Stand

DAYS = 86_400_000


def block(claim: Claim, *chunks: str, first: int = 1, missed: int = 0) -> tuple[bytes, bytes]:
    encoded = [f'"{chunk}"'.encode() for chunk in chunks]
    return claim.token, pack_block(first, encoded, missed=missed, attempt=claim.record.attempts + 1)


def read(stand: Stand, key: str = "a", after: str = "", address: str = "", *, register: bool = False) -> OutputPage:
    return stand.run(read_after(stand.bindings, key, after, address, register=register))


def shown(stand: Stand, key: str = "a", after: str = "") -> list[tuple[str, int, int]]:
    """Chunk, attempt and how many are missing before it."""
    return [(one.chunk, one.attempt, one.missed) for one in read(stand, key, after).parts]


def ttl(stand: Stand, key: str = "a") -> int:
    left: int = stand.client.pttl(f"{stand.base}output:{key}")
    return left


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w")


@pytest.fixture
def claim(stand: Stand, worker: FakeWorker) -> Claim:
    """Of job `a`, by `worker`."""
    stand.put("a", ttl=600)
    (held,) = worker.claim()
    return held


def test_chunks_have_numbers_without_gaps_over_blocks_and_runs(stand: Stand, worker: FakeWorker, claim: Claim):
    worker.turn(emitted=[block(claim, "a", "b"), block(claim, "c", first=3)])
    worker.turn(0, Settlement(claim.token, b"{}", "retry"), emitted=[block(claim, "d", first=4)])
    (again,) = worker.claim()
    worker.turn(emitted=[block(again, "A")])
    parts = read(stand).parts
    assert [(one.id.partition("-")[0], one.chunk, one.attempt) for one in parts] == [
        ("1", "a", 1), ("2", "b", 1), ("3", "c", 1), ("4", "d", 1), ("5", "A", 2)
    ]  # fmt: skip
    assert {one.at * 1000 for one in parts} == {stand.clock.now_ms}
    for number in range(5):
        assert [one.id for one in read(stand, after=parts[number].id).parts] == [one.id for one in parts[number + 1 :]]


def test_a_block_that_is_sent_twice_is_appended_once(stand: Stand, worker: FakeWorker, claim: Claim):
    worker.turn(emitted=[block(claim, "a", "b")])
    worker.repeat_turn()
    worker.turn(emitted=[block(claim, "a", "b"), block(claim, "c", first=3)])
    assert shown(stand) == [("a", 1, 0), ("b", 1, 0), ("c", 1, 0)]


def test_a_claim_that_has_ended_emits_nothing(stand: Stand, worker: FakeWorker, claim: Claim):
    stand.advance(11)
    other = FakeWorker(stand, "other")
    (again,) = other.claim()
    assert not worker.turn(emitted=[block(claim, "late")]).alive
    other.turn(emitted=[block(claim, "late"), block(again, "in time")])
    assert shown(stand) == [("in time", 1, 0)]
    other.settle(again)
    other.turn(emitted=[block(again, "too late", first=2)])
    assert shown(stand) == [("in time", 1, 0)]


@pytest.mark.parametrize("ending", ["loss", "release"])
def test_a_run_that_is_not_counted_has_a_number_of_its_own(stand: Stand, worker: FakeWorker, claim: Claim, ending: str):
    worker.turn(0, Settlement(claim.token, b"", ending), emitted=[block(claim, "a")])  # type: ignore[arg-type]
    (again,) = worker.claim()
    assert again.record.attempts == 0
    worker.turn(emitted=[block(again, "a")])
    assert shown(stand) == [("a", 1, 0), ("a", 2, 0)]


def test_an_output_lives_until_its_job_ends_and_then_as_long_as_its_result(
    stand: Stand, worker: FakeWorker, claim: Claim
):
    worker.turn(emitted=[block(claim, "a")])
    assert 6 * DAYS < ttl(stand) <= 7 * DAYS
    assert read(stand).lives
    worker.turn(0, Settlement(claim.token), emitted=[block(claim, "b", first=2)])
    assert 500_000 < ttl(stand) <= 600_000
    page = read(stand)
    assert (page.lives, page.is_known, page.is_last, len(page.parts)) == (False, True, True, 2)
    stand.client.delete(f"{stand.base}output:a")
    assert not read(stand).parts


def test_readers_reach_the_end_although_no_result_is_kept(stand: Stand, worker: FakeWorker):
    stand.put("a", ttl=0)
    (held,) = worker.claim()
    worker.turn(0, Settlement(held.token), emitted=[block(held, "a")])
    assert 50_000 < ttl(stand) <= 60_000
    assert read(stand).is_known


@pytest.mark.parametrize("how", ["cancel", "drop", "remove"])
def test_every_end_of_the_job_ends_its_output(stand: Stand, worker: FakeWorker, claim: Claim, how: str):
    worker.turn(emitted=[block(claim, "a")])
    if how == "remove":
        worker.settle(claim, ending="bury")
        assert not read(stand).lives
        assert ttl(stand) > DAYS
        stand.run(stand.bindings.remove_dead(["a"]))
    else:
        worker.settle(claim, ending=how)  # type: ignore[arg-type]
    assert 0 < ttl(stand) <= 600_000
    assert shown(stand) == [("a", 1, 0)]


def test_an_id_that_is_used_again_begins_a_new_output(stand: Stand, worker: FakeWorker):
    stand.put("a", own=True)
    (held,) = worker.claim()
    worker.turn(0, Settlement(held.token), emitted=[block(held, "old", "older")])
    old = read(stand).parts
    stand.put("a", own=True)
    assert read(stand).parts == []
    stand.advance(1)
    (held,) = worker.claim()
    worker.turn(emitted=[block(held, "new", "newer", "newest")])
    assert shown(stand, after=old[-1].id) == [("new", 1, 0), ("newer", 1, 0), ("newest", 1, 0)]


def test_the_oldest_blocks_go_and_the_reader_hears_of_the_gap(stand: Stand, worker: FakeWorker, claim: Claim):
    big = "x" * 200_000
    for number in range(1, 9):
        worker.turn(emitted=[block(claim, f"{number}{big}", first=number)])
    page = read(stand)
    assert (page.parts[0].chunk[0], page.parts[0].missed) == ("4", 3)
    assert stand.client.memory_usage(f"{stand.base}output:a") < 1_500_000
    assert len(page.parts) == 2, "a read returns about 256 KiB"
    rest = page
    while not rest.is_last:
        rest = read(stand, after=rest.parts[-1].id)
        assert {one.missed for one in rest.parts} == {0}
    assert rest.parts[-1].chunk[0] == "8"
    begun = page.parts[0].id.partition("-")[2]
    assert [one.missed for one in read(stand, after=f"2-{begun}").parts] == [1, 0]


def test_many_chunks_are_bounded_as_well(stand: Stand, worker: FakeWorker, claim: Claim):
    for number in range(11):
        token, _ = block(claim)
        worker.turn(emitted=[(token, pack_block(number * 10_000 + 1, [b"1"] * 10_000, missed=0, attempt=1))])
    (first, *_) = read(stand).parts
    assert (first.id.partition("-")[0], first.missed) == ("10001", 10_000)


def test_chunks_that_the_worker_dropped_are_reported(stand: Stand, worker: FakeWorker, claim: Claim):
    worker.turn(emitted=[block(claim, "a"), block(claim, "d", "e", first=4, missed=2)])
    assert shown(stand) == [("a", 1, 0), ("d", 1, 2), ("e", 1, 0)]


def test_listeners_hear_of_chunks_and_of_the_end(stand: Stand, worker: FakeWorker, claim: Claim):
    stand.start_processes("p")
    assert not read(stand, address="p/1", register=True).parts
    worker.turn(emitted=[block(claim, "a")])
    assert stand.messages("p") == ["1 output"]
    assert read(stand, address="p/1").parts
    worker.turn(emitted=[block(claim, "b", first=2)])
    assert stand.messages("p") == []
    read(stand, address="p/1", register=True)
    worker.settle(claim)
    assert stand.messages("p") == ["1 done"]
    assert not [name for name in stand.dump() if name.startswith("listeners")]


def test_an_unknown_job_is_not_known(stand: Stand):
    assert not read(stand, "nobody").is_known


def test_a_queue_without_outputs_pays_nothing_for_them(stand: Stand, worker: FakeWorker, claim: Claim):
    stand.client.config_resetstat()
    worker.settle(claim)
    commands = {"cmdstat_xadd", "cmdstat_xrevrange", "cmdstat_pexpire", "cmdstat_unlink"}
    assert not commands & set(stand.client.info("commandstats"))


def test_many_small_blocks_take_many_reads_and_many_writes_to_free(stand: Stand, worker: FakeWorker, claim: Claim):
    """One script that returned or freed all of them would block the server for 25 ms."""
    for first in range(1, 8001, 100):
        worker.turn(emitted=[block(claim, "x", first=number) for number in range(first, first + 100)])
    key = f"{stand.base}output:a"
    stored = stand.client.xlen(key)
    assert stored > 7000
    page, read_parts = read(stand), 0
    while page.parts:
        assert len(page.parts) <= 1000
        read_parts += len(page.parts)
        page = read(stand, after=page.parts[-1].id)
    assert read_parts == stored

    large = "x" * 65_000
    worker.turn(emitted=[block(claim, large, first=8001 + n) for n in range(7)])
    assert stand.client.xlen(key) == stored + 7 - 1000
    for n in range(7):
        worker.turn(emitted=[block(claim, "x", first=8008 + n)])
    assert 500_000 < sum(len(one[1][b"chunks"]) + 128 for one in stand.client.xrange(key)) <= 1_048_576
