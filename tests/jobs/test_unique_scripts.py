"""What becomes of a unique key in each transition of the job that holds it, and of calls that are doubles."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UniqueKeyHeld
from penstock.jobs.claims import Ending
from penstock.jobs.constants import UNIQUE, UNIQUE_KEY
from penstock.jobs.record import draft, pack_sections
from penstock.jobs.unique import unique_section
from tests.jobs.stand import START, FakeWorker, Stand, at_most, record

MODES = {"done": "d", "start": "s", "replace": "r", "debounce": "b", "throttle": "t"}


def unique(
    key: str = "k",
    mode: str = "done",
    ms: int = 0,
    *,
    delay: float = 0,
    tenant: str = "",
    priority: int = 5,
    expires: float = 0,
    payload: bytes = b"null",
) -> bytes:
    """A draft with a unique key."""
    start = draft(
        flags=UNIQUE,
        how=0,
        priority=priority,
        tenant=tenant.encode(),
        task=b"",
        delay_ms=round(delay * 1000),
        expires_ms=round(expires * 1000),
        ttl_ms=600_000,
        powers=UNIQUE_KEY,
    )
    return start + pack_sections({UNIQUE_KEY: unique_section(key, MODES[mode].encode(), ms)}) + payload


class Keys:
    """A queue with unique jobs, on the stand."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.worker = FakeWorker(stand, "w")

    def put(self, *jobs: tuple[str, bytes]) -> dict[int, str]:
        """Enqueue jobs. Returns for each double its position and the job that holds the key."""
        doubles: dict[int, str] = {}
        parts = [part for job in jobs for part in job]
        self.stand.run(self.stand.bindings.enqueue(parts, on_double=doubles.__setitem__))
        return doubles

    def holders(self) -> dict[str, str]:
        dump = self.stand.dump()
        found = {key.decode(): job.decode() for key, job in dump.get("unique", {}).items()}
        for name, window in dump.items():
            if name.startswith("throttle:") and int.from_bytes(window[:6]) > self.stand.clock.now_ms:
                found[name.removeprefix("throttle:")] = window[6:].decode()
        return found

    def end(self, ending: Ending | None, delay: float = 0.0) -> None:
        """Claim the first job and settle it."""
        (claim,) = self.worker.claim()
        assert self.worker.settle(claim, ending=ending, delay=delay)


@pytest.fixture
def keys(stand: Stand) -> Keys:
    return Keys(stand)


@pytest.mark.parametrize("mode", ["done", "start", "throttle"])
def test_a_double_changes_nothing_and_gets_the_first_job(keys: Keys, stand: Stand, mode: str):
    assert keys.put(("a", unique(mode=mode, ms=1000))) == {}
    before = stand.dump()
    assert keys.put(("b", unique(mode=mode, ms=1000, payload=b"2"))) == {0: "a"}
    assert stand.state("b") == "-"
    after = stand.dump()
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {"meta"}


def test_other_keys_and_jobs_without_one_are_no_doubles(keys: Keys, stand: Stand):
    keys.put(("a", unique("k")), ("b", unique("l")), ("c", record()), ("d", record()))
    assert stand.counts() == "4 0 0 0"
    assert keys.holders() == {"k": "a", "l": "b"}


def test_doubles_in_one_bulk_call_are_found(keys: Keys, stand: Stand):
    jobs = [(f"j{i}", unique(f"k{i % 3}")) for i in range(9)]
    assert keys.put(*jobs) == {i: f"j{i % 3}" for i in range(3, 9)}
    assert stand.counts() == "3 0 0 0"


# --- the table of transitions in unique.lua ---

IN_PROGRESS: list[Ending] = ["retry", "later", "release", "crash", "loss", "contained"]
KEPT = [("done", ending, delay) for ending in IN_PROGRESS for delay in (0.0, 5.0)]
ENDINGS: list[Ending | None] = [None, "drop", "cancel", "bury"]


@pytest.mark.parametrize(("mode", "ending", "delay"), KEPT)
def test_a_key_until_done_is_kept_while_the_job_goes_on(keys: Keys, mode: str, ending: Ending, delay: float):
    keys.put(("a", unique(mode=mode)))
    keys.end(ending, delay)
    assert keys.holders() == {"k": "a"}
    assert keys.put(("b", unique(mode=mode))) == {0: "a"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_key_until_done_is_given_up_with_the_end(keys: Keys, ending: Ending | None):
    keys.put(("a", unique()))
    keys.end(ending)
    assert keys.holders() == {}
    assert keys.put(("b", unique())) == {}


@pytest.mark.parametrize("mode", ["start", "replace", "debounce"])
@pytest.mark.parametrize("ending", [*ENDINGS, *IN_PROGRESS])
def test_a_key_until_start_is_given_up_by_the_claim_and_not_taken_again(
    keys: Keys, stand: Stand, mode: str, ending: Ending | None
):
    keys.put(("a", unique(mode=mode, ms=1000)))
    (claim,) = keys.worker.claim()
    assert keys.holders() == {}
    assert keys.put(("b", unique(mode=mode, ms=1000))) == {}
    assert keys.worker.settle(claim, ending=ending)
    assert keys.holders() == {"k": "b"}, "the job that came back takes no key from the other"


@pytest.mark.parametrize("ending", [*ENDINGS, *IN_PROGRESS])
def test_a_throttle_is_kept_for_its_time_whatever_becomes_of_the_job(keys: Keys, stand: Stand, ending: Ending | None):
    keys.put(("a", unique(mode="throttle", ms=60_000)))
    keys.end(ending)
    stand.advance(59.999)
    assert keys.put(("b", unique(mode="throttle", ms=60_000))) == {0: "a"}
    stand.advance(0.001)
    assert keys.put(("c", unique(mode="throttle", ms=60_000))) == {}
    assert stand.client.pttl(stand.base + "throttle:k") > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["cancel", "purge", "expire", "cancel delayed", "purge delayed"])
def test_a_key_is_given_up_when_the_waiting_job_leaves(keys: Keys, stand: Stand, mode: str, how: str):
    keys.put(("a", unique(mode=mode, ms=60_000, delay=5 if "delayed" in how else 0, expires=1)))
    if how.startswith("cancel"):
        assert stand.run(stand.bindings.cancel(["a"])) == ["cancelled"]
    elif how.startswith("purge"):
        stand.run(stand.bindings.purge(None, 0))
    else:
        stand.advance(2)
        assert keys.worker.claim() == []
    assert stand.state("a") == "-"
    assert keys.holders() == {}


@pytest.mark.parametrize("mode", ["done", "start"])
def test_a_lease_that_ran_out_treats_the_key_as_a_release_does(keys: Keys, stand: Stand, mode: str):
    keys.put(("a", unique(mode=mode)))
    keys.worker.claim()
    stand.advance(11)
    FakeWorker(stand, "other").turn()
    assert stand.state("a") == "r"
    assert keys.holders() == ({"k": "a"} if mode == "done" else {})


def test_a_suspect_keeps_its_key(keys: Keys, stand: Stand):
    keys.put(("a", unique()))
    for _ in range(2):
        keys.end("loss")
    assert stand.job("a").is_suspect
    assert keys.put(("b", unique())) == {0: "a"}


@pytest.mark.parametrize("mode", ["done", "start"])
def test_a_requeued_job_takes_its_key_again(keys: Keys, stand: Stand, mode: str):
    keys.put(("a", unique(mode=mode)))
    keys.end("bury")
    assert stand.run(stand.bindings.requeue(["a"])) == 1
    assert keys.holders() == {"k": "a"}


def test_a_requeue_is_refused_while_another_job_holds_the_key_and_names_it(keys: Keys, stand: Stand):
    keys.put(("a", unique()))
    keys.end("bury")
    keys.put(("b", unique()), ("c", record()))
    keys.end("release")
    with pytest.raises(UniqueKeyHeld, match="job q:b holds its unique key") as refused:
        stand.run(stand.bindings.requeue(["a"]))
    assert refused.value.holder == "q:b"
    assert stand.state("a") == "d"
    assert stand.run(stand.bindings.requeue(["a", "c"])) == 0
    assert stand.run(stand.bindings.remove_dead(["a"])) == 1
    assert keys.holders() == {"k": "b"}


def test_a_throttled_job_is_requeued_whoever_came_later(keys: Keys, stand: Stand):
    keys.put(("a", unique(mode="throttle", ms=1000)))
    keys.end("bury")
    stand.advance(2)
    keys.put(("b", unique(mode="throttle", ms=1000)))
    assert stand.run(stand.bindings.requeue(["a"])) == 1


def test_a_repeated_turn_and_a_stale_settlement_give_up_no_key_of_another(keys: Keys, stand: Stand):
    keys.put(("a", unique()))
    (claim,) = keys.worker.claim()
    keys.worker.settle(claim)
    keys.put(("b", unique()))
    keys.worker.repeat_turn()
    assert not keys.worker.settle(claim)
    assert keys.holders() == {"k": "b"}


def test_a_job_settled_by_a_program_gives_its_key_up(keys: Keys, stand: Stand):
    keys.put(("a", unique()))
    (claim,) = keys.worker.claim()
    assert keys.worker.settle_alone(claim)
    assert keys.holders() == {}


# --- replace and debounce ---


def payload(stand: Stand, key: str) -> bytes:
    return stand.job(key).payload


def test_a_double_that_replaces_gives_its_arguments_and_nothing_else(keys: Keys, stand: Stand):
    keys.put(("a", unique(mode="replace", tenant="ada", priority=2, payload=b"1")), ("z", record("ada", 2)))
    before = stand.job("a")
    stand.advance(1)
    assert keys.put(("b", unique(mode="replace", tenant="bo", priority=9, payload=b"22"))) == {0: "a"}
    after = stand.job("a")
    assert after.payload == b"22"
    same = ("tenant", "priority", "enqueued", "since", "generation")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert [claim.id for claim in keys.worker.claim(2)] == ["a", "z"], "it keeps its place"


def test_a_double_in_the_same_call_replaces_too(keys: Keys, stand: Stand):
    jobs = [(f"j{i}", unique(mode="replace", payload=b"%d" % i)) for i in range(5)]
    assert keys.put(*jobs) == dict.fromkeys(range(1, 5), "j0")
    assert payload(stand, "j0") == b"4"
    assert stand.counts() == "1 0 0 0"


def test_a_double_does_not_replace_a_running_job_of_another_task_with_the_same_key(keys: Keys, stand: Stand):
    """As a larger job it would get a second entry, and run twice at the same time."""
    keys.put(("a", unique()))
    (claim,) = keys.worker.claim()
    assert keys.put(("b", unique(mode="replace", payload=b"x" * 5000))) == {0: "a"}
    assert keys.worker.claim(5) == []
    assert stand.job("a").payload == b"null"
    assert keys.worker.settle(claim)


@pytest.mark.parametrize("mode", ["replace", "debounce"])
def test_a_double_does_not_replace_a_job_that_has_a_place_in_a_limit(keys: Keys, stand: Stand, mode: str):
    stand.put("a", limits=[at_most(1)], unique=("k", "s", 0))
    assert keys.put(("b", unique(mode=mode, ms=1000, payload=b"1"))) == {0: "a"}
    assert stand.job("a").limits_passed == 1
    stand.run(stand.bindings.cancel(["a"]))
    assert "places" not in stand.dump()


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("sizes", [(10, 5000), (5000, 10)])
def test_a_replaced_job_may_change_its_size(keys: Keys, stand: Stand, delay: float, sizes: tuple[int, int]):
    for i, size in enumerate(sizes):
        keys.put((f"j{i}", unique(mode="replace", delay=delay, payload=b"%0*d" % (size, i))))
    stand.advance(delay)
    (claim,) = keys.worker.claim(5)
    assert len(claim.record.payload) == sizes[1]
    keys.worker.settle(claim)
    assert keys.worker.claim() == []
    assert stand.entries() == 0


def test_a_replaced_delayed_job_keeps_its_due_time(keys: Keys, stand: Stand):
    keys.put(("a", unique(mode="replace", delay=5)))
    stand.advance(4)
    keys.put(("b", unique(mode="replace", delay=5, payload=b"2")))
    assert stand.job("a").since == START + 5000


def test_a_debounced_job_runs_when_no_double_came_for_the_time(keys: Keys, stand: Stand):
    for i in range(4):
        keys.put((f"j{i}", unique(mode="debounce", ms=5000, delay=5, payload=b"%d" % i)))
        stand.advance(4)
    assert keys.worker.claim() == []
    stand.advance(1)
    (claim,) = keys.worker.claim()
    assert (claim.id, claim.record.payload) == ("j0", b"3")


def test_a_debounced_job_that_is_due_already_is_not_delayed_again(keys: Keys, stand: Stand):
    stand.run(stand.bindings.set_switch("paused", True))
    keys.put(("a", unique(mode="debounce", ms=5000, delay=5)))
    stand.advance(5)
    keys.worker.turn()
    assert keys.put(("b", unique(mode="debounce", ms=5000, delay=5, payload=b"2"))) == {0: "a"}
    assert (stand.state("a"), payload(stand, "a")) == ("r", b"2")


def test_a_call_that_is_sent_again_returns_the_same_double(keys: Keys, stand: Stand):
    keys.put(("a", unique()))
    call = stand.bindings.enqueue(["b", unique()])
    first = stand.raw(type(call)(call.script, call.keys, ("me", 1, *call.args[2:]), call.read))
    keys.end(None)
    again = stand.raw(type(call)(call.script, call.keys, ("me", 1, *call.args[2:]), call.read))
    assert first == again == [[0, b"a"]]
    assert stand.counts() == "0 0 0 0"


def test_a_scheduled_job_with_a_key_is_a_double_as_well(keys: Keys, stand: Stand):
    from tests.jobs.test_schedule_scripts import Scheduled

    scheduled = Scheduled(stand)
    scheduled.define(draft=unique())
    for _ in range(3):
        stand.advance(60)
        assert scheduled.serve(scheduled.offered()) == [True]
    assert stand.counts() == "1 0 0 0"
    assert scheduled.show().last == START + 180_000


def test_a_hundred_keys_cost_two_commands_more_in_a_turn(keys: Keys, stand: Stand):
    def calls(jobs: list[tuple[str, bytes]]) -> int:
        keys.put(*jobs)
        claims = keys.worker.claim(100)
        before = commands(stand)
        keys.worker.settle(*claims)
        return commands(stand) - before

    plain = max(calls([(f"p{n}.{i}", record()) for i in range(100)]) for n in range(3))
    assert calls([(f"u{i}", unique(f"k{i}")) for i in range(100)]) <= plain + 2


def commands(stand: Stand) -> int:
    stats: dict[str, Any] = stand.client.info("commandstats")
    return int(sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_evalsha")))
