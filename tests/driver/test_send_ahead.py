"""A call that is sent before its reply is needed: the caller prepares the next one while the server works."""

import asyncio
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock import Penstock, ServerError
from penstock.core.operations import Operation, Receive, RoundTrip, Send, Sleep
from penstock.errors import ServerUnavailable
from penstock.jobs.queue import CHUNK
from tests.driver.operations import COUNT, QUICK, FaceDriver, count, numbered, script, shown
from tests.driver.proxy import Proxy
from tests.servers import Server

FAIL = script("fail", "return {err = 'ERR no'}")


def ahead(work: RoundTrip[Any], between: Any = lambda: None) -> Operation[Any]:
    sent = yield Send(work)
    between()
    return (yield Receive(sent))


async def test_the_reply_of_a_call_that_was_sent_ahead_is_received_later(driver: FaceDriver, key: str):
    assert [await driver.run(ahead(count(key))) for _ in range(3)] == [1, 2, 3]


async def test_the_server_works_before_the_reply_is_received(driver: FaceDriver, key: str, server: Server):
    seen: list[bytes | None] = []

    def look() -> None:
        until = time.monotonic() + 20
        while server.client.get(key) != b"2" and time.monotonic() < until:
            time.sleep(0.001)
        seen.append(server.client.get(key))

    await driver.run(count(key))
    assert await driver.run(ahead(count(key), look)) == 2
    assert seen == [b"2"]


async def test_a_script_that_the_server_forgot_is_sent_again(driver: FaceDriver, key: str, server: Server):
    await driver.run(count(key))
    server.client.script_flush()
    assert await driver.run(ahead(count(key))) == 2


async def test_a_command_that_follows_a_call_is_sent_ahead_with_it(driver: FaceDriver, key: str, server: Server):
    def followed(*command: str) -> RoundTrip[Any]:
        return RoundTrip(COUNT, (key,), (), lambda replies: replies, followed_by=command)

    await driver.run(count(key))
    assert await driver.run(ahead(followed("GET", key), lambda: time.sleep(0.01))) == (2, b"2")
    server.client.script_flush()
    assert await driver.run(ahead(followed("GET", key))) == (3, b"3")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await driver.run(ahead(followed("LLEN", key)))
    assert await driver.run(count(key + "other")) == 1


async def test_an_error_of_the_server_is_raised_by_receive(driver: FaceDriver, key: str):
    await driver.run(count(key))
    with pytest.raises(ServerError, match="no"):
        await driver.run(ahead(RoundTrip(FAIL, (key,), (), int)))
    assert await driver.run(count(key)) == 2


async def test_a_call_without_a_reply_is_repeated_with_its_number_before_the_next(
    face: str, key: str, own_server: Server
):
    proxy = Proxy(own_server)
    driver = FaceDriver(face, proxy.address)
    await driver.run(numbered(key, "0"))

    def several(n: int) -> Operation[None]:
        for text in range(1, n):
            proxy.lose_replies(text % 3)
            yield from ahead(numbered(key, str(text)))

    await driver.run(several(12))
    found = [line.split() for line in await driver.run(shown(key))]
    assert list(dict.fromkeys(text for _, _, text in found)) == [str(n) for n in range(12)]
    assert [int(number) for _, number, _ in found] == sorted(int(number) for _, number, _ in found)
    assert len({(number, text) for _, number, text in found}) == 12
    assert proxy.lost
    proxy.close()
    await driver.aclose()


async def test_a_reply_that_nobody_received_is_taken_for_that_of_no_other_call(driver: FaceDriver, key: str):
    def give_up() -> Operation[None]:
        yield Send(count(key))
        raise KeyError

    await driver.run(count(key + "other"))
    for _ in range(3):
        with pytest.raises(KeyError):
            await driver.run(give_up())
    assert await driver.run(count(key + "other")) == 2
    assert await driver.run(ahead(count(key + "other"))) == 3


async def test_a_server_that_stays_away_is_given_up(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, replace(QUICK, give_up_after=0.3))
    await driver.run(count(key))
    own_server.kill()
    with pytest.raises(ServerUnavailable):
        await driver.run(ahead(count(key)))
    await driver.aclose()


async def test_a_cancelled_operation_leaves_a_working_connection(driver: FaceDriver, key: str):
    def wait() -> Operation[None]:
        yield Send(count(key))
        yield Sleep(60)

    if driver.face == "aio":
        await driver.run(count(key + "other"))
        running = asyncio.create_task(driver.run(wait()))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await driver.run(count(key + "other")) == 2


async def test_threads_that_call_at_once_share_no_connection(server: Server, key: str):
    driver = FaceDriver("blocking", server.address)
    answers: list[int] = []

    def work() -> None:
        for _ in range(200):
            answers.append(driver.server_driver.blocking.run(count(key)))
            answers.append(driver.server_driver.blocking.run(ahead(count(key))))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert sorted(answers) == list(range(1, 2401))
    await driver.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_a_bulk_enqueue_keeps_its_order_while_replies_are_lost(face: str, own_server: Server, seed: int):
    proxy, chance = Proxy(own_server), random.Random(seed)
    app = Penstock(proxy.address, prefix="bulk")

    @app.task(queue="q")
    async def note(n: int) -> None: ...

    def calls() -> Any:
        for n in range(CHUNK * 8 + 7):
            if n % 100 == 0 and chance.random() < 0.3:
                proxy.lose_replies(chance.randint(1, 2))
            yield note.call(n)

    run = app.enqueue_many.aio if face == "aio" else lambda them: asyncio.to_thread(app.enqueue_many, them)
    jobs = await run(calls())
    proxy.lose_replies(0)
    assert len({job.key for job in jobs}) == len(jobs) == CHUNK * 8 + 7
    queue, order = app.queue("q"), list[int]()
    while items := await queue.claim.aio(1000):
        order += [item.body[1]["n"] for item in items]
    assert order == list(range(CHUNK * 8 + 7))
    assert (await queue.count.aio()).running == len(order)
    await app.aclose()
    proxy.close()


async def test_what_was_sent_before_an_error_of_the_iterable_is_enqueued(face: str, server: Server):
    app = Penstock(server.address, prefix="broken")

    @app.task(queue="q")
    async def note(n: int) -> None: ...

    def calls() -> Any:
        for n in range(CHUNK * 2 + 10):
            yield note.call(n)
        raise KeyError("broken")

    run = app.enqueue_many.aio if face == "aio" else lambda them: asyncio.to_thread(app.enqueue_many, them)
    with pytest.raises(KeyError, match="broken"):
        await run(calls())
    assert (await app.queue("q").count.aio()).ready == CHUNK * 2
    await app.queue("q").purge.aio()
    await app.aclose()


async def test_an_iterable_may_itself_enqueue(face: str, server: Server):
    app = Penstock(server.address, prefix="nested")

    @app.task(queue="q")
    async def note(n: int) -> None: ...

    def calls() -> Any:
        for n in range(CHUNK * 3):
            if n % 400 == 0 and face == "blocking":
                note.enqueue(-n)
            yield note.call(n)

    run = app.enqueue_many.aio if face == "aio" else lambda them: asyncio.to_thread(app.enqueue_many, them)
    await run(calls())
    assert (await app.queue("q").count.aio()).ready == CHUNK * 3 + (4 if face == "blocking" else 0)
    await app.queue("q").purge.aio()
    await app.aclose()
