"""Addresses, clients that are handed in, and the errors of a connection that fails."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis
import redis.asyncio
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.sentinel

from penstock.core.operations import RoundTrip
from penstock.core.scripts import Script
from penstock.core.server_release import MINIMUM
from penstock.core.slots import slot
from penstock.driver.address import ServerAddress, parse_address
from penstock.driver.connector import Connector
from penstock.driver.first_connection import TRY_CHANNELS
from penstock.driver.library import read_client
from penstock.driver.route import Route
from penstock.driver.server_driver import ServerDriver
from penstock.errors import ConfigurationError, ServerRefused, ServerTooOld, ServerUnavailable
from penstock.settings import Settings
from tests.driver.operations import count
from tests.servers import Server, free_port
from tests.speed import scaled

ECHO = Script("echo", ("key",), ("text",), (), "#!lua flags=no-writes\nreturn ARGV[1]")
IMPATIENT = Settings(give_up_after=0.3)


def echo(text: str = "hello") -> RoundTrip[bytes]:
    return RoundTrip(ECHO, ("{t}:echo",), (text,), bytes)


async def run(driver: ServerDriver, face: str, round_trip: RoundTrip[Any]) -> Any:
    if face == "aio":
        return await driver.aio.run(round_trip)
    return await anyio.to_thread.run_sync(driver.blocking.run, round_trip)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=free_port()) as started:
        yield started


# --- addresses ---


@pytest.mark.parametrize(
    ("address", "topology", "nodes", "options"),
    [
        ("redis://", "server", (("localhost", 6379),), {}),
        ("valkey://h", "server", (("h", 6379),), {}),
        ("redis://h:7/3", "server", (("h", 7),), {"db": 3}),
        ("valkey://:p%40ss@h:7/?db=2", "server", (("h", 7),), {"password": "p@ss", "db": 2}),
        ("valkey://me:secret@[::1]:7", "server", (("::1", 7),), {"username": "me", "password": "secret"}),
        ("unix:///run/v.sock?db=1&password=x", "server", (("/run/v.sock", 0),), {"db": 1, "password": "x"}),
        ("unix://me:x@/run/a%20b", "server", (("/run/a b", 0),), {"username": "me", "password": "x"}),
        ("valkey+cluster://a:1,b", "cluster", (("a", 1), ("b", 6379)), {}),
        ("redis+cluster://:x@a:1,b:2", "cluster", (("a", 1), ("b", 2)), {"password": "x"}),
        ("valkey+sentinel://a,b:2/main/4", "sentinel", (("a", 26379), ("b", 2)), {"db": 4}),
        ("redis+sentinel://:x@a/main?sentinel_password=y", "sentinel", (("a", 26379),), {"password": "x"}),
        ("redis://h?socket_timeout=5&decode_responses=true&protocol=3", "server", (("h", 6379),), {}),
    ],
)
def test_an_address_is_read(address: str, topology: str, nodes: Any, options: dict[str, Any]):
    found = parse_address(address)
    assert (found.topology, found.nodes, found.options) == (topology, nodes, options)
    assert not found.tls


def test_a_sentinel_address_names_the_service_and_the_sentinels_own_password():
    address = parse_address("redis+sentinel://:x@a/main?sentinel_password=y")
    assert (address.service, address.sentinel_options) == ("main", {"password": "y"})


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "rediss+cluster", "valkeys+cluster"])
def test_tls_checks_the_host_name_unless_that_is_switched_off(scheme: str):
    assert parse_address(f"{scheme}://h").options["ssl_check_hostname"] is True
    assert parse_address(f"{scheme}://h?ssl_check_hostname=no").options["ssl_check_hostname"] is False
    assert parse_address(f"{scheme}://h?ssl_cert_reqs=none").options["ssl_check_hostname"] is False
    assert parse_address(f"{scheme}://h").tls


@pytest.mark.parametrize(
    "address",
    [
        "localhost:6379",
        "http://h",
        "valkey+ring://h",
        "valkey://h:port",
        "valkey://h/zero",
        "valkey://h/0/1",
        "valkey://a,b",
        "valkey://h?colour=red",
        "valkey+sentinel://h",
        "unix://",
        "",
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_fix(address: str):
    with pytest.raises(ConfigurationError, match=r"rite |known are"):
        ServerDriver(address)


def test_no_password_is_shown():
    for address in (
        "valkey://me:secret@h:1/2",
        "unix://:secret@/s",
        "unix:///s?password=secret",
        "valkey+cluster://:secret@a,b",
        "valkey+sentinel://:secret@a/main?sentinel_password=secret",
    ):
        connector = Connector(address, Settings())
        assert "secret" not in connector.address + repr(parse_address(address))
    assert Connector("valkey://me:secret@h:1/2", Settings()).address == "valkey://h:1/2"


def test_without_an_address_the_environment_decides(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_URL", "valkey://:x@elsewhere:7")
    assert Connector(None, Settings()).locate().nodes == (("elsewhere", 7),)
    monkeypatch.delenv("PENSTOCK_URL")
    monkeypatch.setenv("PENSTOCK_EMBEDDED", "0")
    driver = ServerDriver()
    with pytest.raises(ConfigurationError, match="PENSTOCK_URL="):
        driver.blocking.run(echo())


def test_creating_a_driver_imports_no_client_library():
    code = (
        "import sys; from penstock.driver.server_driver import ServerDriver as D; D('valkey://h'); D();"
        "print(sorted({'valkey', 'redis', 'libvalkey', 'hiredis'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- the embedded server ---


async def test_without_any_address_a_server_is_started(face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from penstock.embedded import client as embedded

    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_EMBEDDED", raising=False)
    monkeypatch.chdir(tmp_path)
    driver = ServerDriver()
    assert driver.connector.address == "embedded"
    assert await run(driver, face, echo()) == b"hello"
    assert driver.connector.address.startswith("unix://")
    await driver.aclose()
    assert await run(driver, face, echo("again")) == b"again"
    await driver.aclose()
    embedded.stop(tmp_path / ".penstock")


async def test_an_embedded_server_whose_keeper_died_is_restarted(
    face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from penstock.embedded import client as embedded

    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_EMBEDDED", raising=False)
    monkeypatch.chdir(tmp_path)
    driver = ServerDriver()
    assert await run(driver, face, echo()) == b"hello"
    embedded.stop(tmp_path / ".penstock")
    assert await run(driver, face, echo("again")) == b"again"
    await driver.aclose()
    embedded.stop(tmp_path / ".penstock")


# --- clients that are handed in ---


@pytest.mark.parametrize("library", [valkey, redis, valkey.asyncio, redis.asyncio])
@pytest.mark.parametrize("tuned", [{}, {"decode_responses": True, "protocol": 3}])
async def test_a_client_serves_both_faces(library: Any, tuned: dict[str, Any], face: str, server: Server):
    client = library.from_url(f"{library.__name__.partition('.')[0]}://127.0.0.1:{server.port}/2", **tuned)
    driver = ServerDriver(client)
    name = Script("name", ("key",), (), (), "#!lua\nreturn redis.call('SET', KEYS[1], 'é')")
    await run(driver, face, RoundTrip(name, ("{t}:name",), (), str))
    assert server.client.execute_command("SELECT", 2)
    assert driver.connector.address.endswith(f"127.0.0.1:{server.port}/2")
    assert driver.connector.locate().library == library.__name__.partition(".")[0]
    assert driver.connector.blocking_client().get("{t}:name") == "é".encode()
    assert await driver.connector.aio_client().get("{t}:name") == "é".encode()
    await driver.aclose()


@pytest.mark.parametrize("library", [valkey, redis])
async def test_a_client_on_a_unix_socket_and_its_pool_are_accepted(library: Any, face: str, server: Server):
    client = getattr(library, library.__name__.title())(unix_socket_path=str(server.socket))
    for handed_in in (client, client.connection_pool):
        driver = ServerDriver(handed_in)
        assert await run(driver, face, echo()) == b"hello"
        assert driver.connector.address == server.address
        await driver.aclose()
    assert client.ping()
    client.close()


def test_the_tls_options_of_a_client_are_taken_over():
    for address in (
        read_client(redis.Redis.from_url("rediss://me:x@h:1/2", ssl_ca_certs="ca.pem")),
        read_client(valkey.Valkey.from_url("valkeys://me:x@h:1/2", ssl_ca_certs="ca.pem")),
    ):
        assert (address.nodes, address.tls) == ((("h", 1),), True)
        wanted = {"username": "me", "password": "x", "db": 2, "ssl_ca_certs": "ca.pem"}
        assert {name: address.options.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("library", [valkey, redis])
def test_a_client_behind_sentinel_is_accepted(library: Any):
    sentinel = library.sentinel.Sentinel([("a", 1), ("b", 2)], sentinel_kwargs={"password": "y"})
    address = read_client(sentinel.master_for("main", password="x", db=3))
    assert (address.topology, address.nodes, address.service) == ("sentinel", (("a", 1), ("b", 2)), "main")
    assert (address.options, address.sentinel_options) == ({"password": "x", "db": 3}, {"password": "y"})


@pytest.mark.parametrize("thing", [object(), 7, b"valkey://h"])
def test_a_thing_that_is_neither_address_nor_client_is_refused(thing: Any):
    with pytest.raises(ConfigurationError, match="pass one of those, or write"):
        ServerDriver(thing)


# --- connections that fail ---


async def test_an_address_where_no_server_answers_is_named(face: str, tmp_path: Path):
    for address in (f"unix://{tmp_path}/none", f"valkey://127.0.0.1:{free_port()}"):
        driver = ServerDriver(address, IMPATIENT)
        began = time.monotonic()
        with pytest.raises(ServerUnavailable, match=r"no server answers at .*Is the server running") as caught:
            await run(driver, face, echo())
        assert address in str(caught.value)
        assert caught.value.__cause__
        assert time.monotonic() - began < scaled(5)
        await driver.aclose()


async def test_a_wrong_password_raises_at_once(face: str):
    with Server("--requirepass", "right") as guarded:
        for login in ("", ":wrong@"):
            driver = ServerDriver(f"unix://{login}{guarded.socket}")
            with pytest.raises(ServerRefused, match="password"):
                await run(driver, face, echo())
            await driver.aclose()
        driver = ServerDriver(f"unix://:right@{guarded.socket}")
        assert await run(driver, face, echo()) == b"hello"
        await driver.aclose()


async def test_a_user_who_lacks_a_right_gets_an_error_at_once(face: str, server: Server):
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-evalsha", "-info")
    driver = ServerDriver(f"unix://few:x@{server.socket}")
    with pytest.raises(ServerRefused, match="lacks a right"):
        await run(driver, face, echo())
    await driver.aclose()


async def test_a_right_that_a_script_lacks_gives_the_same_error(face: str, server: Server):
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-incr")
    driver = ServerDriver(f"unix://few:x@{server.socket}")
    with pytest.raises(ServerRefused, match=r"('incr'|this command).*lacks a right"):
        await run(driver, face, count("acl"))
    await driver.aclose()


async def test_an_old_server_is_refused(face: str, server: Server, monkeypatch: pytest.MonkeyPatch):
    for family in MINIMUM:
        monkeypatch.setitem(MINIMUM, family, (99, 1))
    driver = ServerDriver(server.address)
    with pytest.raises(ServerTooOld, match=r"needs Valkey 99\.1 or Redis 99\.1, or newer"):
        await run(driver, face, echo())
    await driver.aclose()


async def test_an_old_server_is_called_old_whatever_it_lacks(
    face: str, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
):
    for family in MINIMUM:
        monkeypatch.setitem(MINIMUM, family, (99, 1))
    driver = ServerDriver(start("--rename-command", "SSUBSCRIBE", "").address)
    with pytest.raises(ServerTooOld):
        await run(driver, face, echo())
    await driver.aclose()


async def test_the_first_connection_warns_of_a_server_that_deletes_jobs(
    face: str, start: Callable[..., Server], caplog: pytest.LogCaptureFixture
):
    evicting = ("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
    for options, warned in ((evicting, True), (evicting[2:], False), (evicting[:2], False)):
        caplog.clear()
        driver = ServerDriver(start(*options).address)
        for _ in range(2):
            await run(driver, face, echo())
        await driver.aclose()
        texts = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(texts) == warned
        assert all(
            "maxmemory-policy volatile-lru: when it is full, it deletes jobs and locks" in text for text in texts
        )


async def test_the_first_connection_says_what_a_crash_of_the_server_takes(
    face: str, start: Callable[..., Server], caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "penstock")
    for options, said in ((("--appendonly", "yes"), False), ((), True)):
        caplog.clear()
        driver = ServerDriver(start(*options).address)
        await run(driver, face, echo())
        await driver.aclose()
        assert ("has no append-only file" in caplog.text) == said


async def test_the_version_is_asked_for_once(face: str, server: Server):
    driver = ServerDriver(server.address)
    before = server.client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"]
    for _ in range(3):
        await run(driver, face, echo())
    assert (
        server.client.info("commandstats")["cmdstat_info"]["calls"] == before + 4
    )  # three sections, and this question
    await driver.aclose()


async def test_connections_that_are_opened_while_others_try_to_publish_read_their_own_replies(
    face: str, server: Server
):
    opened = asyncio.Event()

    def publish() -> None:
        while not opened.is_set():
            server.client.execute_command(*TRY_CHANNELS[0])

    publishing = asyncio.create_task(anyio.to_thread.run_sync(publish))
    for _ in range(100):
        driver = ServerDriver(server.address)
        assert [await run(driver, face, echo(text)) for text in ("one", "two")] == [b"one", b"two"]
        await driver.aclose()
    opened.set()
    await publishing


# --- routes ---


def test_a_slot_is_that_of_the_hash_tag():
    assert slot("foo") == 12182
    assert slot("{foo}:x") == slot("x{foo}y{bar}") == 12182
    assert slot("{}foo") != slot("{}bar")
    assert slot("名前") == slot("x{名前}")


def test_a_route_learns_a_cluster_follows_redirections_and_forgets():
    route = Route(ServerAddress("cluster", (("seed", 1),), "", remap=lambda node: (f"{node[0]}.out", node[1])))
    assert route.node("foo") is None
    reply = [[0, 9999, [b"a", 1, b"id"]], [10000, 16383, [b"", 2, b"id"], [b"replica", 3, b"id"]]]
    route.store(route.read([reply], ("seed", 1)), route.position("bar"))
    assert route.node("foo") == ("seed.out", 2)
    assert route.redirect("12182 b:5", ("seed", 1), permanent=False) == ("b.out", 5)
    assert route.node("foo") == ("seed.out", 2)
    route.redirect("MOVED 12182 b:5", ("seed", 1), permanent=True)
    assert route.node("foo") == ("b.out", 5)
    assert {*route.candidates()[0][:3]} == {("seed", 1), ("a.out", 1), ("seed.out", 2)}
    assert route.candidates()[0][3:] == [("replica.out", 3)]


def test_a_route_forgets_only_the_node_that_failed():
    route = Route(ServerAddress("cluster", (("a", 1),), ""))
    answer = route.read([[[0, 9999, [b"a", 1, b"id"]], [10000, 16383, [b"b", 2, b"id"]]]], ("a", 1))
    route.store(answer, route.position("bar"))
    route.forget(("b", 2))
    assert (route.node("foo"), route.suspect(route.position("foo"))) == (None, ("b", 2))
    assert route.node("bar") == ("a", 1)
    assert route.primaries() == [("a", 1), ("b", 2)]
    assert route.candidates() == [[("a", 1)], [("b", 2)]]
    assert [answer.table[position] for position in route.positions_to_look_up()] == [("b", 2)]
    route.store(answer, route.position("foo"))
    assert route.node("foo") == ("b", 2)
    route.forget(("b", 2))  # a late failure of many
    assert route.node("foo") == ("b", 2)
    route.forget_slot("foo")
    assert (route.node("foo"), route.suspect(route.position("foo"))) == (None, None)
    assert route.node("bar") == ("a", 1)
