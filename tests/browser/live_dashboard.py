"""A dashboard with an app at work: a program of its own, which ends when its input is closed.

python live_dashboard.py        # prints the address
"""

import asyncio
import contextlib
import socket
import sys
import threading

import uvicorn

from penstock import Concurrency, Penstock, Rate, Retry, Worker, current, result_of, step, wait_for
from penstock.errors import LeaseLost
from penstock.ops.inspect import Inspector
from penstock.settings import WorkerSettings
from penstock.testing import TemporaryServer
from penstock.web.dashboard import pages

NASTY = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"

LONG = "x" * 3000
ARABIC = "شركة الاختبار"


def prepare(app: Penstock) -> None:
    app.queue("reports").put_many(range(30), tenant=NASTY)
    app.queue("mail").put_many([{"text": NASTY}] * 3, tenant="acme")
    for item in app.queue("mail").claim(3):
        item.fail(f"no: {NASTY}")
    app.queue("letters").put_many(range(4), tenant="acme")
    for item in app.queue("letters").claim(4):
        item.fail("no")
    long = app.queue("long")
    for tenant, job_id in ((LONG[:200], "one"), (ARABIC, "two")):
        long.put({"text": LONG}, tenant=tenant, id=job_id)
        long.claim(1)[0].fail(LONG)
    for n in range(200):
        long.put(n, tenant=f"{ARABIC}-{n}" if n % 2 else f"tenant-{n}-{NASTY}"[:120])
    for n, tag in enumerate((NASTY[:60], ARABIC, LONG[:60])):
        long.put(n, tenant="tags", tags=[tag], delay=3600)
        app.semaphore(f"{tag[:40]}-{n}", limit=2, lease=600).acquire()
    app.lock(f"lock:{LONG[:180]}", lease=600).acquire()
    for name in ("api:acme", LONG[:180], f"{ARABIC} {NASTY}"):
        app.rate_limit(name, limit=10, per=3600, burst=4).acquire(3)
    app.mailbox(NASTY).post({"text": "hi"})
    app.chats.create(["ada", "bo"], sender="cy", message={"text": "hi"}, id="ops")
    app.chats.get("ops").send("ada", {"text": NASTY, "more": LONG})
    app.chats.get("ops").reader("bo").ack(app.chats.get("ops").reader("bo").pull()[0])
    for contact in ("Zoë", ARABIC, NASTY[:100]):
        app.contacts("user:17").touch(contact)
    app.directory("guild:9").add_many([("Ma Smith", "u2"), ("Ann", "u1"), ("名前", "u3")])


async def flood(app: Penstock) -> None:
    while True:
        for n in range(20):
            await app.queue("work").put.aio(n, tenant=f"t{n % 3}")
        for item in await app.queue("work").claim.aio(20):
            await item.complete.aio()
        await asyncio.sleep(0.2)


def enqueue_odd_tasks(app: Penstock) -> None:
    """Tasks and tenants whose names are long, right-to-left, or HTML."""
    for name in (f"{ARABIC}.send", NASTY[:100], LONG[:200]):

        @app.task(queue="odd", name=name)
        async def odd(n: int) -> None:
            if n == 3:
                raise ValueError(f"{ARABIC} {NASTY}")

        app.enqueue_many(odd.using(tenant=name[:100]).call(n) for n in range(4))


def talk_without_end(app: Penstock) -> None:
    """A job that emits in two attempts."""

    @app.task(queue="talk", retry=Retry(3, base=0))
    async def talk() -> None:
        job = current()
        job.emit(f"{NASTY} {ARABIC} {LONG}\n")
        for n in range(300):
            job.emit(f"line {n} of attempt {job.attempt}\n")
        if job.attempt == 1:
            raise OSError("once more")
        n = 0
        while True:
            job.emit({"tick": n})
            n += 1
            await asyncio.sleep(0.5)

    talk.using(id="talk").enqueue()


def write_a_log(app: Penstock) -> None:
    """A job that logs more than its page shows at first, and continues."""

    @app.task(queue="talk")
    async def scribe() -> None:
        job, n = current(), 0
        for n in range(150):
            job.log(f"{'page' if n % 7 else NASTY} {n}")
        while True:
            await asyncio.sleep(0.5)
            n += 1
            job.log(f"{'page' if n % 7 else NASTY} {n}")

    scribe.using(id="scribe").enqueue()


def crowd(app: Penstock) -> None:
    """Two queues of many jobs, those of one of which a test moves and cancels."""
    for name in ("bulk", "crowd"):
        app.queue(name).put_many(range(1500), tenant="acme")
        app.queue(name).put_many(range(20), tenant="bo", delay=3600)


async def greet(who: str) -> str:
    if who == "nobody":
        raise ValueError("nobody is here")
    return f"hello {who}"


def end_jobs(app: Penstock) -> None:
    """Jobs that an operator may run again, as they were or with other arguments."""
    app.queue("again").keep(arguments=True)
    task = app.task(queue="again", name="greet", retry=Retry(0))(greet)
    task.using(id="ended").enqueue("ada")
    for name in ("dead", "dead-too"):
        task.using(id=name).enqueue("nobody")


def close_a_key(app: Penstock) -> None:
    """A rate, one key of which is closed."""

    @app.task(queue="tasks", limit=Rate(100, per=60, key="{account}", name="crm"))
    async def call(account: str) -> None: ...

    call.enqueue(NASTY[:40])
    app.queue("tasks").hold_limit("crm", NASTY[:40], 3600)


def wait_for_many(app: Penstock) -> None:
    @app.task(queue="wide")
    async def bake() -> None: ...

    many = [bake.using(delay=3600).enqueue() for _ in range(9)]
    early = bake.using(id="early", delay=3600).enqueue()
    both = bake.using(id="both", after=[early, *many]).enqueue()
    bake.using(id="end", after=[both, early]).enqueue()  # the way over `both` is the longer one


def main() -> None:
    with TemporaryServer() as server, Penstock(server.address) as app:
        prepare(app)
        crowd(app)
        app.queue("later").put_many(range(20), tenant="bo", delay=3600)

        @app.task(queue="tasks", schedule="0 7 * * mon-fri", timezone="Europe/Berlin")
        async def nothing() -> None: ...

        @app.task(queue="tasks", limit=Concurrency(1, key="{account}"))
        async def charge(account: str) -> None:
            await asyncio.sleep(3600)

        @app.task(queue="rated", limit=Rate(1, per=3600, key="{account}"))
        async def bill(account: str) -> None: ...

        app.queue("bulk").bound(jobs=1600, per_tenant=1500)

        close_a_key(app)
        end_jobs(app)

        @app.task(queue="flow")
        async def approve(order: int) -> None:
            await step(book, order)
            await wait_for("approved")

        @app.task(queue="flow")
        async def part(n: int) -> int:
            job = current()
            job.log(f"part {n} began")
            job.progress(0.4, "two of five pages")
            await asyncio.sleep(3600 if n == 2 else 0)
            if n == 1:
                raise ValueError(NASTY)
            return n

        async def book(order: int) -> str:
            return f"booked {order}"

        @app.task(queue="flow")
        async def merge(parts: list[int]) -> None: ...

        async def at_work() -> None:
            await asyncio.gather(
                Worker(
                    app,
                    WorkerSettings(
                        queues=("tasks", "flow", "odd", "rated", "talk", "again"), release=f"{ARABIC} <b>1</b>"
                    ),
                ).run(),
                flood(app),
            )

        enqueue_odd_tasks(app)
        app.enqueue_many(charge.call("ada") for _ in range(3))
        app.enqueue_many(bill.call("ada") for _ in range(3))
        parts = [part.enqueue(n) for n in range(3)]
        merged = merge.using(after=parts, id="merge").enqueue([result_of(one) for one in parts])
        part.using(after=merged, id="report").enqueue(9)
        wait_for_many(app)
        write_a_log(app)
        talk_without_end(app)
        approve.using(id="approve").enqueue(17)
        threading.Thread(target=asyncio.run, args=(at_work(),), daemon=True).start()
        held = app.lock("invoice:7", lease=600).acquire(), app.semaphore("market:17", limit=5).acquire()
        listener = socket.create_server(("127.0.0.1", 0))
        operated = Penstock(server.address)
        operated.task(queue="again", name="greet")(greet)  # an app whose arguments the dashboard can check
        asgi = pages(Inspector(operated), local_may_act=True)
        settings = uvicorn.Config(asgi, log_level="error", timeout_graceful_shutdown=1)
        shown = uvicorn.Server(settings)

        def end_with_input() -> None:
            sys.stdin.read()
            shown.should_exit = True

        threading.Thread(target=end_with_input, daemon=True).start()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        shown.run(sockets=[listener])
        for one in held:
            with contextlib.suppress(LeaseLost):  # a test breaks the lock
                one.release()


if __name__ == "__main__":
    main()
