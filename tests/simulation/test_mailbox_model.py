"""Mailboxes compared with a model: whatever senders and workers do, each message is there until it was acknowledged.

Workers keep claims, and positions of messages, while others take over, while the mailbox is deleted and posted to
again, and while the server falls back to an older state, which a copy of all keys imitates. A call whose reply was
lost is sent again. At the end a worker drains the mailbox: it gets exactly what the model still has.

The default run is short and always the same. PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import LeaseLost, Mailbox, Penstock
from penstock.core.ids import mint_id
from penstock.core.keys import key_pattern
from penstock.core.operations import RoundTrip
from penstock.errors import NewBeginning
from penstock.messages.mailbox import Claimed
from penstock.messages.message import number_of
from penstock.testing import MovableClock
from penstock.testing.audit.instances import audits
from penstock.testing.audit.stored_keys import read_keys
from tests.servers import Server
from tests.simulation.histories import model_settings
from tests.snapshots import Snapshot, fall_back, take_snapshot

ID_SECONDS = 600
SENDERS, IDS = ["", "ada", "名前"], ["1", "2", "x"]
prefixes, callers = itertools.count(1), itertools.count(1)
server: Server


@pytest.fixture(scope="module", autouse=True)
def running() -> Any:
    global server
    with Server() as server:
        yield


@dataclass(frozen=True)
class Entry:
    """A message in the log. `until`: when it becomes overdue, or None."""

    id: str
    sender: str
    body: str
    until: float | None = None

    def is_overdue(self, now: float) -> bool:
        return self.until is not None and self.until <= now


@dataclass
class ModelClaim:
    number: int
    deliveries: int
    ends: float


@dataclass
class ModelMailbox:
    """A mailbox in plain Python. Numbers begin after `start`; everything up to `cursor` is freed."""

    start: int
    entries: list[Entry] = field(default_factory=list)
    cursor: int = 0
    unclaimed: int = 0
    """The first number that no worker has claimed; 0 if there was no claim."""
    claims: dict[str, ModelClaim] = field(default_factory=dict)
    dead: dict[str, tuple[str, str, int, str]] = field(default_factory=dict)
    """Sender, body, deliveries and reason, by position."""
    ids: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def top(self) -> int:
        return self.start + len(self.entries)

    def entry(self, number: int) -> Entry:
        return self.entries[number - self.start - 1]

    def knows(self, id: str) -> bool:
        """Whether this may be the id of one of its messages, as far as the mailbox knows: it compares those that are
        there, and the one that was freed last."""
        number = number_of(id)
        return self.start < number <= self.top and (number < self.cursor or self.entry(number).id == id)

    def free(self) -> None:
        """Advance the cursor to the lowest claim, or to the first message without one."""
        numbers = [claim.number for claim in self.claims.values()]
        self.cursor = max(self.cursor, min(numbers, default=self.unclaimed) - 1)

    def skip_to(self, number: int) -> None:
        """A reader has acknowledged everything up to this number."""
        self.cursor = max(self.cursor, number)
        self.claims = {name: claim for name, claim in self.claims.items() if claim.number > self.cursor}
        self.free()

    def claim(self, token: str, n: int, now: float, lease: float, most: int | None) -> list[str]:
        """The names of the claims that a call with this token makes."""
        taken: list[str] = []
        late = sorted((claim.ends, name) for name, claim in self.claims.items() if claim.ends <= now)
        passed = 0
        for _, name in late[:n]:
            claim = self.claims.pop(name)
            number, deliveries = claim.number, claim.deliveries
            entry = self.entry(number)
            if most and deliveries >= most:
                if not entry.is_overdue(now):
                    reason = f"delivered {deliveries} times, and never acknowledged"
                    self.dead[entry.id] = (entry.sender, entry.body, deliveries, reason)
                passed += 1
            elif entry.is_overdue(now):
                passed += 1
            else:
                taken.append(self._add(number, deliveries + 1, token, now + lease))
        self.unclaimed = max(self.cursor + 1, self.unclaimed)
        while len(taken) < n and self.unclaimed <= self.top:
            if self.entry(self.unclaimed).is_overdue(now):
                passed += 1
            else:
                taken.append(self._add(self.unclaimed, 1, token, now + lease))
            self.unclaimed += 1
        self.free()
        return taken if taken or not passed else self.claim(token, n, now, lease, most)

    def _add(self, number: int, deliveries: int, token: str, ends: float) -> str:
        name = f"{number}:{deliveries}:{token}"
        self.claims[name] = ModelClaim(number, deliveries, ends)
        return name

    def left(self, now: float) -> list[str]:
        """The bodies of the messages that a worker may still get."""
        numbers = {claim.number for claim in self.claims.values()}
        numbers |= set(range(max(self.cursor + 1, self.unclaimed), self.top + 1))
        return [self.entry(number).body for number in sorted(numbers) if not self.entry(number).is_overdue(now)]


class Mailboxes(RuleBasedStateMachine):
    @initialize(dead=st.integers(0, 2), save=st.booleans())
    def begin(self, dead: int, save: bool) -> None:
        self.app = Penstock(server.address, prefix=f"b{next(prefixes)}")
        self.clock = MovableClock(self.app)
        self.model: ModelMailbox | None = None
        self.bodies = itertools.count(1)
        self.remembered = 0
        """The last number of the mailbox that was deleted last."""
        self.held: list[Claimed] = []
        """What workers hold, also of a mailbox that began again since."""
        self.tokens: dict[str, list[str]] = {}
        """The claims that each call made."""
        self.positions: list[str] = []
        self.saved: tuple[Snapshot, Any] | None = None
        for _ in range(dead):
            self.post("ada", 2, IDS, None, False)
            self.work(2, "bury", 0)
        if save:
            self.save()

    @property
    def box(self) -> Mailbox:
        return self.app.mailbox("scans")

    @property
    def pattern(self) -> str:
        return key_pattern(self.app.settings.prefix)

    def run(self, call: RoundTrip[Any], *, lost: bool) -> Any:
        """The reply to a call. `lost`: the first reply does not arrive, and the call is sent again."""
        if call.args[:2] == ("", 0):
            call = RoundTrip(call.script, call.keys, (f"caller{next(callers)}", 1, *call.args[2:]), call.read)
        run = self.box._driver.blocking.run
        first = run(call)
        if lost:
            again = run(call)
            assert again == first
        return first

    # --- actions ---

    @rule(
        sender=st.sampled_from(SENDERS),
        n=st.integers(1, 3),
        ids=st.lists(st.sampled_from(IDS), max_size=3),
        ttl=st.sampled_from([None, None, 20]),
        lost=st.booleans(),
        late=st.sampled_from([False, False, False, True]),
    )
    def post(self, sender: str, n: int, ids: list[str], ttl: int | None, lost: bool, late: bool = False) -> None:
        """Some have ids; if one was used within ten minutes, the first message with it counts."""
        if late:
            self.clock.advance(ID_SECONDS)
        named: list[str] = [*ids[:n], *[""] * (n - len(ids[:n]))]
        bodies = [f"b{next(self.bodies)}" for _ in range(n)]
        if self.model is None:
            self.model = ModelMailbox(self.remembered, cursor=self.remembered)
        messages = [(id, self.box._log.encode(body)) for id, body in zip(named, bodies, strict=True)]
        call = self.box._log.post(sender, messages, create=True, lifetime=ttl or 0)
        found = self.run(call, lost=lost).positions
        now, expected = self.clock.now, list[str]()
        for id, body in zip(named, bodies, strict=True):
            position = self.model.ids.get((sender, id), "")
            if not position or int(position.partition("-")[2]) / 1000 + ID_SECONDS <= now:
                position = f"{self.model.top + 1}-{self.box._log.clock.now_ms}"
                self.model.entries.append(Entry(position, sender, body, ttl and now + ttl))
            if id:
                self.model.ids[sender, id] = position
            expected.append(position)
        assert found == expected
        self.positions += found

    @rule(
        n=st.integers(1, 4),
        lease=st.sampled_from([5, 30]),
        most=st.sampled_from([None, None, 1, 2]),
        lost=st.booleans(),
    )
    def claim(self, n: int, lease: int, most: int | None, lost: bool) -> None:
        """`lost`: the reply does not arrive, and the call with its token is sent again."""
        if lost:
            token = mint_id()
            call = self.box._log.claim("", token, lease=lease, limit=n, max_deliveries=most or 0)
            if self.model is None:
                return
            reply = self.run(call, lost=False)
            while not reply.messages and reply.due_in == 0.0:
                reply = self.run(call, lost=False)
            if reply.messages:
                assert self.run(call, lost=False).messages == reply.messages
            found = [Claimed(self.box, claim, message) for claim, message in reply.messages]
        else:
            found = self.box.claim(n, lease=lease, max_deliveries=most)
            token = found[0]._claim.decode().split(":", 2)[2] if found else mint_id()
        expected = self.model.claim(token, n, self.clock.now, lease, most) if self.model else []
        assert [one._claim.decode() for one in found] == expected
        self.check_messages(found, expected)
        if expected:
            self.tokens[token] = expected
        self.held += found

    def check_messages(self, found: list[Claimed], expected: list[str]) -> None:
        for one, name in zip(found, expected, strict=True):
            assert self.model
            claim = self.model.claims[name]
            entry = self.model.entry(claim.number)
            assert (one.id, one.sender, one.body) == (entry.id, entry.sender, entry.body)
            assert one.deliveries == claim.deliveries
            assert not one.message.new_beginning

    @precondition(lambda self: self.tokens and self.model)
    @rule(data=st.data())
    def repeat_a_claim(self, data: st.DataObject) -> None:
        """A call of long ago arrives once more: it returns its claims that still exist, and makes no others."""
        assert self.model
        token = data.draw(st.sampled_from(sorted(self.tokens)))
        names = [
            name
            for name in self.tokens[token]
            if name in self.model.claims
            and not self.model.entry(self.model.claims[name].number).is_overdue(self.clock.now)
        ]
        reply = self.run(self.box._log.claim("", token, lease=5, limit=4), lost=False)
        assert [claim.decode() for claim, _ in reply.messages] == names

    @precondition(lambda self: self.held)
    @rule(
        at=st.integers(0, 5),
        action=st.sampled_from(["ack", "ack", "release", "extend", "bury"]),
        seconds=st.sampled_from([0, 8]),
        lost=st.booleans(),
    )
    def settle(self, at: int, action: Any, seconds: int, lost: bool) -> None:
        one = self.held[-1 - at % len(self.held)]
        name = one._claim.decode()
        known = self.model is not None and name in self.model.claims
        seconds = seconds or 3 if action == "extend" else seconds
        if lost and self.model:
            call = self.box._log.settle_claims("", action, [one._claim], seconds, "no" if action == "bury" else "")
            assert (self.run(call, lost=True)[1] == []) is known
        else:
            with contextlib.nullcontext() if known else pytest.raises(LeaseLost):
                match action:
                    case "ack":
                        one.ack()
                    case "release":
                        one.release(seconds)
                    case "extend":
                        one.extend(seconds)
                    case _:
                        one.fail("no")
        if action != "extend":
            self.held.remove(one)
        if not known:
            return
        assert self.model
        if action == "extend":
            self.model.claims[name].ends = self.clock.now + seconds
            return
        claim = self.model.claims.pop(name)
        if action == "release":
            ends = self.clock.now + seconds if seconds else 0
            self.model._add(claim.number, claim.deliveries, "", ends)
            return
        if action == "bury":
            entry = self.model.entry(claim.number)
            self.model.dead[entry.id] = (entry.sender, entry.body, claim.deliveries, "no")
        self.model.free()

    @rule(n=st.integers(1, 4))
    def crash(self, n: int) -> None:
        """A worker dies with some of what was claimed."""
        del self.held[-n:]

    @rule(n=st.integers(1, 3), most=st.sampled_from([None, 1, 2]), times=st.integers(1, 3), lost=st.booleans())
    def claim_and_freeze(self, n: int, most: int | None, times: int, lost: bool) -> None:
        """Workers claim messages, one after the other, and let their leases run out to the millisecond."""
        for _ in range(times):
            self.claim(n, 5, most, lost)
            self.clock.advance(5)

    @rule(n=st.integers(1, 3), action=st.sampled_from(["ack", "release", "bury"]), seconds=st.sampled_from([0, 8]))
    def work(self, n: int, action: Any, seconds: int) -> None:
        """A worker claims messages, and settles the last of them; another one asks at once."""
        held = len(self.held)
        self.claim(n, 30, None, False)
        if len(self.held) > held:
            self.settle(0, action, seconds, False)
            self.claim(1, 5, None, False)

    @rule(seconds=st.sampled_from([1, 10, 25, 700]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(limit=st.integers(1, 4), at=st.integers(-1, 5))
    def pull(self, limit: int, at: int) -> None:
        """Read after a position, or after the cursor, and see what workers have claimed, too."""
        after = self.positions[-1 - at % len(self.positions)] if at >= 0 and self.positions else None
        mail = self.box.pull(limit, after=after)
        if self.model is None:
            assert mail == []
            return
        known = after is None or self.model.knows(after)
        begin = self.model.cursor
        start = max(begin, number_of(after) if after and known else 0)
        expected: list[Entry] = []
        while start < self.model.top and not expected:
            rows = range(start + 1, min(start + limit, self.model.top) + 1)
            for number in rows:
                if not self.model.entry(number).is_overdue(self.clock.now):
                    expected.append(self.model.entry(number))
                elif number == self.model.cursor + 1:
                    self.model.skip_to(number)
            start = rows[-1]
        assert [(one.id, one.sender, one.body) for one in mail] == [(one.id, one.sender, one.body) for one in expected]
        assert mail.new_beginning is not known

    @precondition(lambda self: self.positions and self.model)
    @rule(at=st.integers(0, 12))
    def ack_upto(self, at: int) -> None:
        self._ack_upto(self.positions[-1 - at % len(self.positions)])

    def _ack_upto(self, upto: str) -> None:
        assert self.model
        known = self.model.knows(upto)
        with contextlib.nullcontext() if known else pytest.raises(NewBeginning):
            self.box.ack(upto)
        if known:
            self.model.skip_to(number_of(upto))

    @precondition(lambda self: self.model and self.model.dead)
    @rule(n=st.integers(1, 3), requeue=st.booleans(), lost=st.booleans())
    def change_dead_letters(self, n: int, requeue: bool, lost: bool) -> None:
        assert self.model
        chosen = sorted(self.model.dead)[:n]
        asked = [*chosen, "999999-1"]
        if requeue:
            assert self.run(self.box._log.requeue_dead_letters(asked), lost=lost)[:2] == (len(asked), len(chosen))
        else:
            assert self.run(self.box._log.remove_dead_letters(asked), lost=lost) == len(chosen)
        for id in chosen:
            sender, body, _, _ = self.model.dead.pop(id)
            if requeue:
                position = f"{self.model.top + 1}-{self.box._log.clock.now_ms}"
                self.model.entries.append(Entry(position, sender, body))

    @rule(lost=st.booleans(), sure=st.sampled_from([False, False, True]))
    def delete(self, lost: bool, sure: bool) -> None:
        if not sure:
            return
        assert self.run(self.box._log.delete(), lost=lost)[0] is (self.model is not None)
        if self.model:
            self.remembered, self.model = self.model.top, None

    @rule()
    def save(self) -> None:
        """Keep a copy to which the server may fall back later."""
        self.saved = (
            take_snapshot(server.client, self.pattern),
            copy.deepcopy((self.model, self.remembered, self.tokens)),
        )

    @precondition(lambda self: self.saved)
    @rule(later=st.integers(0, 4), back=st.integers(0, 3), acked=st.booleans())
    def fall_back(self, later: int, back: int, acked: bool) -> None:
        """The server restarts from the copy. Senders and workers keep what they hold, and more is posted."""
        assert self.saved
        lost = self.positions[-1 - back :]
        fall_back(server.client, self.saved[0], self.pattern)
        self.model, self.remembered, self.tokens = copy.deepcopy(self.saved[1])
        self.clock.advance(1)
        for _ in range(later):
            self.post("", 1, [], None, False)
        if self.model and lost:
            number = number_of(lost[0])
            if acked and self.model.start < number <= self.model.top:
                self._ack_upto(self.model.entry(number).id)
            self._ack_upto(lost[0])

    # --- checks ---

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
        if not hasattr(self, "app"):
            return
        keys = list(read_keys(server.client, self.pattern))
        problems = [problem for key in keys for problem in key.problems()]
        problems += [problem for audit in audits(keys).values() for problem in audit.problems()]
        assert problems == []
        if not self.model:
            assert {key.rest for key in keys if key.ttl < 0} == set()
            return
        info = self.box.info()
        unclaimed = max(self.model.cursor + 1, self.model.unclaimed)
        claimed = len(self.model.claims)
        unread = self.model.top - unclaimed + 1 + claimed
        assert (info.last, info.unread, info.claimed) == (self.model.top, unread, claimed)
        letters = {one.id: (one.sender, one.body, one.deliveries, one.reason) for one in self.box.dead.list()}
        assert letters == self.model.dead

    def teardown(self) -> None:
        if not hasattr(self, "app"):
            return
        self.drain()
        self.box.delete()
        stay = {key.rest for key in read_keys(server.client, self.pattern) if key.ttl < 0}
        self.app.close()
        assert stay == set()

    def drain(self) -> None:
        """After all leases, a worker gets each message that was not acknowledged, once."""
        self.clock.advance(100)
        expected = self.model.left(self.clock.now) if self.model else []
        found: list[str] = []
        while items := self.box.claim(5, max_deliveries=None):
            for item in items:
                found.append(item.body)
                item.ack()
        assert sorted(found) == sorted(expected)
        if self.model:
            assert (self.box.info().unread, self.box.info().bytes) == (0, 0)


Mailboxes.TestCase.settings = model_settings(quick=25, steps=40)
TestMailboxes = Mailboxes.TestCase
