"""The user of `docs/howto/security.md` can do what an app does, on a server and on a cluster, and nothing else."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import valkey

from penstock import Penstock, Settings, Worker, WorkerSettings
from penstock.errors import ServerRefused
from tests.servers import Cluster, Server

T = TypeVar("T")

DOCUMENT = Path(__file__).parents[2] / "docs" / "howto" / "security.md"


def rules() -> list[str]:
    """The words of the `ACL SETUSER` in the document."""
    (command,) = re.findall(r"```acl\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    words: list[str] = command.split()
    assert words[:3] == ["ACL", "SETUSER", "app"]
    return words[3:]


def add_user(server: Server | Cluster, *changes: str) -> None:
    for node in getattr(server, "nodes", [server]):
        node.ask("ACL", "SETUSER", "app", "reset", *rules(), *changes)


def address_of(server: Server | Cluster) -> str:
    if isinstance(server, Cluster):
        return server.address.replace("://", "://app:secret@")
    return f"unix://{server.socket}?username=app&password=secret"


@pytest.fixture(scope="module", params=["server", "cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[Server | Cluster]:
    with Server() if request.param == "server" else Cluster() as started:
        yield started


@pytest.fixture
def app(place: Server | Cluster) -> Iterator[Penstock]:
    add_user(place)
    with Penstock(address_of(place)) as made:
        yield made


def soon(act: Callable[[], object], after: float = 0.2) -> None:
    """Call this in a moment, when the wait that follows has begun."""
    threading.Timer(after, act).start()


def in_another_thread(act: Callable[[], T]) -> T:
    """A thread is not allowed to wait for what it holds itself."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


def use_queue(app: Penstock) -> None:
    queue = app.queue("mail")
    soon(lambda: queue.put_many([1, 2, 3]))
    one, *others = queue.claim(3, wait=20)
    soon(lambda: one.complete("done"))
    assert queue.job(one.id).result(20) == "done"
    for item in others:
        item.retry(5)
    queue.put(4, delay=60, tenant="ada")
    queue.tenant("ada").weigh(2)
    assert queue.count().delayed >= 1
    assert queue.purge() >= 1
    job = queue.put("bad")
    (item,) = queue.claim()
    item.fail("no")
    assert queue.dead.requeue(job.id) == 1
    queue.pause()
    queue.resume()
    assert job.cancel()


def use_worker(app: Penstock) -> None:
    @app.task(queue="tasks")
    def double(n: int) -> int:
        return 2 * n

    jobs = app.enqueue_many(double.call(n) for n in range(3))
    asyncio.run(Worker(app, WorkerSettings(burst=True)).run())
    assert [job.result(20) for job in jobs] == [0, 2, 4]


def use_locks(app: Penstock) -> None:
    soon(in_another_thread(app.lock("invoice:7", lease=10).acquire).release)
    with app.lock("invoice:7", lease=10, wait=20):
        pass
    soon(in_another_thread(app.semaphore("market", limit=1).acquire).release)
    with app.semaphore("market", limit=1, wait=20):
        pass
    for side in (app.read_write_lock("catalog", lease=10).read(), app.read_write_lock("catalog", lease=10).write()):
        with side:
            pass
    for kind in ("bucket", "window"):
        with app.rate_limit(f"api-{kind}", limit=10, per=1, kind=kind):
            pass
    app.transaction("invoice:8").set("invoice:{invoice:8}", 1).hset("invoice:hash:{invoice:8}", "a", 1).commit()


def use_completion(app: Penstock) -> None:
    contacts = app.contacts("ada")
    contacts.touch("Bo")
    assert list(contacts.complete("B")) == ["Bo"]
    directory = app.directory("staff", words=True)
    directory.add("Ada Lovelace", "1")
    assert [entry.id for entry in directory.complete("Lo")] == ["1"]
    directory.remove("1")


def use_messages(app: Penstock) -> None:
    box = app.mailbox("ada")
    soon(lambda: box.post("hi"))
    (message,) = box.pull(wait=20)
    box.ack(message)
    soon(lambda: box.post_many([1, 2]))
    for claimed in box.claim(2, wait=20):
        claimed.ack()
    assert box.delete()
    chat = app.chats.create(["ada", "bo"], sender="cy", message="hi", id="ops")
    mine = app.chats.of("bo")
    mine.ack(mine.pull())
    soon(lambda: chat.send("cy", "again"))
    (message,) = mine.pull(wait=20)
    chat.reader("ada", "phone").pull()
    chat.join("di", history=1)
    assert chat.kick("di")
    assert chat.delete()


def use_files(app: Penstock) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_text("one\ntwo\n")
        channel = app.files("access")
        channel.open(["alone", "shared", "counter"])
        soon(lambda: channel.send_lines(path, close=True))
        assert list(channel.receiver("alone").lines()) == [b"one", b"two"]
        assert list(channel.receiver("shared").lines(share=True)) == [b"one", b"two"]
        counted = app.aggregate("access", receiver="counter")(lambda lines: {"lines": {"n": len(lines)}})
        assert counted.run().lines == 2
        assert counted.top("lines")
        assert channel.delete()


USES = [use_queue, use_worker, use_locks, use_completion, use_messages, use_files]


@pytest.mark.parametrize("use", USES)
def test_the_user_of_the_document_can_use_every_component(app: Penstock, use: Callable[[Penstock], None]):
    use(app)


def test_the_user_of_the_document_can_enqueue_durably_and_in_a_transaction(start: Callable[..., Server]):
    server = start("--appendonly", "yes", "--appendfsync", "always")
    add_user(server)
    with Penstock(address_of(server)) as app, valkey.from_url(address_of(server)) as client:
        queue = app.queue("mail")
        queue.put(1, durable=True)
        pipeline = client.pipeline(transaction=True)
        queue.put_in(pipeline, 2)
        pipeline.execute()
        assert [item.body for item in queue.claim(2)] == [1, 2]


def test_while_it_waits_the_user_of_the_document_is_not_disconnected(start: Callable[..., Server]):
    server = start()
    add_user(server)
    with Penstock(address_of(server), settings=Settings(ping_interval=0.2)) as app:
        soon(lambda: app.queue("mail").put(1), after=1.0)
        assert app.queue("mail").claim(wait=20)
    refused = [entry["object"] for entry in server.client.acl_log()]
    assert refused == []


def test_the_document_explains_each_right_of_the_user():
    text = DOCUMENT.read_text("utf-8").replace("\\|", "|")
    explained = [
        right for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for right in re.findall(r"`(.*?)`", row)
    ]
    assert sorted(explained) == sorted(rule for rule in rules() if rule[0] in "~&+")


@pytest.mark.parametrize("missing", [["resetchannels"], ["-spublish"], ["-ssubscribe"]])
def test_without_the_rights_to_wake_ups_the_first_call_says_so(place: Server | Cluster, missing: list[str]):
    add_user(place, *missing)
    with Penstock(address_of(place)) as app, pytest.raises(ServerRefused, match=r"&penstock:wake:\*"):
        app.queue("mail").count()
