"""Half a character (a lone surrogate) in a name, an id or a key is refused with a clear error, also on a cluster."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import BadCall, Concurrency, ConfigurationError, Penstock, Unique

HALF = "a\ud800b"


def handle(account: str = "") -> None: ...


CALLS: dict[str, Callable[[Penstock], Any]] = {
    "prefix": lambda app: Penstock("valkey://127.0.0.1:1", prefix=HALF),
    "address": lambda app: Penstock(f"valkey://{HALF}:1"),
    "password": lambda app: Penstock(f"valkey://u:{HALF}@127.0.0.1:1"),
    "socket": lambda app: Penstock(f"unix:///tmp/{HALF}"),
    "job": lambda app: app.job(f"mail:{HALF}"),
    "job without a queue": lambda app: app.job(HALF),
    "job of a queue": lambda app: app.queue("mail").job(HALF),
    "jobs of a tenant": lambda app: app.queue("mail").jobs(tenant=HALF).count(),
    "jobs by id": lambda app: app.queue("mail").jobs(id_prefix=HALF).count(),
    "queue": lambda app: app.queue(HALF),
    "claim": lambda app: app.claim([HALF]),
    "tenant": lambda app: app.queue("mail").tenant(HALF),
    "tenant of a job": lambda app: app.queue("mail").put(1, tenant=HALF),
    "tenant of jobs": lambda app: app.queue("mail").put_many([1], tenant=HALF),
    "tenant of a call": lambda app: app.task(handle).using(tenant=HALF),
    "id": lambda app: app.queue("mail").put(1, id=HALF),
    "id of a call": lambda app: app.task(handle).using(id=HALF),
    "value": lambda app: app.queue("mail").put(HALF),
    "argument": lambda app: app.task(handle).enqueue(HALF),
    "unique": lambda app: app.task(unique=Unique("{account}"))(handle).enqueue(HALF),
    "limit": lambda app: app.task(limit=Concurrency(1, key="{account}"))(handle).enqueue(HALF),
    "key": lambda app: app.queue("mail").key(HALF),
    "key of a tenant": lambda app: app.queue("mail", shards=2).key("k", HALF),
    "dead letter": lambda app: app.queue("mail").dead.requeue(HALF),
    "task": lambda app: app.task(name=HALF)(handle),
    "schedule": lambda app: app.schedules.add(HALF, app.task(handle).call(), schedule="* * * * *"),
    "schedule to trigger": lambda app: app.schedules.trigger(HALF),
    "lock": lambda app: app.lock(HALF).acquire(),
    "reentrant lock": lambda app: app.lock(HALF, reentrant=True).acquire(),
    "semaphore": lambda app: app.semaphore(HALF, limit=1),
    "rate limit": lambda app: app.rate_limit(HALF, limit=1, per=1),
    "latch": lambda app: app.latch(HALF, count=1),
    "election": lambda app: app.election(HALF),
    "transaction": lambda app: app.transaction(HALF),
    "contacts": lambda app: app.contacts(HALF),
    "directory": lambda app: app.directory(HALF),
    "id of a name": lambda app: app.directory("d").add("x", id=HALF),
    "mailbox": lambda app: app.mailbox(HALF),
    "chat": lambda app: app.chats.get(HALF),
    "member": lambda app: app.chats.create([HALF], sender="a", message=1),
    "channel": lambda app: app.files(HALF),
    "receiver": lambda app: app.files("f").receiver(HALF),
}


@pytest.fixture(params=["server", "small_cluster"])
def app(request: pytest.FixtureRequest) -> Iterator[Penstock]:
    with Penstock(request.getfixturevalue(request.param).address, prefix="half") as app:
        yield app


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_half_a_character_is_refused_with_a_clear_error(app: Penstock, call: Callable[[Penstock], Any]):
    with pytest.raises((ConfigurationError, BadCall)):
        call(app)
