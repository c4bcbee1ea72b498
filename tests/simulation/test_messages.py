"""Chats against a model: whatever members do, each reads all of it in order, and what is missing was told.

Readers hold what they pulled and lose it when they crash; what each was given also goes to the checker that users get.
The default run is short and always the same; PENSTOCK_SIMULATION=<examples> makes it long and random.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import BadCall, ChatExists, ChatGone, Keep, NotAMember, Penstock
from penstock.core.keys import key_pattern
from penstock.ops.audit.instances import audits, missing_from_index
from penstock.ops.audit.stored_keys import read_keys
from penstock.testing import message_violations
from penstock.testing.history import Acknowledged, Event, MessageRead, MessageSent, ReaderOpened
from tests.servers import Server

EXAMPLES = int(os.environ.get("PENSTOCK_SIMULATION", "0"))
PEOPLE = ["ada", "bo", "cy", "名前"]
DEVICES = ["", "phone", "tv"]
people, devices = st.sampled_from(PEOPLE), st.sampled_from(DEVICES)
prefixes = itertools.count(1)
server: Server


@pytest.fixture(scope="module", autouse=True)
def running() -> Any:
    global server
    with Server() as server:
        yield


@dataclass
class ModelReader:
    cursor: int
    used: bool = False
    position: int = -1
    """The last it was given since it began; -1: it begins."""


@dataclass
class ModelChat:
    """What a chat is, plainly."""

    keep: int | None
    sent: list[str] = field(default_factory=list)
    first: int = 1
    members: dict[str, dict[str, ModelReader]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    @property
    def top(self) -> int:
        return len(self.sent)

    def trim(self) -> None:
        low = min(one.cursor for readers in self.members.values() for one in readers.values())
        kept = self.top - self.keep if self.keep else 0
        self.first = max(self.first, low + 1, kept + 1)

    def reader(self, who: str, device: str) -> ModelReader:
        readers = self.members[who]
        if device not in readers:
            low = min(one.cursor for one in readers.values())
            if list(readers) == [""] and not readers[""].used:
                del readers[""]
            readers[device] = ModelReader(low)
        readers[device].used = True
        return readers[device]


class Messages(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.app = Penstock(server.address, prefix=f"m{next(prefixes)}")
        self.model: ModelChat | None = None
        self.events: list[Event] = []
        self.numbers = itertools.count(1)
        self.life = 0

    def teardown(self) -> None:
        if hasattr(self, "app"):
            assert message_violations(self.events, read_all=False) == []
            self.app.close()

    @property
    def chat(self) -> Any:
        return self.app.chats.get("ops")

    def name(self, who: str = "", device: str = "") -> str:
        return f"{self.life}/{who}/{device}"

    # --- what may happen ---

    @rule(members=st.lists(people, min_size=1, max_size=3), sender=people, keep=st.sampled_from([None, None, 1, 3]))
    def create(self, members: list[str], sender: str, keep: int | None) -> None:
        made = Keep(messages=keep)
        if self.model:
            with pytest.raises(ChatExists):
                self.app.chats.create(members, sender=sender, message="no", id="ops", keep=made)
            return
        self.app.chats.create(members, sender=sender, message="first", id="ops", keep=made)
        self.life += 1
        self.model = ModelChat(keep, ["first"])
        self.model.members = {who: {"": ModelReader(0)} for who in (*members, sender)}
        self.events.append(MessageSent(log=self.name(), number=1, key="first"))

    @rule(who=people, n=st.integers(1, 6), named=st.booleans(), again=st.integers(1, 2))
    def send(self, who: str, n: int, named: bool, again: int) -> None:
        bodies = [f"b{next(self.numbers)}" for _ in range(n)]
        error = self.refusal(who)
        if error:
            with pytest.raises(error):
                self.chat.send_many(who, bodies)
            return
        assert self.model
        for _ in range(again if named else 1):
            numbers = self.chat.send_many(who, bodies, ids=bodies if named else None)
            assert numbers == list(range(self.model.top + 1, self.model.top + n + 1))
        self.model.sent += bodies
        self.model.trim()
        self.events += [MessageSent(log=self.name(), number=i, key=b) for i, b in zip(numbers, bodies, strict=True)]

    @rule(who=people, history=st.sampled_from(["now", "start", 0, 1, 2, 9]))
    def join(self, who: str, history: Any) -> None:
        if not self.model:
            with pytest.raises(ChatGone):
                self.chat.join(who, history=history)
            return
        self.chat.join(who, history=history)
        if who not in self.model.members:
            last = {"now": 0, "start": self.model.top}.get(history, history)
            self.model.members[who] = {"": ModelReader(max(self.model.first - 1, self.model.top - last))}

    @rule(who=people)
    def leave(self, who: str) -> None:
        assert self.chat.leave(who) is bool(self.model and who in self.model.members)
        if self.model and self.model.members.pop(who, None) is not None:
            if self.model.members:
                self.model.trim()
            else:
                self.model = None

    @rule(who=people, device=devices, limit=st.integers(1, 5), follows=st.booleans())
    def pull(self, who: str, device: str, limit: int, follows: bool) -> None:
        """`follows`: on from what it was given last; else again from its cursor, as after a crash."""
        if error := self.refusal(who):
            with pytest.raises(error):
                self.chat.reader(who, device).pull(limit)
            return
        assert self.model
        reader = self.model.reader(who, device)
        if reader.position < 0 or not follows:
            # A nameless reader that comes back begins anew, at its member's lowest cursor.
            anew = ReaderOpened(log=self.name(), reader=self.name(who, device), after=reader.cursor)
            self.events.append(anew)
            reader.position = reader.cursor
        one = self.chat.reader(who, device)
        mail = self.app._driver.blocking.run(one.pull_after(reader.position, limit, 0)).mail
        start = max(reader.position, self.model.first - 1)
        wanted = list(enumerate(self.model.sent, 1))[start : start + limit]
        assert [(message.id, message.body) for message in mail] == wanted
        assert (mail.gap is not None) is (start > reader.position)
        assert mail.gap is None or (mail.gap.first, mail.gap.missed) == (start + 1, start - reader.position)
        for message in mail:
            self.events.append(
                MessageRead(log=self.name(), reader=self.name(who, device), number=message.id, key=message.body,
                     missed=message.missed)
            )  # fmt: skip
            reader.position = message.id

    @rule(who=people, device=devices, back=st.integers(-2, 3))
    def ack(self, who: str, device: str, back: int) -> None:
        if error := self.refusal(who):
            with pytest.raises(error):
                self.chat.reader(who, device).ack(1)
            return
        assert self.model
        reader = self.chat.reader(who, device)
        known = self.model.members[who].get(device)
        upto = (known.position if known else 0) - back
        if upto < 0 or upto > self.model.top:
            with pytest.raises(BadCall):
                reader.ack(upto)
            return
        reader.ack(upto)
        model = self.model.reader(who, device)
        if upto > model.cursor:
            model.cursor = upto
            self.model.trim()
            if model.position >= 0:
                # Beyond what it was given it skips some, and means to.
                model.position = max(model.position, upto)
                name = self.name(who, device)
                self.events.append(ReaderOpened(log=self.name(), reader=name, after=model.position))
                self.events.append(Acknowledged(log=self.name(), reader=name, number=upto))

    @rule(who=people, device=devices)
    def crash(self, who: str, device: str) -> None:
        """What it held is lost with it."""
        if self.model and device in self.model.members.get(who, {}):
            self.model.members[who][device].position = -1

    @rule(who=people, device=st.sampled_from(DEVICES[1:]))
    def forget(self, who: str, device: str) -> None:
        known = self.model.members.get(who, {}) if self.model else {}
        with contextlib.suppress(ChatGone):
            assert self.chat.reader(who, device).forget() is (device in known)
        if device in known:
            assert self.model
            cursor = known.pop(device).cursor
            if not known:
                known[""] = ModelReader(cursor)
            self.model.trim()

    @precondition(lambda self: self.model)
    @rule(messages=st.sampled_from([None, 1, 2, 5]))
    def keep(self, messages: int | None) -> None:
        assert self.model
        self.chat.keep(Keep(messages=messages))
        self.model.keep = messages
        self.model.trim()

    @rule()
    def delete(self) -> None:
        assert self.chat.delete() is bool(self.model)
        self.model = None

    def refusal(self, who: str) -> type[Exception] | None:
        if not self.model:
            return ChatGone
        return None if who in self.model.members else NotAMember

    # --- what holds always ---

    @invariant()
    def the_server_is_as_the_model(self) -> None:
        if not hasattr(self, "app"):
            return
        keys = list(read_keys(server.client, key_pattern(self.app.settings.prefix)))
        problems = [problem for key in keys for problem in key.problems()]
        problems += [problem for audit in audits(keys).values() for problem in audit.problems()]
        assert [*problems, *missing_from_index(keys)] == []
        stay = {key.rest for key in keys if key.ttl < 0}
        if not self.model:
            assert stay <= {"mine"}
            return
        info = self.chat.info()
        assert (info.last, info.first) == (self.model.top, self.model.first)
        assert ("log" in stay) is (self.model.first <= self.model.top)
        readers = {(m.name, m.device): m.read for m in self.chat.members()}
        assert readers == {
            (who, device): one.cursor for who, known in self.model.members.items() for device, one in known.items()
        }
        for who in PEOPLE:
            assert ("ops" in self.app.chats.of(who).unread()) is (who in self.model.members)


Messages.TestCase.settings = settings(
    max_examples=EXAMPLES or 15, stateful_step_count=30, deadline=None, derandomize=not EXAMPLES, database=None,
    phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])], suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestMessages = Messages.TestCase
