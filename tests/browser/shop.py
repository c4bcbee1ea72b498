"""A system at work, as the pictures of the documents show it: 40 shops of a market place share seven queues.

    python tests/browser/shop.py 8399     # serves, enqueues and works until its input is closed

It needs a quarter of an hour until the charts are full, and a tenth of a CPU. `pictures.py` takes the pictures.
"""

import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from penstock import Batch, Concurrency, Penstock, Rate, Retry, current, result_of, step, wait_for
from penstock.errors import PenstockError
from penstock.testing import TemporaryServer

TENANTS = [
    "acme",
    "aurora",
    "birch",
    "bramble",
    "cobalt",
    "copperleaf",
    "dahlia",
    "driftwood",
    "ember",
    "evergreen",
    "fable",
    "fernhill",
    "gingham",
    "granite",
    "harbor",
    "hazel",
    "indigo",
    "ivory",
    "juniper",
    "kestrel",
    "lantern",
    "linden",
    "marlow",
    "meadow",
    "north-star",
    "oakwell",
    "orchard",
    "paperboat",
    "quarry",
    "quill",
    "redwood",
    "saffron",
    "sparrow",
    "tamarind",
    "thistle",
    "umber",
    "velvet",
    "willow",
    "yarrow",
    "zephyr",
]

app = Penstock()
dice = random.Random(7)


async def work(least: float, most: float) -> None:
    """Wait as long as the work takes: mostly short, now and then long."""
    await asyncio.sleep(least + (most - least) * dice.random() ** 3)


@app.task(name="send_receipt", queue="mail", retry=Retry(3, base=2, never=(LookupError,)))
async def send_receipt(to: str, order: str) -> None:
    await work(0.04, 0.6)
    if dice.random() < 0.01:
        raise ConnectionError("421 mail.example.com: too many connections, try again later")
    if dice.random() < 0.004:
        raise LookupError(f"550 {to}: no such mailbox")


@app.task(name="send_newsletter", queue="mail", retry=Retry(2))
async def send_newsletter(to: str, issue: int) -> None:
    await work(0.05, 0.5)


@app.task(
    name="charge", queue="payments", retry=Retry(4, base=3, never=(ValueError,)), limit=Concurrency(1, key="{account}")
)
async def charge(account: str, order: str, cents: int) -> str:
    await work(0.15, 1.2)
    if dice.random() < 0.05:
        raise TimeoutError("the bank did not answer within 5 s")
    if dice.random() < 0.003:
        raise ValueError("the card has expired")
    return f"pay_{dice.randrange(16**8):08x}"


@app.task(name="index_product", queue="search", batch=Batch(50, linger=0.5))
async def index_product(products: list[int]) -> None:
    await work(0.1, 0.4)


@app.task(name="resize_image", queue="images", retry=Retry(2))
async def resize_image(path: str, width: int) -> str:
    await work(0.3, 2)
    if path.endswith(".heic"):
        raise OSError(f"cannot identify the image file '{path}'")
    return path.replace(".jpg", f"-{width}.jpg")


@app.task(name="sync_stock", queue="partners", limit=Rate(40, per=60, key="{partner}", name="partner-api"))
async def sync_stock(partner: str, product: int) -> None:
    await work(0.1, 0.5)


@app.task(name="render_report", queue="reports", timeout=600)
async def render_report(month: str, pages: int) -> str:
    job = current()
    for page in range(1, pages + 1):
        await asyncio.sleep(0.6)
        job.progress(page / pages, f"page {page} of {pages}")
        job.log(f"page {page}: {dice.randrange(20, 90)} rows")
    return f"reports/{month}.pdf"


@app.task(name="merge_reports", queue="reports")
async def merge_reports(parts: list[str]) -> str:
    return f"{len(parts)} reports"


async def reserve(order: str) -> str:
    await work(0.5, 1)
    return f"{order}: two items reserved"


async def pack(order: str) -> str:
    await work(2, 5)
    return f"{order}: one parcel, 1.4 kg"


@app.task(name="fulfil", queue="orders")
async def fulfil(order: str, address: str) -> str:
    await step(reserve, order)
    await step(pack, order)
    tracking = await wait_for("shipped", timeout=2 * 86400)
    return f"{order} is on its way: {tracking}"


@app.task(name="close_day", queue="reports", schedule="30 2 * * *", timezone="Europe/Berlin")
async def close_day() -> None: ...


@app.task(name="weekly_newsletter", queue="mail", schedule="0 7 * * mon", timezone="Europe/Berlin")
async def weekly_newsletter() -> None: ...


@app.task(name="expire_baskets", queue="orders", schedule="*/5 * * * *")
async def expire_baskets() -> str:
    await work(0.5, 2)
    return f"{dice.randrange(40, 90)} baskets"


def prepare() -> list[object]:
    """Prepare what other pages show. Returns what has to stay referenced."""
    for tenant, weight in (("acme", 4), ("harbor", 2), ("zephyr", 2)):
        app.queue("mail").tenant(tenant).weigh(weight)
    for n, name in enumerate(("Ann Lee", "Zoë Müller", "名前", "María José", "Bo Jensen", "Ma Smith")):
        app.directory("customers").add(name, id=f"c{n}")
        app.contacts("user:17").touch(name)
    chat = app.chats.create(["ada", "bo", "cy"], sender="cy", message={"text": "The truck is here"}, id="warehouse")
    chat.send("bo", {"text": "Gate 2, please"})
    chat.send("ada", {"text": "On my way"})
    reader = chat.reader("bo")
    reader.ack(reader.pull()[0])
    app.mailbox("courier:9").post({"text": "Pick up at 17:00"})
    app.rate_limit("tax-service", limit=100, per=60, burst=20).acquire(7)
    return [
        app.lock("stock:warehouse-2", lease=3600).acquire(),
        app.semaphore("label-printer", limit=3, lease=3600).acquire(),
    ]


async def shop() -> None:
    """Enqueue as customers come and go: waves of four minutes, and a newsletter of one tenant every five."""
    begun, n = time.monotonic(), int(time.time()) % 100_000
    orders: list[tuple[float, str]] = []
    while True:
        passed = time.monotonic() - begun
        wave = 0.65 + 0.35 * math.sin(passed / 240 * 2 * math.pi)
        for _ in range(sum(dice.random() < wave for _ in range(4))):
            n += 1
            tenant = TENANTS[int(len(TENANTS) * dice.random() ** 1.6)]
            order = f"order-{n}"
            await charge.using(tenant=tenant).enqueue.aio(tenant, order, dice.randrange(500, 20000))
            await send_receipt.using(tenant=tenant, priority=3).enqueue.aio(f"customer{n}@example.com", order)
            await index_product.using(tenant=tenant).enqueue.aio(n)
            if n % 3 == 0:
                path = f"{tenant}/{n}.{'heic' if n % 90 == 27 else 'jpg'}"
                await resize_image.using(tenant=tenant).enqueue.aio(path, 640)
            if n % 4 == 0:
                await sync_stock.using(tenant=tenant).enqueue.aio(("bazaar", "mercato", "souk")[n % 3], n)
            if n % 25 == 0:
                job = await fulfil.using(tenant=tenant, id=order).enqueue.aio(order, f"{n} Main Street")
                orders.append((passed + 40, job.id))
            if n % 60 == 0:
                parts = [
                    await render_report.using(tenant=tenant).enqueue.aio("2026-10", pages) for pages in (12, 8, 20)
                ]
                await merge_reports.using(tenant=tenant, after=parts).enqueue.aio([result_of(one) for one in parts])
            if n % 20 == 0:
                await send_receipt.using(tenant=tenant, delay=900).enqueue.aio(f"customer{n}@example.com", order)
        if int(passed) % 300 == 120:
            tenant = dice.choice(TENANTS)
            to = (
                send_newsletter.using(tenant=tenant, tags=["october"]).call(f"{k}@example.com", 12) for k in range(900)
            )
            await app.enqueue_many.aio(to)
        while len(orders) > 3 and orders[0][0] < passed:
            with contextlib.suppress(PenstockError):
                await app.job(orders.pop(0)[1]).signal.aio("shipped", "1Z-204-88")
        await asyncio.sleep(max(0, 1 - (time.monotonic() - begun - passed)))


def main() -> None:
    penstock = Path(sys.executable).with_name("penstock")
    if sys.argv[1:] == ["load"]:
        kept = prepare()
        asyncio.run(shop())
        del kept
        return
    with TemporaryServer() as server:
        os.environ["PENSTOCK_URL"] = server.address
        options = ("-c", "12", "--processes", "2", "--release", "2026.11.2")
        started = [
            subprocess.Popen([penstock, "worker", f"{Path(__file__).resolve()}:app", *options]),
            subprocess.Popen([penstock, "dashboard", "--listen", f"127.0.0.1:{sys.argv[1]}"]),
            subprocess.Popen([sys.executable, __file__, "load"]),
        ]
        try:
            sys.stdin.read()
        finally:
            for one in started:
                one.terminate()
            for one in started:
                one.wait()


if __name__ == "__main__":
    main()
