"""Each verb has two faces. Each face works where it belongs, and raises an error where it does not."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from penstock import Chat, Chats, Contacts, Directory, Mailbox, Penstock, Queue, Reader, UserChats
from penstock.core.operations import BoundVerb, verb
from penstock.jobs.dead_letters import DeadLetters
from penstock.jobs.item import Item
from penstock.jobs.tenant import Tenant
from penstock.messages.mailbox import Claimed
from penstock.messages.reader import Follow, LogReader
from tests.conftest import Apps
from tests.speed import scaled

MESSAGES = (Claimed, Chat, Reader, Follow, Chats, UserChats)
VERBS = [
    (kind, name)
    for kind in (Penstock, Queue, Tenant, DeadLetters, Item, Contacts, Directory, LogReader, Mailbox, *MESSAGES)
    for name, member in vars(kind).items()
    if isinstance(member, verb)
]


async def test_a_blocking_verb_in_a_running_loop_raises_and_names_the_other(app: Penstock):
    with pytest.raises(RuntimeError, match=r"put\(\) would block the running event loop: write `await ….put.aio\(…\)`"):
        app.queue("raw").put(1)
    assert (await app.queue("raw").count.aio()).ready == 0


async def test_a_blocking_loop_in_a_running_loop_raises_and_names_the_other(app: Penstock):
    job = await app.queue("raw").put.aio(1)
    chat = await app.chats.create.aio(["ada"])
    loops: list[Any] = [job.output(), chat.reader("ada").follow(), app.files("log").receiver("a").lines()]
    for one in loops:
        with pytest.raises(RuntimeError, match="`for` would block the running event loop: write `async for` here"):
            list(one)


def test_a_thread_may_call_a_verb_while_another_imports_asyncio(apps: Apps, monkeypatch: pytest.MonkeyPatch):
    """The threads of a program may be the first to import it. The module is there before it has its functions."""
    with apps.make() as app:
        assert app.queue("raw").count().ready == 0
        monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
        assert app.queue("raw").count().ready == 0
        monkeypatch.undo()


def test_blocking_code_needs_no_loop(apps: Apps):
    with apps.make() as app:
        job = app.queue("raw").put("x")
        (item,) = app.queue("raw").claim(wait=5)
        item.complete(7)
        assert job.result(timeout=scaled(10)) == 7


@pytest.mark.parametrize(("kind", "name"), VERBS, ids=lambda part: getattr(part, "__name__", part))
def test_each_verb_has_both_faces_and_says_what_it_does(kind: type, name: str):
    assert vars(kind)[name].__doc__
    owner: Any = object.__new__(kind)
    bound = getattr(owner, name)
    assert isinstance(bound, BoundVerb)
    assert inspect.iscoroutinefunction(bound.aio)
