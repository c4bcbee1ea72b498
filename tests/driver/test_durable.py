"""Writes that are confirmed by the disk or by a replica."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.core.operations import RoundTrip
from penstock.errors import DurabilityUnavailable, NotDurable
from tests.conftest import until
from tests.driver.operations import QUICK, FaceDriver, append, script, shown
from tests.driver.proxy import Proxy
from tests.servers import Server, free_port, needs_waitaof


async def test_a_server_that_cannot_confirm_a_write_is_sent_nothing(driver: FaceDriver, key: str, server: Server):
    with pytest.raises(DurabilityUnavailable, match="appendfsync always"):
        await driver.run(append(key, "x", durable=True))
    assert await driver.run(shown(key)) == []


@needs_waitaof
async def test_a_write_to_the_disk_is_confirmed(face: str, key: str, start: Callable[..., Server]):
    started = start("--appendonly", "yes", "--appendfsync", "always")
    driver = FaceDriver(face, started.address)
    await driver.run(append(key, "a", durable=True))
    started.client.config_resetstat()
    await driver.run(append(key, "b", durable=True))
    await driver.run(append(key, "c", durable=True))
    stats = started.client.info("commandstats")
    assert stats["cmdstat_waitaof"]["calls"] == 2
    assert "cmdstat_config|get" not in stats
    assert await driver.run(shown(key)) == ["a", "b", "c"]
    started.client.script_flush()
    assert await driver.run(append(key, "d", durable=True)) == 4
    started.client.config_set("appendonly", "no")
    with pytest.raises(NotDurable, match="accepted"):
        await driver.run(append(key, "e", durable=True))
    with pytest.raises(DurabilityUnavailable):
        await driver.run(append(key, "f", durable=True))
    assert (await driver.run(shown(key)))[-1] == "e"
    await driver.aclose()


@needs_waitaof
async def test_a_server_that_was_lost_is_asked_again_what_it_keeps(face: str, key: str, start: Callable[..., Server]):
    started = start("--appendonly", "yes", "--appendfsync", "always")
    driver = FaceDriver(face, started.address)
    await driver.run(append(key, "a", durable=True))
    started.client.config_set("appendfsync", "everysec")
    started.client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(NotDurable, match="accepted"):  # it was sent once, on a connection that was gone
        await driver.run(append(key, "b", durable=True))
    with pytest.raises(DurabilityUnavailable):
        await driver.run(append(key, "c", durable=True))
    assert await driver.run(shown(key)) == ["a", "b"]
    await driver.aclose()


async def test_a_write_to_a_replica_is_confirmed(face: str, key: str, start: Callable[..., Server]):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set("seen", 1)
    await until(lambda: replica.client.get("seen"))
    # Without the right to read the configuration, a replica can still confirm.
    primary.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-config")
    driver = FaceDriver(face, f"unix://few:x@{primary.socket}", replace(QUICK, durable_timeout=0.3))
    assert await driver.run(append(key, "a", durable=True)) == 1
    with replica.frozen(), pytest.raises(NotDurable, match=r"a replica within 0\.3 s"):
        await driver.run(append(key, "b", durable=True))
    assert await driver.run(append(key, "c", durable=True)) == 3
    await driver.aclose()


async def test_a_write_whose_reply_was_lost_is_confirmed(face: str, key: str, start: Callable[..., Server]):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set("seen", 1)
    await until(lambda: replica.client.get("seen"))
    once = script("once", "if redis.call('SETNX', KEYS[1], 'x') == 1 then return 'new' end return 'known'")
    proxy = Proxy(primary)
    driver = FaceDriver(face, proxy.address)
    await driver.run(RoundTrip(once, (key,), (), bytes, durable=True))
    proxy.lose_replies(1)
    assert await driver.run(RoundTrip(once, (key + "2",), (), bytes, durable=True)) == b"known"
    assert replica.client.get(key + "2") == b"x"
    await driver.aclose()
    driver = FaceDriver(face, proxy.address, replace(QUICK, durable_timeout=0.3))
    proxy.lose_replies(1)
    with replica.frozen(), pytest.raises(NotDurable, match="none has reached"):
        await driver.run(RoundTrip(once, (key + "3",), (), bytes, durable=True))
    proxy.close()
    await driver.aclose()


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "stays away"])
async def test_a_replica_that_is_away_is_waited_for(face: str, key: str, start: Callable[..., Server], returns: bool):
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    await until(lambda: primary.replication()["connected_slaves"] == 1)
    replica.kill()
    await until(lambda: primary.replication()["connected_slaves"] == 0)
    driver = FaceDriver(face, primary.address, replace(QUICK, durable_timeout=30 if returns else 0.3))
    task = asyncio.create_task(driver.run(append(key, "a", durable=True)))
    if returns:
        await asyncio.sleep(0.2)
        assert await driver.run(shown(key)) == []
        replica.start()
        assert await task == 1
    else:
        with pytest.raises(DurabilityUnavailable, match=r"not returned within 0\.3 s; this call was not sent"):
            await task
    assert await driver.run(shown(key)) == (["a"] if returns else [])
    await driver.aclose()


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "stays away"])
async def test_a_call_that_was_sent_again_is_never_said_to_be_unsent(
    face: str, key: str, start: Callable[..., Server], returns: bool
):
    """The primary that executed it has lost its replica meanwhile, as a replica that was promoted has."""
    primary = start("--repl-diskless-sync-delay", "0", port=free_port())
    replica = start("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
    primary.client.set("seen", 1)
    await until(lambda: replica.client.get("seen"))
    once = script("once", "if redis.call('SETNX', KEYS[1], 'x') == 1 then return 'new' end return 'known'")
    proxy = Proxy(primary)
    driver = FaceDriver(face, proxy.address, replace(QUICK, durable_timeout=30 if returns else 0.3))
    await driver.run(RoundTrip(once, (key,), (), bytes, durable=True))
    replica.kill()
    await until(lambda: primary.replication()["connected_slaves"] == 0)
    proxy.lose_replies(1)
    task = asyncio.create_task(driver.run(RoundTrip(once, (key + "2",), (), bytes, durable=True)))
    await until(lambda: primary.client.get(key + "2"))
    if returns:
        replica.start()
        assert await task == b"known"
        assert replica.client.get(key + "2") == b"x"
    else:
        with pytest.raises(NotDurable, match=r"accepted.*none has reached"):
            await task
    assert proxy.lost == 1
    proxy.close()
    await driver.aclose()
