"""The face of the library as type checkers see it: run by both of them, never by Python.

A line that must be refused has a comment for each checker; both fail on a comment that refuses nothing.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, assert_type

from penstock import (
    Batch,
    Call,
    Chat,
    Claimed,
    EnqueueContext,
    Entry,
    Held,
    Item,
    Job,
    JobContext,
    JobOutcome,
    Keep,
    Leadership,
    Mail,
    Message,
    Middleware,
    Penstock,
    Permit,
    Reading,
    Retry,
    Settings,
    Status,
    Transaction,
)
from penstock.info import (
    Allowance,
    BarrierInfo,
    BarrierPass,
    Counts,
    DeadLetter,
    ElectionInfo,
    EntryPage,
    JobInfo,
    LatchInfo,
    Leader,
    LockInfo,
    Member,
    Owner,
    ReadWriteLockInfo,
    SemaphoreInfo,
    TenantCounts,
)

app = Penstock()
Penstock("valkey://localhost", prefix="shop", settings=Settings(lease=5))


@app.task
def plain(a: int, b: str = "x") -> float:
    return a + len(b)


@app.task(queue="mail", retry=Retry(5), timeout=30)
async def send(to: str, /, *, subject: str) -> list[int]:
    return [len(to), len(subject)]


@app.task(queue="mail", retry=3)
def nothing() -> None: ...


# --- a task is still a function ---

assert_type(plain(1), float)
assert_type(plain(1, b="y"), float)
plain("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def call_here() -> None:
    assert_type(await send("ada", subject="Hi"), list[int])
    send("ada", "Hi")  # type: ignore[call-arg, unused-coroutine]  # pyright: ignore[reportCallIssue]


# --- middleware ---


class Timing(Middleware):
    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        for job in context.jobs:
            assert_type(job.task, str)
            job.trace = "1"
        yield

    def execute(self, job: JobContext) -> Iterator[None]:
        assert_type(job.attempt, int)
        yield

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        assert_type(outcome.duration, float)


class OnTheLoop(Middleware):
    async def execute(self, job: JobContext) -> AsyncIterator[None]:
        yield


class Wrong(Middleware):
    def execute(self, job: str) -> Iterator[None]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        yield


Penstock(middleware=[Timing(), OnTheLoop()])
app.add_middleware(Timing())
app.add_middleware(Timing)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# --- enqueue ---

assert_type(plain.enqueue(1, "b"), Job[float])
assert_type(send.enqueue("ada", subject="Hi"), Job[list[int]])
assert_type(send.enqueue("ada", subject="Hi").result(), list[int])
assert_type(plain.using(delay=60, priority=2, tenant="acme").enqueue(1).result(timeout=5), float)
assert_type(nothing.using(at=datetime.now(), expires=5).enqueue(), Job[None])
assert_type(plain.call(1), Call[float])
assert_type(app.enqueue_many(plain.call(n) for n in range(3)), list[Job[float]])
several = app.enqueue_many([plain.call(1), send.call("ada", subject="Hi")])

plain.enqueue("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
plain.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
plain.enqueue(1, c=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
plain.call(1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
send.enqueue(to="ada", subject="Hi")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
send.enqueue("ada", "Hi")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
plain.using(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
plain.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def enqueue() -> None:
    assert_type(await plain.enqueue.aio(1), Job[float])
    assert_type(await (await send.enqueue.aio("ada", subject="Hi")).result.aio(timeout=5), list[int])
    assert_type(await app.enqueue_many.aio([send.call("ada", subject="Hi")]), list[Job[list[int]]])
    await plain.enqueue.aio("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.enqueue.aio(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


# --- jobs ---


async def look_after(job: Job[float]) -> None:
    assert_type(job.id, str)
    assert_type(job.status(), Status)
    assert_type(await job.info.aio(), JobInfo)
    assert_type(await job.cancel.aio(), bool)
    assert_type(app.job(job.id), Job[Any])
    await job.result.aio(timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- the queue ---


async def queue() -> None:
    raw = app.queue("raw")
    assert_type(await raw.put.aio({"a": 1}, delay=5, tenant="acme"), Job[Any])
    assert_type(raw.put_many([1, 2], priority=0), list[Job[Any]])
    raw.put(1, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await raw.put.aio(1, tenant=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    raw.put_many([1, 2], id="1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    raw.put_in(None, 1, delay="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await raw.claim.aio(10, wait=None), list[Item])
    assert_type(app.claim(["a", "b"], 2), list[Item])
    assert_type(await app.claim.aio(["a", "b"], wait=None), list[Item])
    assert_type(raw.count(), Counts)
    assert_type(await raw.tenant("acme").count.aio(), TenantCounts)
    assert_type(raw.tenant("acme").purge(), int)
    assert_type(raw.dead.list(), list[DeadLetter])
    assert_type(raw.dead.requeue("raw:1"), int)
    for item in raw.claim():
        assert_type(item.complete({"n": 1}), None)
        assert_type(await item.retry.aio(5), None)
    raw.claim("10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    raw.put(1, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# --- completion ---


async def completion() -> None:
    box = app.mailbox("user:17")
    assert_type(box.post({"text": "hi"}, sender="ada", id="m1"), str)
    assert_type(await box.pull.aio(limit=5, wait=None), Mail)
    assert_type(await box.ack.aio(upto=box.pull()[-1]), None)
    assert_type(box.claim(3, lease=5), list[Claimed])
    chat = await app.chats.create.aio(["ada"], sender="cy", message={"text": "hi"}, id="ops", keep=Keep(age=60))
    assert_type(chat, Chat)
    assert_type(app.chats.get("ops").send("ada", 1), str)
    assert_type(chat.reader("ada", "phone").pull(), Mail)
    assert_type(chat.members(), list[Member])
    assert_type(await app.chats.of("ada").unread.aio(), dict[str, int])
    for message in chat.follow("ada"):
        assert_type(message, Message)
    async with chat.follow("ada") as messages:
        async for message in messages:
            assert_type(message.missed, int)

    contacts = app.contacts("user:17", limit=50, by="frequency")
    assert_type(contacts.touch("Zoë"), None)
    assert_type(await contacts.complete.aio("zo", limit=5), list[str])
    assert_type(contacts.list(), list[str])
    assert_type(await contacts.remove.aio("Zoë"), bool)
    app.contacts("user:17", by="size")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guild = app.directory("guild:9", words=True, shards=4)
    assert_type(await guild.add.aio("Ann", id="u1"), None)
    assert_type(guild.add_many(["Bo", ("Cy", "u2")]), int)
    page = await guild.complete.aio("a", limit=5)
    assert_type(page, EntryPage)
    assert_type(page.cursor, str | None)
    assert_type(page[0].matched, tuple[tuple[int, int], ...])
    assert_type(guild.complete("a", after=page[-1].cursor), EntryPage)
    assert_type(guild.bump("u1", by=2), float | None)
    guild.complete("a", by="size")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(guild.top("a"), EntryPage)
    assert_type(await guild.get.aio("u1"), Entry | None)
    assert_type(guild.rename("u1", "Anna"), bool)
    assert_type(guild.remove("u1", "Bo"), int)
    assert_type(await guild.count.aio("a"), int)
    guild.add_many([("Cy", 5)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


# --- locks and semaphores ---


async def lock() -> None:
    lock = app.lock("invoice:7", lease=10, wait=5, on_loss=lambda held: print(held.fence))
    with lock as held:
        assert_type(held, Held)
        assert_type(held.fence, int)
        assert_type(held.check(), None)
    async with app.lock(["a", "b"], lease=10) as held:
        assert_type(await held.moment.aio(), float)
    assert_type(await lock.acquire.aio(), Held)
    assert_type(lock.acquire().release(), None)
    assert_type(lock.info(), LockInfo)
    assert_type(lock.key, str)
    assert_type(app.lock("x").break_("it hangs"), list[Owner])
    async with app.semaphore("market:17", limit=5, permits=2) as permit:
        assert_type(permit, Permit)
    assert_type(await app.semaphore("market:17", limit=5).info.aio(), SemaphoreInfo)
    assert_type(app.semaphore("market:17", limit=5).acquire(), Permit)
    rw = app.read_write_lock("catalog", lease=10)
    with rw.read() as reading, rw.write() as writing:
        assert_type(reading, Reading)
        assert_type(writing.fence, int)
    assert_type(rw.info(), ReadWriteLockInfo)

    @app.lock("report", lease=10)
    def plain(a: int) -> str:
        return str(a)

    @app.semaphore("exports", limit=3)
    async def awaited(a: int) -> str:
        return str(a)

    @rw.read()
    def reads() -> None: ...

    assert_type(plain(1), str)
    assert_type(await awaited(1), str)
    plain("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await awaited("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.semaphore("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# --- elections, latches and barriers ---


async def elections() -> None:
    election = app.election("importer", value="http://one", notice=1, on_loss=lambda leader: print(leader.term))
    with election as leader:
        assert_type(leader, Leadership)
        assert_type(leader.term, int)
    async with election as leader:
        assert_type(await leader.resign.aio(), None)
    assert_type(await election.campaign.aio(), Leadership)
    assert_type(election.leader(), Leader | None)
    assert_type(await election.info.aio(), ElectionInfo)
    for one in election.observe():
        assert_type(one, Leader | None)
    async for one in election.observe():
        assert_type(one, Leader | None)
    app.election("importer", lease="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def meetings() -> None:
    latch = app.latch("import", count=3, ttl=60)
    assert_type(latch.count_down(2, id="a"), int)
    assert_type(await latch.wait.aio(timeout=5), None)
    assert_type(latch.info(), LatchInfo)
    barrier = app.barrier("step", parties=4)
    assert_type(await barrier.wait.aio(5), BarrierPass)
    assert_type(barrier.abort("why"), bool)
    assert_type(await barrier.info.aio(), BarrierInfo)
    app.latch("import")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.barrier("step", parties="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- rate limits and transactions ---


async def rates() -> None:
    limit = app.rate_limit("api", limit=100, per=60, burst=10, kind="bucket", wait=5)
    assert_type(limit.try_acquire(), Allowance)
    assert_type(await limit.acquire.aio(2, wait=None), Allowance)
    with limit as allowed:
        assert_type(allowed.remaining, int)
    async with limit:
        pass

    @limit
    def plain(a: int) -> str:
        return str(a)

    @limit
    async def awaited(a: int) -> str:
        return str(a)

    assert_type(plain(1), str)
    assert_type(await awaited(1), str)
    plain("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.rate_limit("api", limit=1, per=1, kind="leaky")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.rate_limit("api", limit=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def transactions(held: Held) -> None:
    tx = app.transaction("shop").require_value("{shop}:a", b"x").require_field("{shop}:b", "f", at_least=5)
    assert_type(tx.set("{shop}:a", "y", ttl=5).incrby("{shop}:n"), Transaction)
    assert_type(tx.commit(), tuple[int | float, ...])
    assert_type(await held.transaction().delete("a").commit.aio(), tuple[int | float, ...])
    tx.incrby("{shop}:n", 1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tx.set("{shop}:a", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- batches ---


@app.task(queue="index", batch=Batch(10))
async def index_many(docs: list[Settings]) -> list[str | Exception]:
    return ["" for _ in docs]


@app.task(queue="rows", batch=Batch(10))
def store_many(rows: list[int]) -> None: ...


async def batches(book: Settings) -> None:
    assert_type(await index_many.enqueue.aio(book), Job[str])
    assert_type(store_many.enqueue(1), Job[None])
    index_many.enqueue([book])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store_many.enqueue("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- registration ---

app.task(queue=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
app.task(colour="red")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
