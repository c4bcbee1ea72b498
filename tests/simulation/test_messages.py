"""Chats compared with a model: whatever members do, each reads all messages in order, and gaps are reported.

Readers keep the messages that they pulled, and lose them when they crash. The messages that each reader got are also
checked by `message_violations`, which users have as well. The default run is short and always the same.
PENSTOCK_SIMULATION=<examples> makes it long and random.
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
    """The last message that it got since it was opened; -1: it is not open."""


@dataclass
class ModelChat:
    """A chat in plain Python: messages, members and their readers."""

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

    def reader(self, member: str, device: str) -> ModelReader:
        readers = self.members[member]
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

    def name(self, member: str = "", device: str = "") -> str:
        return f"{self.life}/{member}/{device}"

    # --- actions ---

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
        self.model.members = {member: {"": ModelReader(0)} for member in (*members, sender)}
        self.events.append(MessageSent(log=self.name(), number=1, key="first"))

    @rule(member=people, n=st.integers(1, 6), named=st.booleans(), again=st.integers(1, 2))
    def send(self, member: str, n: int, named: bool, again: int) -> None:
        bodies = [f"b{next(self.numbers)}" for _ in range(n)]
        error = self.refusal(member)
        if error:
            with pytest.raises(error):
                self.chat.send_many(member, bodies)
            return
        assert self.model
        for _ in range(again if named else 1):
            numbers = self.chat.send_many(member, bodies, ids=bodies if named else None)
            assert numbers == list(range(self.model.top + 1, self.model.top + n + 1))
        self.model.sent += bodies
        self.model.trim()
        self.events += [MessageSent(log=self.name(), number=i, key=b) for i, b in zip(numbers, bodies, strict=True)]

    @rule(member=people, history=st.sampled_from(["now", "start", 0, 1, 2, 9]))
    def join(self, member: str, history: Any) -> None:
        if not self.model:
            with pytest.raises(ChatGone):
                self.chat.join(member, history=history)
            return
        self.chat.join(member, history=history)
        if member not in self.model.members:
            last = {"now": 0, "start": self.model.top}.get(history, history)
            self.model.members[member] = {"": ModelReader(max(self.model.first - 1, self.model.top - last))}

    @rule(member=people)
    def leave(self, member: str) -> None:
        assert self.chat.leave(member) is bool(self.model and member in self.model.members)
        if self.model and self.model.members.pop(member, None) is not None:
            if self.model.members:
                self.model.trim()
            else:
                self.model = None

    @rule(member=people, device=devices, limit=st.integers(1, 5), follows=st.booleans())
    def pull(self, member: str, device: str, limit: int, follows: bool) -> None:
        """`follows`: continue after the last message that it got; else again from its cursor, as after a crash."""
        if error := self.refusal(member):
            with pytest.raises(error):
                self.chat.reader(member, device).pull(limit)
            return
        assert self.model
        reader = self.model.reader(member, device)
        if reader.position < 0 or not follows:
            # A reader without a device that returns is opened again, at its member's lowest cursor.
            opened = ReaderOpened(log=self.name(), reader=self.name(member, device), after=reader.cursor)
            self.events.append(opened)
            reader.position = reader.cursor
        one = self.chat.reader(member, device)
        mail = self.app._driver.blocking.run(one._pull_after(reader.position, limit, 0)).mail
        start = max(reader.position, self.model.first - 1)
        wanted = list(enumerate(self.model.sent, 1))[start : start + limit]
        assert [(message.id, message.body) for message in mail] == wanted
        assert (mail.gap is not None) is (start > reader.position)
        assert mail.gap is None or (mail.gap.first, mail.gap.missed) == (start + 1, start - reader.position)
        for message in mail:
            self.events.append(
                MessageRead(log=self.name(), reader=self.name(member, device), number=message.id, key=message.body,
                     missed=message.missed)
            )  # fmt: skip
            reader.position = message.id

    @rule(member=people, device=devices, back=st.integers(-2, 3))
    def ack(self, member: str, device: str, back: int) -> None:
        if error := self.refusal(member):
            with pytest.raises(error):
                self.chat.reader(member, device).ack(1)
            return
        assert self.model
        reader = self.chat.reader(member, device)
        known = self.model.members[member].get(device)
        upto = (known.position if known else 0) - back
        if upto < 0 or upto > self.model.top:
            with pytest.raises(BadCall):
                reader.ack(upto)
            return
        reader.ack(upto)
        model = self.model.reader(member, device)
        if upto > model.cursor:
            model.cursor = upto
            self.model.trim()
            if model.position >= 0:
                # An ack beyond the last message that it got skips some on purpose.
                model.position = max(model.position, upto)
                name = self.name(member, device)
                self.events.append(ReaderOpened(log=self.name(), reader=name, after=model.position))
                self.events.append(Acknowledged(log=self.name(), reader=name, number=upto))

    @rule(member=people, device=devices)
    def crash(self, member: str, device: str) -> None:
        """The messages that it had pulled are lost."""
        if self.model and device in self.model.members.get(member, {}):
            self.model.members[member][device].position = -1

    @rule(member=people, device=st.sampled_from(DEVICES[1:]))
    def forget(self, member: str, device: str) -> None:
        known = self.model.members.get(member, {}) if self.model else {}
        with contextlib.suppress(ChatGone):
            assert self.chat.reader(member, device).forget() is (device in known)
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

    def refusal(self, member: str) -> type[Exception] | None:
        if not self.model:
            return ChatGone
        return None if member in self.model.members else NotAMember

    # --- checks ---

    @invariant()
    def the_server_agrees_with_the_model(self) -> None:
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
            (member, device): one.cursor
            for member, known in self.model.members.items()
            for device, one in known.items()
        }
        for member in PEOPLE:
            assert ("ops" in self.app.chats.of(member).unread()) is (member in self.model.members)


Messages.TestCase.settings = settings(
    max_examples=EXAMPLES or 15, stateful_step_count=30, deadline=None, derandomize=not EXAMPLES, database=None,
    phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])], suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestMessages = Messages.TestCase
