"""Chats compared with a model: whatever members do, each reads all messages in order, and gaps are reported.

Readers keep the messages that they pulled, and lose them when they crash. They keep positions while the chat is
deleted and created again, and while the server falls back to an older state, which a copy of all keys imitates. The
messages that each reader got are also checked by `message_violations`, which users have as well.

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

from penstock import Keep, Penstock
from penstock.core.keys import key_pattern
from penstock.errors import ChatExists, ChatGone, NewBeginning, NotAMember
from penstock.messages.message import number_of
from penstock.testing import message_violations
from penstock.testing.audit.instances import audits, missing_from_index
from penstock.testing.audit.stored_keys import read_keys
from penstock.testing.history import Acknowledged, Event, MessageRead, MessageSent, ReaderOpened
from tests.servers import Server
from tests.simulation.histories import model_settings
from tests.snapshots import fall_back, take_snapshot

PEOPLE = ["ada", "bo", "cy", "名前"]
DEVICES = ["", "phone", "tv"]
people, devices = st.sampled_from(["ada", "bo", *PEOPLE]), st.sampled_from(["", *DEVICES])
readers = st.tuples(people, devices)
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
    life: int = 0
    """The life of the chat in which it was opened last."""


@dataclass
class ModelChat:
    """A chat in plain Python: messages, members and their readers."""

    keep: int | None
    start: int
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Ids and bodies of its messages, from number `start` + 1 on."""
    first: int = 1
    members: dict[str, dict[str, ModelReader]] = field(default_factory=dict)

    @property
    def top(self) -> int:
        return self.start + len(self.sent)

    def knows(self, id: str) -> bool:
        """Whether this may be the id of one of its messages, as far as the chat knows. Of the messages that were
        freed, it knows the id of the last one only."""
        number = number_of(id) if id else 0
        if not id or self.start < number < self.first - 1:
            return True
        return self.start < number <= self.top and self.sent[number - self.start - 1][0] == id

    def after(self, reader: ModelReader, id: str) -> int:
        """Where reading after this id begins."""
        return max(reader.cursor, number_of(id) if id and self.knows(id) else 0)

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
        self.remembered = 0
        """The last number of the chat that was deleted last."""
        self.held: dict[tuple[str, str], str] = {}
        """The id of the last message that each reader got."""
        self.create(["ada", "bo"], "cy", None)

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
        start = self.remembered
        (first,) = self.chat.reader(sender).pull(after=None)
        self.model = ModelChat(keep, start, [(first.id, "first")], start + 1)
        self.model.members = {member: {"": ModelReader(start)} for member in (*members, sender)}
        self.model.members[sender][""].used = True
        self.events.append(MessageSent(log=self.name(), number=start + 1, key="first"))

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
            ids = self.chat.send_many(member, bodies, ids=bodies if named else None)
            assert [number_of(id) for id in ids] == list(range(self.model.top + 1, self.model.top + n + 1))
        self.model.sent += zip(ids, bodies, strict=True)
        self.model.trim()
        self.events += [
            MessageSent(log=self.name(), number=number_of(id), key=body) for id, body in zip(ids, bodies, strict=True)
        ]

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
                self.remembered, self.model = self.model.top, None

    @rule(member=people, device=devices, limit=st.integers(1, 5))
    def pull(self, member: str, device: str, limit: int) -> None:
        """Continue after the last message that it got, if it has not crashed since."""
        if error := self.refusal(member):
            with pytest.raises(error):
                self.chat.reader(member, device).pull(limit)
            return
        assert self.model
        reader, held = self.model.reader(member, device), self.held.get((member, device), "")
        start = self.model.after(reader, held)
        mail = self.chat.reader(member, device).pull(limit, after=held or None)
        assert mail.new_beginning is not self.model.knows(held)
        self.open(member, device, reader, start)
        begin = max(start, self.model.first - 1)
        wanted = [(n, *sent) for n, sent in enumerate(self.model.sent, self.model.start + 1)][
            begin - self.model.start :
        ]
        assert [(message.number, message.id, message.body) for message in mail] == wanted[:limit]
        assert (mail.gap is not None) is (begin > start)
        assert mail.gap is None or (mail.gap.first, mail.gap.missed) == (begin + 1, begin - start)
        for message in mail:
            self.events.append(
                MessageRead(
                    log=self.name(),
                    reader=self.name(member, device),
                    number=message.number,
                    key=message.body,
                    missed=message.missed,
                )
            )
            self.held[member, device] = message.id

    def open(self, member: str, device: str, reader: ModelReader, after: int) -> None:
        """Note that a reader begins or continues after this number."""
        self.events.append(ReaderOpened(log=self.name(), reader=self.name(member, device), after=after))
        reader.life = self.life

    @rule(member=people, device=devices, back=st.integers(0, 3))
    def ack(self, member: str, device: str, back: int) -> None:
        """Acknowledge the last message that it got, or one of those before it."""
        held = self.held.get((member, device), "")
        if error := self.refusal(member):
            with pytest.raises(error):
                self.chat.reader(member, device).ack(held or "1-1")
            return
        assert self.model
        upto = number_of(held) - back if held else 0
        if back and self.model.first <= upto <= self.model.top and self.model.knows(held):
            held = self.model.sent[upto - self.model.start - 1][0]
        reader = self.chat.reader(member, device)
        if not held:
            return
        known = self.model.knows(held)
        with contextlib.nullcontext() if known else pytest.raises(NewBeginning):
            reader.ack(held)
        model = self.model.reader(member, device)
        if known and number_of(held) > model.cursor:
            model.cursor = number_of(held)
            self.model.trim()
            if model.life == self.life:
                name = self.name(member, device)
                self.events.append(Acknowledged(log=self.name(), reader=name, number=model.cursor))

    @rule(member=people, device=devices)
    def crash(self, member: str, device: str) -> None:
        """The messages that it had pulled are lost."""
        self.held.pop((member, device), None)

    @precondition(lambda self: self.model)
    @rule(reader=readers, lost=st.integers(0, 4), acked=st.booleans(), ended=st.booleans(), later=st.integers(0, 4))
    def fall_back(self, reader: tuple[str, str], lost: int, acked: bool, ended: bool, later: int) -> None:
        """The server restarts from an older state, after a reader has got messages that are lost with the newer one."""
        assert self.model
        sender = min(self.model.members)
        if reader[0] not in self.model.members:
            return
        pattern = key_pattern(self.app.settings.prefix)
        copied, model, remembered = take_snapshot(server.client, pattern), copy.deepcopy(self.model), self.remembered
        if lost:
            self.send(sender, lost, False, 1)
        self.pull(*reader, 9)
        if acked:
            self.ack(*reader, 0)
        if ended:
            self.delete()
            self.create(["ada", "bo"], sender, None)
        fall_back(server.client, copied, pattern)
        self.model, self.remembered = model, remembered
        self.life += 1
        self.events += [MessageSent(log=self.name(), number=number_of(id), key=body) for id, body in model.sent]
        if later:
            self.send(sender, later, False, 1)

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

    @precondition(lambda self: not self.model)
    @rule(keep=st.sampled_from([None, 1, 3]))
    def create_again(self, keep: int | None) -> None:
        self.create(["ada", "bo"], "ada", keep)

    @rule(again=st.booleans())
    def delete(self, again: bool = False) -> None:
        assert self.chat.delete() is bool(self.model)
        if self.model:
            self.remembered, self.model = self.model.top, None
        if again:
            self.create(["ada"], "bo", None)

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


Messages.TestCase.settings = model_settings(quick=40, steps=30)
TestMessages = Messages.TestCase
