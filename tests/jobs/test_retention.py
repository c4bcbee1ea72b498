"""Retention: dead letters and results beyond the limits of a queue are removed by the next scripts."""

from __future__ import annotations

import pytest

from penstock import Penstock, Queue
from penstock.errors import BadCall
from penstock.jobs.retention import Retention
from tests.conftest import Do
from tests.jobs.stand import FakeWorker, Stand


@pytest.fixture
def worker(stand: Stand) -> FakeWorker:
    return FakeWorker(stand, "w", lease=3600)


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.queue("mail")


def keep(stand: Stand, **limits: float) -> None:
    stand.run(Retention(**limits).store(stand.bindings))  # type: ignore[arg-type]


def end(stand: Stand, worker: FakeWorker, *ids: str, ending: str | None = None, **options: float) -> None:
    stand.put(*ids, **options)
    worker.settle(*worker.claim(len(ids)), ending=ending)  # type: ignore[arg-type]


def left(stand: Stand, *ids: str) -> str:
    return "".join(name for name in ids if stand.state(name) == "d")


def test_the_oldest_dead_letters_beyond_the_number_are_removed(stand: Stand, worker: FakeWorker) -> None:
    keep(stand, dead_letters=2)
    for name in "abcd":
        end(stand, worker, name, ending="bury")
        stand.advance(1)
    worker.turn()
    assert left(stand, *"abcd") == "cd"
    assert stand.counts() == "0 0 0 2"
    done = stand.done("a")
    assert done is not None
    assert b"too many dead letters" in done


def test_dead_letters_are_removed_when_they_are_too_old(stand: Stand, worker: FakeWorker) -> None:
    keep(stand, dead_age=60)
    end(stand, worker, "a", ending="bury")
    stand.advance(30)
    end(stand, worker, "b", ending="bury")
    stand.advance(30)
    worker = FakeWorker(stand, "x")
    worker.turn()
    assert left(stand, "a", "b") == "b"
    stand.advance(60)
    FakeWorker(stand, "y").turn()
    assert "dead" not in stand.dump()


def test_a_script_removes_a_bounded_number_of_dead_letters(stand: Stand, worker: FakeWorker) -> None:
    names = [f"j{i}" for i in range(250)]
    end(stand, worker, *names, ending="bury")
    keep(stand, dead_letters=0)
    assert stand.counts() == "0 0 0 150"
    worker.turn()
    worker.turn()
    assert stand.counts() == "0 0 0 0"


def test_results_beyond_the_number_are_removed_the_ones_that_end_first(stand: Stand, worker: FakeWorker) -> None:
    end(stand, worker, "a", ttl=900)
    end(stand, worker, "b", ttl=60)
    end(stand, worker, "c", ttl=900)
    keep(stand, results=2)
    assert [stand.done(name) is not None for name in "abc"] == [True, False, True]
    end(stand, worker, "d", ttl=900)
    worker.turn()
    assert [stand.done(name) is not None for name in "acd"] == [False, True, True]
    assert len(stand.dump()["results"]) == 2


def test_without_limits_nothing_is_read_for_them(stand: Stand, worker: FakeWorker) -> None:
    def reads() -> int:
        return int(stand.client.info("commandstats")["cmdstat_hget"]["calls"])

    def reads_of_a_turn() -> int:
        before = reads()
        worker.turn()
        return reads() - before

    stand.put("a")
    worker.turn()
    plain = reads_of_a_turn()
    keep(stand, dead_letters=1)
    assert reads_of_a_turn() == plain + 1
    keep(stand)
    assert reads_of_a_turn() == plain
    assert b"retention" not in stand.dump()["meta"]


def test_an_idle_worker_removes_what_became_too_old(stand: Stand, worker: FakeWorker) -> None:
    keep(stand, dead_age=60)
    end(stand, worker, "a", ending="bury")
    stand.advance(61)
    FakeWorker(stand, "x").turn(1, address="p/1", sleep=50)
    assert left(stand, "a") == ""


@pytest.mark.parametrize(
    "limits", [{"dead_letters": -1}, {"dead_age": 0}, {"results": 1.5}, {"results": True}, {"dead_age": "1d"}]
)
def test_a_limit_out_of_range_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(BadCall, match=r"keep\("):
        Retention(**limits)  # type: ignore[arg-type]


async def test_the_limits_are_set_and_read_on_both_faces(do: Do, queue: Queue) -> None:
    await do(queue.keep, dead_letters=3, dead_age=86400.5)
    assert await do(queue.kept) == Retention(dead_letters=3, dead_age=86400.5)
    await do(queue.keep)
    assert not await do(queue.kept)
