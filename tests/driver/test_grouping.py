"""Group commit: what tasks of one event loop call at the same moment travels as one call, and fails as single calls."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Operation, RoundTrip
from penstock.core.scripts import Script
from penstock.driver.grouping import MOST_BYTES, MOST_CALLS
from penstock.driver.interruption import Interruption
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ServerUnavailable
from penstock.settings import Settings
from tests.conftest import until
from tests.driver.operations import QUICK, shown
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.speed import scaled

# Appends its arguments as one text. Refuses a group, or a single call, with the text "bad".
TOGETHER = Script(
    "together",
    ("key",),
    ("caller", "number", "texts"),
    (),
    "#!lua\nfor i = 3, #ARGV do if ARGV[i] == 'bad' then return redis.error_reply('ERR bad') end end "
    "return redis.call('RPUSH', KEYS[1], table.concat(ARGV, ' '))",
    open_ended=True,
)


def text(key: str, word: str) -> RoundTrip[int]:
    return RoundTrip(TOGETHER, (key,), (*UNNUMBERED, word), int, group_from=2)


@pytest.fixture
async def driver(server: Server) -> AsyncIterator[ServerDriver]:
    made = ServerDriver(server.address, QUICK)
    yield made
    await made.aclose()


async def prepare(driver: ServerDriver, key: str) -> None:
    """Open the connection and load the script. Until then each call goes its own way."""
    await driver.aio.run(text(key, "first"))
    await driver.aio.run(shown(key))


async def sent(driver: ServerDriver, key: str) -> list[tuple[str, int, list[str]]]:
    """The calls that the server has executed after the first: caller, number and texts."""
    lines = [line.split(" ") for line in await driver.aio.run(shown(key))]
    return [(caller, int(number), texts) for caller, number, *texts in lines[1:]]


async def test_calls_of_the_same_moment_travel_together_in_their_order(driver: ServerDriver, key: str):
    await prepare(driver, key)
    replies = await asyncio.gather(*(driver.aio.run(text(key, str(n))) for n in range(60)))
    one, others = await sent(driver, key)
    assert one[2] == ["0"]
    assert others[2] == [str(n) for n in range(1, 60)]
    assert replies == [2, *[3] * 59]
    assert others[1] >= 59, "each call has a number of its own"


async def test_tasks_that_call_again_stay_together(driver: ServerDriver, key: str):
    await prepare(driver, key)

    async def calls(n: int) -> None:
        for _ in range(20):
            await driver.aio.run(text(key, str(n)))

    await asyncio.gather(*(calls(n) for n in range(50)))
    groups = [texts for _, _, texts in await sent(driver, key)]
    assert sum(map(len, groups)) == 1000
    assert len(groups) <= 25


async def test_a_lone_call_waits_for_nobody(driver: ServerDriver, key: str):
    await prepare(driver, key)
    for n in range(3):
        await driver.aio.run(text(key, str(n)))
    assert [texts for _, _, texts in await sent(driver, key)] == [["0"], ["1"], ["2"]]


async def test_calls_of_an_operation_join(driver: ServerDriver, key: str):
    await prepare(driver, key)

    def operation(word: str) -> Operation[int]:
        return (yield text(key, word))

    await asyncio.gather(*(driver.aio.run(operation(str(n))) for n in range(9)))
    assert [len(texts) for _, _, texts in await sent(driver, key)] == [1, 8]


async def test_other_keys_and_other_first_arguments_do_not_join(driver: ServerDriver, key: str):
    await prepare(driver, key)
    await prepare(driver, other := key + "other")
    await asyncio.gather(*(driver.aio.run(text(one, str(n))) for n in range(6) for one in (key, other)))
    for one in (key, other):
        assert [texts for _, _, texts in await sent(driver, one)] == [["0"], ["1", "2", "3", "4", "5"]]


async def test_groups_are_bounded_in_calls_and_bytes(driver: ServerDriver, key: str):
    await prepare(driver, key)
    await asyncio.gather(*(driver.aio.run(text(key, str(n))) for n in range(2 * MOST_CALLS + 45)))
    assert [len(texts) for _, _, texts in await sent(driver, key)] == [1, MOST_CALLS, MOST_CALLS, 44]
    large = [str(n) * (MOST_BYTES // 3) for n in range(9)]
    large[4] *= 20
    await asyncio.gather(*(driver.aio.run(text(key, word)) for word in large))
    groups = [texts for _, _, texts in await sent(driver, key)][4:]
    assert [word for texts in groups for word in texts] == large
    assert all(len(texts) == 1 or sum(map(len, texts)) <= MOST_BYTES for texts in groups)
    assert len(groups) == 5


async def test_a_group_whose_reply_was_lost_is_repeated_unchanged(key: str, own_server: Server):
    proxy = Proxy(own_server)
    driver = ServerDriver(proxy.address, QUICK)
    await prepare(driver, key)
    proxy.lose_replies(2, after=1)
    first = asyncio.create_task(driver.aio.run(text(key, "one")))
    joined = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(5)]
    await asyncio.gather(first, *joined)
    groups = (await sent(driver, key))[1:]
    assert proxy.lost == 2
    assert len(groups) == 3
    assert groups[0] == groups[1] == groups[2]
    await driver.aio.run(text(key, "after"))
    caller, number, _ = (await sent(driver, key))[-1]
    assert caller == groups[0][0]
    assert number > groups[0][1]
    proxy.close()
    await driver.aclose()


async def test_a_group_that_is_refused_is_sent_as_single_calls(driver: ServerDriver, key: str):
    await prepare(driver, key)
    words = ["0", "1", "bad", "2", "\ud800", "3"]
    replies = await asyncio.gather(*(driver.aio.run(text(key, word)) for word in words), return_exceptions=True)
    assert [type(reply).__name__ for reply in replies] == [
        "int",
        "int",
        "ServerError",
        "int",
        "ConfigurationError",
        "int",
    ]
    assert [texts for _, _, texts in await sent(driver, key)] == [["0"], ["1"], ["2"], ["3"]]


async def test_a_group_whose_script_the_server_forgot_is_sent_with_it(driver: ServerDriver, key: str, server: Server):
    await prepare(driver, key)
    server.client.script_flush()
    await asyncio.gather(*(driver.aio.run(text(key, str(n))) for n in range(9)))
    assert sorted(word for _, _, texts in await sent(driver, key) for word in texts) == [str(n) for n in range(9)]


async def test_a_cancelled_caller_only_drops_its_answer(driver: ServerDriver, key: str):
    await prepare(driver, key)
    tasks = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(6)]
    await asyncio.sleep(0)  # the first call is under way, the others wait
    tasks[0].cancel()
    tasks[2].cancel()  # before its group is sent
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [n in (0, 2) for n in range(6)]
    assert [texts for _, _, texts in await sent(driver, key)] == [["0"], ["1", "3", "4", "5"]]


async def test_callers_that_are_cancelled_while_their_group_is_under_way(key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    await prepare(driver, key)
    first = asyncio.create_task(driver.aio.run(text(key, "first")))
    tasks = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(4)]
    await first
    await asyncio.sleep(0)
    with own_server.frozen():
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0.05)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [True, False, False, True]
    assert await driver.aio.run(text(key, "last")) > 0
    await driver.aclose()


async def test_each_caller_hears_that_no_server_answers(key: str, own_server: Server):
    driver = ServerDriver(own_server.address, Settings(reply_timeout=0.2, give_up_after=0.3))
    await prepare(driver, key)
    own_server.freeze()
    calls = asyncio.gather(*(driver.aio.run(text(key, str(n))) for n in range(5)), return_exceptions=True)
    errors = await asyncio.wait_for(calls, scaled(10))
    own_server.thaw()
    assert [type(error) for error in errors] == [ServerUnavailable] * 5
    assert len({id(error) for error in errors}) == 5
    assert await driver.aio.run(text(key, "last")) > 0
    await driver.aclose()


async def test_a_group_that_no_caller_waits_for_does_not_outlive_its_face(key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    await prepare(driver, key)
    before = asyncio.all_tasks()
    with own_server.frozen():
        tasks = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0.01)  # the others are under way as a group
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await driver.aclose_loop()
        await asyncio.sleep(0.05)
        left = asyncio.all_tasks() - before
    await driver.aclose()
    assert not left


async def test_a_face_that_is_closed_leaves_no_caller_waiting(key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    await prepare(driver, key)
    own_server.freeze()
    tasks = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(5)]
    await asyncio.sleep(0.01)
    await driver.aclose_loop()
    own_server.thaw()
    assert all(reply > 0 for reply in await asyncio.wait_for(asyncio.gather(*tasks), scaled(10)))
    await driver.aclose()


async def test_the_error_of_a_signal_handler_ends_one_call_of_a_group(driver: ServerDriver, key: str, monkeypatch: Any):
    await prepare(driver, key)
    engine = driver.aio
    send_now = engine.send_now
    interrupted: list[Any] = []

    def interrupt(first: Any, **options: Any) -> Any:
        reply: Any = send_now(first, **options)
        if len(first.command) > 7 and not interrupted:
            interrupted.append(first)
            reply.set_exception(Interruption(TimeoutError("of a handler")))  # as the task that reads replies does
        return reply

    monkeypatch.setattr(engine, "send_now", interrupt)
    replies = await asyncio.gather(*(driver.aio.run(text(key, str(n))) for n in range(5)), return_exceptions=True)
    assert [type(reply) for reply in replies] == [int, TimeoutError, int, int, int]
    groups = (await sent(driver, key))[1:]
    assert groups[0] == groups[1], "the group is repeated, because it may not have been executed"


def test_a_forked_child_begins_with_no_call_under_way(key: str, server: Server):
    code = """if True:
        import asyncio, os, sys
        from penstock.driver.server_driver import ServerDriver
        from tests.driver.test_grouping import prepare, sent, text
        driver, key = ServerDriver(sys.argv[1]), sys.argv[2]

        async def several(who):
            await asyncio.gather(*(driver.aio.run(text(key, who + str(n))) for n in range(5)))
            await driver.aclose_loop()

        async def parent():
            await prepare(driver, key)
            calls = asyncio.create_task(several("parent"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # one call is under way, the others wait
            child = os.fork()
            if not child:
                return None
            await calls
            while not os.waitpid(child, os.WNOHANG)[0]:
                await asyncio.sleep(0.01)
            lines = await sent(driver, key)
            await driver.aclose()
            return lines

        # The child leaves the loop of its parent as it is.
        runner = asyncio.Runner()
        lines = runner.run(parent())
        if lines is None:
            asyncio.run(several("child"))
            os._exit(0)
        for caller, number, texts in lines:
            print(caller, number, *texts)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, server.address, key],
        check=False,
        capture_output=True,
        text=True,
        timeout=scaled(30),
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    words = [word for _, _, *texts in lines for word in texts]
    assert sorted(words) == [who + str(n) for who in ("child", "parent") for n in range(5)], done.stderr
    callers = {texts[0][:3]: caller for caller, _, *texts in lines}
    assert callers["chi"] != callers["par"]


async def test_a_group_meets_a_server_that_is_away_for_a_moment(key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    await prepare(driver, key)
    tasks = [asyncio.create_task(driver.aio.run(text(key, str(n)))) for n in range(20)]
    own_server.restart()
    await asyncio.wait_for(asyncio.gather(*tasks), scaled(20))
    await until(lambda: not driver.aio._groups.senders)
    await driver.aclose()
