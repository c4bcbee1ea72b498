"""Script calls on both faces, against servers that restart, forget, freeze and refuse."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Operation, Parallel, RoundTrip
from penstock.driver.server_driver import ServerDriver
from penstock.errors import FormatTooNew, ServerError, ServerFull, ServerUnavailable, StateDamaged
from tests.driver.operations import (
    APPEND,
    COUNT,
    FILL,
    FREE,
    QUICK,
    FaceDriver,
    append,
    count,
    numbered,
    script,
    send,
    shown,
)
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.speed import scaled


async def test_a_script_call_is_answered(driver: FaceDriver, key: str):
    assert [await driver.run(count(key)) for _ in range(3)] == [1, 2, 3]


async def test_a_script_the_server_forgot_is_sent_again(driver: FaceDriver, key: str, server: Server):
    await driver.run(count(key))
    server.client.script_flush()
    assert await driver.run(count(key)) == 2


async def test_a_server_that_restarts_between_two_calls_is_reconnected(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    assert await driver.run(count(key)) == 1
    own_server.restart()
    assert await driver.run(count(key)) == 1
    own_server.kill()
    async with driver.running(count(key)):
        await asyncio.sleep(0.3)
        own_server.start()
    await driver.aclose()


async def test_a_call_to_a_frozen_server_is_sent_again(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, replace(QUICK, reply_timeout=0.2))
    await driver.run(count(key))
    with own_server.frozen():
        task = asyncio.create_task(driver.run(shown(key + "list")))
        await asyncio.sleep(0.6)
    assert await asyncio.wait_for(task, scaled(20)) == []
    await driver.aclose()


async def test_a_server_that_accepts_but_never_answers_is_given_up(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address, replace(QUICK, connect_timeout=0.1, give_up_after=0.3))
    began = time.monotonic()
    with own_server.frozen(), pytest.raises(ServerUnavailable):
        await driver.run(count(key))
    assert time.monotonic() - began < scaled(3)  # the timeout of a reply is longer
    await driver.aclose()


async def test_calls_after_an_error_are_given_up_no_later_than_the_settings_say(
    face: str, key: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
):
    """A clean-up has three seconds, but never more than any other call."""
    monkeypatch.setattr("penstock.driver.engine._CLEANUP_GIVE_UP_AFTER", 20.0)
    driver = FaceDriver(face, own_server.address, replace(QUICK, give_up_after=0.3))
    await driver.run(count(key))
    own_server.kill()

    def operation() -> Operation[None]:
        try:
            yield count(key)
        finally:
            yield count(key)

    began = time.monotonic()
    with pytest.raises(ServerUnavailable):
        await driver.run(operation())
    assert time.monotonic() - began < 15
    await driver.aclose()


async def test_a_call_whose_reply_was_lost_is_repeated_with_its_number(face: str, key: str, own_server: Server):
    proxy = Proxy(own_server)
    driver = FaceDriver(face, proxy.address)
    await driver.run(numbered(key, "a"))
    proxy.lose_replies(2)
    await driver.run(numbered(key, "b"))
    await driver.run(numbered(key, "c"))
    seen = [line.split() for line in await driver.run(shown(key))]
    assert [(number, text) for _, number, text in seen] == [
        ("1", "a"),
        ("2", "b"),
        ("2", "b"),
        ("2", "b"),
        ("3", "c"),
    ]
    assert len({caller for caller, _, _ in seen}) == 1
    proxy.close()
    await driver.aclose()


async def test_a_number_without_a_reply_is_never_followed_by_another(face: str, key: str, own_server: Server):
    proxy = Proxy(own_server)
    driver = FaceDriver(face, proxy.address, replace(QUICK, give_up_after=0.2))
    await driver.run(numbered(key, "a"))
    proxy.lose_replies(1000)
    with pytest.raises(ServerUnavailable):
        await driver.run(numbered(key, "b"))
    proxy.lose_replies(0)
    await driver.run(numbered(key, "c"))
    seen = [line.split() for line in await driver.run(shown(key))]
    assert seen[0][0] != seen[-1][0]
    assert seen[-1][1:] == ["1", "c"]
    proxy.close()
    await driver.aclose()


async def test_calls_at_the_same_time_have_keys_of_their_own(driver: FaceDriver, key: str):
    await asyncio.gather(*(driver.run(numbered(key, str(n))) for n in range(20)))
    await driver.run(numbered(key, "last"))
    seen = [line.split() for line in await driver.run(shown(key))]
    assert len({(caller, number) for caller, number, _ in seen}) == 21
    for caller in {one[0] for one in seen}:
        numbers = [int(number) for one, number, _ in seen if one == caller]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_each_call_counts_once_while_connections_are_cut(driver: FaceDriver, key: str, server: Server):
    once = script(
        "exact",
        "local last = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') "
        "assert(tonumber(ARGV[2]) >= last) "
        "if tonumber(ARGV[2]) == last then return redis.call('HGET', KEYS[1], 'total') end "
        "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) "
        "return redis.call('HINCRBY', KEYS[1], 'total', 1)",
        "caller",
        "number",
    )

    async def calls() -> None:
        for _ in range(50):
            await driver.run(RoundTrip(once, (key,), UNNUMBERED, int))

    async def cuts() -> None:
        counted = 0
        while True:
            await asyncio.sleep(0.002)
            total = int(server.client.hget(key, "total") or 0)
            if total >= counted + 10:  # calls must get through in between, however slow this machine is
                counted = total
                server.client.client_kill_filter(_type="normal", skipme=True)

    cutting = asyncio.create_task(cuts())
    await asyncio.gather(*(calls() for _ in range(20)))
    cutting.cancel()
    assert server.client.hget(key, "total") == b"1000"


async def test_a_script_that_answers_tryagain_is_called_again(driver: FaceDriver, key: str):
    late = script(
        "late",
        "local n = redis.call('INCR', KEYS[1]) "
        "if n < 4 then return redis.error_reply('TRYAGAIN a slot is on the move') end return n",
    )
    assert await driver.run(RoundTrip(late, (key,), (), int)) == 4


async def test_an_error_of_a_script_is_raised_without_a_retry(driver: FaceDriver, key: str):
    for text, kind in (
        ("PENSTOCKFORMAT 9 is newer", FormatTooNew),
        ("WRONGTYPE thing", StateDamaged),
        ("SOME", ServerError),
    ):
        wrong = script("wrong", f"redis.call('INCR', KEYS[1]) return redis.error_reply('{text}')")
        with pytest.raises(kind, match=text) as caught:
            await driver.run(RoundTrip(wrong, (key,), (), int))
        assert type(caught.value) is kind
    assert await driver.run(count(key)) == 4


@pytest.mark.parametrize(
    "text",
    [
        "return no_such_global.clock()",
        "return string.no_such_function()",
        "return redis.call('NOSUCHCOMMAND')",
        "return redis.call('CONFIG', 'NOSUCH')",
        "return redis.call('GET')",
        "return redis.call('SUBSCRIBE', 'x')",
        "return redis.call('SET', KEYS[1], 1, 'NOSUCHOPTION')",
        "return { unpack({}, 1, 1000000) }",
        "redis.x = 1",
        "return (",
    ],
)
async def test_a_fault_of_a_script_is_no_damage(driver: FaceDriver, key: str, text: str):
    with pytest.raises(ServerError, match=r"the call faulty.* The stored data is not the cause") as raised:
        await driver.run(RoundTrip(script("faulty", text), (key,), (), int))
    assert type(raised.value) is ServerError
    assert "delete" not in str(raised.value)


async def test_a_damage_that_no_key_proves_asks_for_no_deletion(driver: FaceDriver, key: str):
    for text in ("return redis.call('GET', KEYS[1]) + 1", "return struct.unpack('>I6', 'x')"):
        with pytest.raises(StateDamaged, match=r"may be damaged.*penstock doctor keys") as raised:
            await driver.run(RoundTrip(script("odd", text), (key,), (), int))
        assert "delete" not in str(raised.value)


async def test_a_reply_that_cannot_be_read_names_its_component(driver: FaceDriver, key: str):
    with pytest.raises(StateDamaged, match=r"damaged.*division by zero, in the call count") as raised:
        await driver.run(RoundTrip(COUNT, (key,), (), lambda reply: reply / 0))
    assert (type(raised.value.__cause__), raised.value.key) == (ZeroDivisionError, key)
    with pytest.raises(TypeError):
        await driver.run(RoundTrip(APPEND, (key,), (None,), int))  # type: ignore[arg-type]
    assert [await driver.run(append(key + "2", text)) for text in "ab"] == [1, 2]


async def test_a_full_server_refuses_new_work_and_lets_work_finish(face: str, key: str, own_server: Server):
    driver = FaceDriver(face, own_server.address)
    await driver.run(RoundTrip(FILL, (key,), (1000,), str))
    own_server.client.config_set("maxmemory", 1)
    with pytest.raises(ServerFull, match="maxmemory"):
        await driver.run(RoundTrip(FILL, (key + "2",), (1000,), str))
    with pytest.raises(ServerFull):
        await driver.run(numbered(key + "3", "a"))
    assert await driver.run(RoundTrip(FREE, (key,), (), int)) == 1
    own_server.client.config_set("maxmemory", 0)
    await driver.run(numbered(key + "3", "b"))
    assert [line.split()[1:] for line in await driver.run(shown(key + "3"))] == [["2", "b"]]
    await driver.aclose()


async def test_large_values_pass_in_both_directions(driver: FaceDriver, key: str):
    big = "é" * 3_000_000
    assert await driver.run(append(key, big)) == 1
    assert await driver.run(shown(key)) == [big]
    answers = await asyncio.gather(*(driver.run(append(key + "s", big)) for _ in range(10)))
    assert sorted(answers) == list(range(1, 11))


async def test_replies_are_read_without_a_parser_in_c(face: str, key: str, server: Server, monkeypatch: Any):
    monkeypatch.setattr("penstock.driver.pooled_connection.reply_parser", lambda connection: None)
    driver, big = FaceDriver(face, server.address), "é" * 100_000
    assert await driver.run(append(key, big)) == 1
    assert await driver.run(shown(key)) == [big]
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await driver.run(RoundTrip(APPEND, (key,), ("a",), list, followed_by=("HGETALL", key)))
    await driver.aclose()


async def test_a_command_sent_after_a_script_is_answered_with_it(driver: FaceDriver, key: str):
    def read(replies: Any) -> tuple[int, int]:
        added, (first, *rest) = replies
        assert first == b"a"
        return added, 1 + len(rest)

    round_trip = RoundTrip(APPEND, (key,), ("a",), read, followed_by=("LRANGE", key, 0, -1))
    assert await driver.run(round_trip) == (1, 1)
    assert await driver.run(round_trip.then(list)) == [2, 2]


async def test_the_error_of_a_command_sent_after_a_script_is_raised(driver: FaceDriver, key: str):
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await driver.run(RoundTrip(APPEND, (key,), ("a",), list, followed_by=("HGETALL", key)))


async def test_an_error_is_raised_inside_the_operation(driver: FaceDriver, key: str):
    wrong = script("wrong2", "return redis.error_reply('ERR no')")

    def operation() -> Operation[str]:
        first = yield count(key)
        try:
            yield RoundTrip(wrong, (key,), (), int)
        except ServerError as error:
            return f"{first} {error}"
        return "nothing was raised"

    assert await driver.run(operation()) == "1 no"


@pytest.mark.parametrize("library", [valkey, redis])
@pytest.mark.parametrize("transaction", [True, False])
async def test_a_script_call_in_a_pipeline(face: str, key: str, library: Any, transaction: bool, server: Server):
    module = library if face == "blocking" else library.asyncio
    client = getattr(module, library.__name__.title())(unix_socket_path=str(server.socket))
    driver = ServerDriver(client)

    async def execute(pipe: Any) -> list[Any]:
        done = pipe.execute()
        return await done if face == "aio" else done

    pipe = client.pipeline(transaction=transaction)
    for _ in range(2):  # a pipeline can be used again
        server.client.script_flush()
        pipe.set(key + "s", 1)
        driver.add_to_pipeline(pipe, numbered(key, "a"))
        driver.add_to_pipeline(pipe, count(key + "n"))
        driver.add_to_pipeline(pipe, count(key + "n"))
        assert len(await execute(pipe)) == 6
    assert server.client.lrange(key, 0, -1) == [b" 0 a", b" 0 a"]
    assert server.client.get(key + "n") == b"4"
    server.client.script_flush()
    driver.add_to_pipeline(pipe, count(key + "n"))
    done = pipe.reset()
    if face == "aio":
        await done
    driver.add_to_pipeline(pipe, count(key + "n"))
    assert (await execute(pipe))[-1] == 5
    if transaction:
        watched = pipe.watch(key)
        if face == "aio":
            await watched
        server.client.script_flush()
        driver.add_to_pipeline(pipe, count(key + "n"))
        assert server.client.get(key + "n") == b"5"
        assert (await execute(pipe))[-1] == 6
    await (client.aclose() if face == "aio" else anyio.to_thread.run_sync(client.close))


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"], ids=["by-python", "by-c"])
def test_a_forked_child_has_connections_and_idempotency_keys_of_its_own(key: str, server: Server, fork: str):
    """A program in C that embeds Python, such as uWSGI, may fork without Python's hooks."""
    code = """if True:
        import ctypes, os, sys
        from penstock.driver.server_driver import ServerDriver
        from tests.driver.operations import numbered, shown, waiting
        driver = ServerDriver(sys.argv[1])
        driver.blocking.run(numbered(sys.argv[2], "parent"))
        driver.blocking.run(waiting(sys.argv[2], 0))
        child = eval(sys.argv[3])
        driver.blocking.run(numbered(sys.argv[2], "either"))
        assert driver.blocking.run(waiting(sys.argv[2], 0.05)) == []
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print(*driver.blocking.run(shown(sys.argv[2])), sep="\\n")
        driver.close()
    """
    words = [sys.executable, "-c", code, server.address, key, fork]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, *others = (line.split() for line in done.stdout.splitlines())
    assert sorted(number for _, number, _ in others) == ["1", "2"]
    assert len({caller for caller, _, _ in (first, *others)}) == 2


def test_each_loop_has_connections_of_its_own(key: str, server: Server):
    driver = ServerDriver(server.address, QUICK)

    async def operation() -> list[int]:
        await driver.aio.run(shown(key + "list"))
        listener = driver.aio.listen(key)
        assert await listener.wait(5) == [""]  # the subscription is confirmed
        await driver.aio.run(send(key, listener.address, "x"))
        assert await listener.wait(5) == ["x"]
        listener.close()
        return [await driver.aio.run(count(key)) for _ in range(2)]

    assert asyncio.run(operation()) == [1, 2]
    assert asyncio.run(operation()) == [3, 4]
    assert driver.blocking.run(count(key)) == 5
    driver.close()


async def test_parallel_calls_are_repeated_with_their_numbers(face: str, key: str, own_server: Server):
    proxy = Proxy(own_server)
    driver = FaceDriver(face, proxy.address)

    def together(text: str) -> Operation[list[int]]:
        return (yield Parallel(tuple(numbered(key + str(n), text) for n in range(3))))

    await driver.run(together("a"))
    proxy.lose_replies(1)
    await driver.run(together("b"))
    await driver.run(together("c"))
    repeated = 0
    for n in range(3):
        seen = [line.split() for line in await driver.run(shown(key + str(n)))]
        sent = [(caller, number) for caller, number, text in seen if text == "b"]
        assert len(set(sent)) == 1
        repeated += len(sent) > 1
        assert len({(caller, number) for caller, number, _ in seen}) == 3
    assert repeated  # the connection may have been cut before the server saw all three
    proxy.close()
    await driver.aclose()
