"""A batch is held as one entry until something concerns one of its jobs, and nothing shows the difference."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.jobs.claims import Claim, Ending, Registration, Settlement, claim_number
from penstock.jobs.listing import JobFilter, ListingBindings
from penstock.jobs.notes import encode_notes
from penstock.jobs.output import pack_block
from tests.jobs.stand import FakeWorker, Stand, settlement
from tests.jobs.test_batch_scripts import problems

SIZE = 5

ENDINGS: tuple[Ending | None, ...] = (None, "release", "retry", "loss")


def start(stand: Stand, name: str = "w", size: int = SIZE, by_tenant: int = 0) -> FakeWorker:
    worker = FakeWorker(stand, name)
    worker.turn(0, registration=Registration(name, 4, f"{name}/1", batch=(size, 200, by_tenant)), address=f"{name}/1")
    return worker


def claims_of(stand: Stand, worker: FakeWorker, n: int = SIZE) -> list[Claim]:
    stand.put(*(f"j{at}" for at in range(n)))
    return worker.claim(n)


def whole(claims: list[Claim]) -> Settlement:
    tokens = tuple(claim.token for claim in claims)
    return Settlement(tokens[0], jobs=tokens)


def batches(stand: Stand) -> int:
    return sum(len(content) for name, content in stand.raw_dump().items() if name.startswith("batches:"))


def test_a_batch_is_claimed_and_completed_as_one_entry(stand: Stand):
    worker = start(stand)
    claims = claims_of(stand, worker, 2 * SIZE)
    assert batches(stand) == 2
    assert problems(stand) == []
    (info,) = stand.run(stand.bindings.workers(10))
    assert info.held == 2 * SIZE
    turn = worker.turn(0, whole(claims[:SIZE]), whole(claims[SIZE:]))
    assert (turn.alive, turn.stale, batches(stand), stand.counts()) == (True, (), 0, "0 0 0 0")
    assert stand.run(stand.bindings.counts()).completed == 2 * SIZE
    assert problems(stand) == []


@pytest.mark.parametrize("what", ["note", "result", "failure", "settled", "cancel", "shown", "output", "by time"])
def test_what_concerns_one_job_opens_its_batch(stand: Stand, what: str):
    worker = start(stand)
    claims = claims_of(stand, worker)
    one = claims[2]
    left = [claim for claim in claims if claim is not one]
    match what:
        case "note":
            worker.turn(0, notes=[(one.token, encode_notes(b'{"f":0.5}', []))])
            assert b"j2" in stand.dump()["notes"]
            left = claims
        case "result":
            worker.turn(0, settlement(one, text="7"))
        case "failure":
            worker.turn(0, settlement(one, "bury", text='{"reason":"no"}'))
        case "settled":
            assert stand.run(stand.bindings.settle("w", Settlement(one.token)))
        case "cancel":
            assert stand.run(stand.bindings.cancel(["j2"])) == ["running"]
            assert stand.run(stand.bindings.heartbeat("w", 10)) == [one.token]
            left = claims
        case "shown":
            page = stand.run(ListingBindings(stand.bindings).page("held:w", b"", 100, JobFilter()))
            assert {row.key for row in page.rows} == {claim.id for claim in claims}
            left = claims
        case "output":
            worker.turn(0, emitted=[(one.token, pack_block(1, [b"1"], missed=0, attempt=1))])
            left = claims
        case _:
            stand.run(stand.bindings.set_switch("by_time", True))
            left = claims
    assert problems(stand) == []
    if what != "by time":
        assert batches(stand) == 0
    turn = worker.turn(0, whole(claims))
    assert {stale.token for stale in turn.stale} == {claim.token for claim in claims} - {claim.token for claim in left}
    assert stand.counts() == f"0 0 0 {int(what == 'failure')}"
    assert problems(stand) == []


def test_a_stale_batch_settles_nothing_and_its_jobs_run_again(stand: Stand):
    worker, other = start(stand), start(stand, "other")
    claims = claims_of(stand, worker)
    stand.advance(5)
    other.turn(0)
    stand.advance(6)
    assert [claim.id for claim in other.claim(SIZE)] == [claim.id for claim in claims]
    assert not worker.turn(0, whole(claims)).alive
    assert stand.counts() == "0 0 5 0"
    assert problems(stand) == []


def test_a_worker_that_is_idle_beside_a_batch_keeps_it_for_its_lease_only(stand: Stand):
    worker, other = start(stand), start(stand, "other")
    stand.put(*"abcde")
    assert len(worker.turn(2 * SIZE, address="w/1", sleep=50.0).claims) == SIZE
    assert worker.turn(SIZE, address="w/1", sleep=50.0).claims == []
    stand.advance(5)
    other.turn(0)
    stand.advance(6)
    assert len(other.claim(SIZE)) == SIZE
    assert problems(stand) == []


def test_two_batches_and_single_jobs_of_one_turn_are_reported_by_their_own_tokens(stand: Stand):
    worker = start(stand)
    claims = claims_of(stand, worker, 3 * SIZE)
    assert stand.run(stand.bindings.settle("w", Settlement(claims[1].token)))
    stand.run(stand.bindings.settle("w", Settlement(claims[11].token)))
    last = [settlement(claim) for claim in claims[10:14]]
    turn = worker.turn(0, whole(claims[:5]), whole(claims[5:10]), *last, settlement(claims[14], "retry", 0.0, "{}"))
    assert [stale.id for stale in turn.stale] == ["j1", "j11"]
    assert stand.counts() == "1 0 0 0"
    assert problems(stand) == []


def test_a_batch_with_a_job_of_another_kind_is_held_job_by_job(stand: Stand):
    worker = start(stand)
    stand.put("a", "b")
    stand.put("c", unique=("key", "d", 0))
    stand.put("d", "e")
    claims = worker.claim(5)
    assert (len(claims), batches(stand)) == (5, 0)
    assert problems(stand) == []
    turn = worker.turn(0, whole(claims))
    assert (turn.stale, stand.counts()) == ((), "0 0 0 0")
    assert problems(stand) == []


def test_an_incarnation_holds_some_hundred_jobs_in_batches_and_the_others_one_by_one(stand: Stand):
    worker = start(stand, size=100)
    claims = list[list[Claim]]()
    for round_ in range(8):
        stand.put(*(f"{round_}-{at}" for at in range(100)))
        claims.append(worker.claim(100))
    assert batches(stand) == 5
    (info,) = stand.run(stand.bindings.workers(10))
    assert info.held == 800
    worker.turn(0, *map(whole, claims))
    assert stand.counts() == "0 0 0 0"
    assert problems(stand) == []


# --- any history ---


@dataclass
class Life:
    """A worker, and what it holds, in the order of the claims."""

    worker: FakeWorker
    held: dict[bytes, Claim] = field(default_factory=dict)

    @property
    def claims(self) -> list[Claim]:
        return list(self.held.values())


class History:
    """Two workers whose batches end as a whole or in pieces, whose replies are lost, who die, and whose jobs are shown
    and noted meanwhile."""

    def __init__(self, stand: Stand, seed: int) -> None:
        self.stand = stand
        self.chance = random.Random(seed)
        self.size, self.by_tenant = self.chance.randint(4, 8), seed % 2
        self.serial = self.begun = self.completed = self.whole = 0
        self.lives = [self.begin(), self.begin()]

    def begin(self) -> Life:
        self.begun += 1
        return Life(start(self.stand, f"w{self.begun}", self.size, self.by_tenant))

    def turn(self, life: Life, want: int, *ends: Settlement, **options: Any) -> None:
        name = life.worker.incarnation
        reply = life.worker.turn(want, *ends, address=f"{name}/1", sleep=50.0 if want else 0.0, **options)
        if reply.alive and self.chance.random() < 0.3:  # the reply was lost
            again = life.worker.repeat_turn()
            assert [claim.token for claim in again.claims] == [claim.token for claim in reply.claims]
            assert again.stale == reply.stale
        if not reply.alive:
            self.lives[self.lives.index(life)] = self.begin()
            return
        assert reply.stale == ()
        for one in ends:
            self.completed += 0 if one.ending else len(one.tokens)
            self.whole += bool(one.jobs)
            for token in one.tokens:
                del life.held[token]
        life.held |= {claim.token: claim for claim in reply.claims}

    def batch_of(self, life: Life) -> list[Settlement]:
        """The end of some jobs that were claimed one after another; not always those of one batch."""
        at = self.chance.randrange(len(life.held))
        some = life.claims[at : at + self.size]
        numbers = [claim_number(claim.token) for claim in some]
        if len(some) > 1 and numbers[-1] - numbers[0] == len(some) - 1:
            return [whole(some)]
        return [settlement(claim) for claim in some]

    def act(self) -> None:
        chance, stand, life = self.chance, self.stand, self.chance.choice(self.lives)
        match chance.randint(0, 13):
            case 0 | 1 | 2:
                names = [f"{self.serial + n}" for n in range(chance.randint(1, 2 * self.size))]
                self.serial += len(names)
                stand.put(*names, tenant=chance.choice("ab"))
            case 3 | 4 | 5:
                self.turn(life, self.size * chance.randint(1, 3))
            case _ if not life.held:
                stand.advance(chance.choice([0.1, 0.25, 4]))
            case 6 | 7 | 8:
                self.turn(life, chance.choice([0, self.size]), *self.batch_of(life))
            case 9:
                ending = chance.choice(ENDINGS)
                some = chance.sample(life.claims, chance.randint(1, min(3, len(life.held))))
                self.turn(life, 0, *(settlement(claim, ending, 0.0, "{}") for claim in some))
            case 10:
                self.turn(life, 0, notes=[(chance.choice(life.claims).token, encode_notes(b'{"f":1}', []))])
            case 11:
                source = f"held:{life.worker.incarnation}"
                page = stand.run(ListingBindings(stand.bindings).page(source, b"", 100, JobFilter()))
                assert {row.key for row in page.rows} == {claim.id for claim in life.claims}
            case 12:
                ran = [token for token in life.held if chance.random() < 0.5]
                stand.run(stand.bindings.abandon(life.worker.incarnation, "loss", b"{}", ran))
                self.lives[self.lives.index(life)] = self.begin()
            case _:
                stand.advance(chance.choice([0.1, 0.25, 4]))

    def check(self) -> None:
        assert problems(self.stand) == []
        owners = self.stand.raw_dump().get("owners", {})
        for life in self.lives:
            name = life.worker.incarnation
            held = {id.decode() for id, owner in owners.items() if id and owner.partition(b" ")[0] == name.encode()}
            is_alive = self.stand.run(self.stand.bindings.heartbeat(name, 10.0)) is not None
            assert not is_alive or held == {claim.id for claim in life.claims}


@pytest.mark.parametrize("seed", range(8))
def test_any_history_settles_each_job_once_and_loses_none(stand: Stand, seed: int):
    history = History(stand, seed)
    for _ in range(90):
        history.act()
        history.check()
    for _ in range(60):
        stand.advance(4)
        for life in list(history.lives):
            history.turn(life, history.size, *map(settlement, life.claims), trial="alone")
    counts = stand.run(stand.bindings.counts())
    assert (counts.completed, counts.waiting, counts.running) == (history.completed, 0, 0)
    assert history.whole > 0
    assert problems(stand) == []


def test_results_of_a_batch_count_after_the_row_was_lost(stand: Stand):
    worker = start(stand)
    claims = claims_of(stand, worker)
    stand.client.hdel(stand.base + "meta", "row")
    turn = worker.turn(0, *(settlement(claim, text="7") for claim in claims))
    assert (turn.alive, turn.stale) == (True, ())
    assert [stand.done(claim.id) for claim in claims] == [b"c7"] * SIZE
