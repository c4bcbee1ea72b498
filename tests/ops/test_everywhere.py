"""Every component works the same, on both faces, on each kind of server.

They are a cluster of three primaries and three replicas, a primary behind Sentinels, and Redis 7.0 over TLS, where the
user has exactly the rights of `docs/howto/security.md` (`make test-servers`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.errors import ServerRefused
from tests.certificates import HAS_OPENSSL, make_certificate
from tests.clusters import ReplicatedCluster, SentinelServers
from tests.ops.test_security import USES, rules
from tests.servers import Server, free_port

REDIS_SERVER = os.environ.get("PENSTOCK_REDIS_SERVER", "")
"""The program of another server, such as Debian's /usr/bin/redis-server."""

NOT_IN_REDIS_7_0 = {"+client|setinfo", "+waitaof"}
"""Redis 7.2 has them; the document says that Redis 7.0 refuses them."""

Use = Callable[[Penstock], None]


@contextlib.contextmanager
def redis_over_tls() -> Iterator[str]:
    """A server that listens for TLS only, and its address for a user with exactly the rights of the document."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        certificate, port = make_certificate(Path(folder), "IP:127.0.0.1"), free_port()
        with Server("--tls-port", str(port), *certificate.server_options, binary=REDIS_SERVER) as server:
            server.ask("ACL", "SETUSER", "app", "reset", *(one for one in rules() if one not in NOT_IN_REDIS_7_0))
            yield f"rediss://app:secret@127.0.0.1:{port}?ssl_ca_certs={certificate.file}"


@pytest.fixture(scope="module", params=["cluster of six", "sentinels", "redis"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "redis":
        if not (REDIS_SERVER and HAS_OPENSSL):
            pytest.skip("`make test-servers` runs this on Debian's redis-server")
        with redis_over_tls() as found:
            yield found
    else:
        with ReplicatedCluster() if request.param == "cluster of six" else SentinelServers() as servers:
            yield servers.address


# The asyncio transport of a TLS connection closes itself some rounds of the loop later, when the loop may have ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_every_component_works_everywhere(address: str, use: Use):
    with Penstock(address) as app:
        use(app)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_every_component_works_everywhere_in_asyncio(address: str, tmp_path: Path):
    async with Penstock(address) as app:
        queue = app.queue("aio")
        job = await queue.put.aio(1, tenant="ada")
        await queue.put.aio(2, delay=0.2)
        (item,) = await queue.claim.aio(1, wait=20)
        await item.complete.aio("done")
        assert await job.result.aio(20) == "done"
        (late,) = await queue.claim.aio(1, wait=20)  # it waits until the job is due
        await late.complete.aio()

        async with app.lock("invoice:7", lease=10, wait=20) as held:
            held.check()
        async with app.semaphore("market", limit=1, wait=20), app.rate_limit("api", limit=10, per=1):
            pass
        async with app.election("importer", wait=20) as leader:
            assert leader.term
        assert await app.latch("import", count=1).count_down.aio() is not None

        await app.contacts("ada").touch.aio("Bo")
        assert list(await app.contacts("ada").complete.aio("b")) == ["Bo"]
        directory = app.directory("staff")
        await directory.add.aio("Ada Lovelace", "1")
        assert [entry.id for entry in await directory.complete.aio("ad")] == ["1"]
        await directory.remove.aio("1")

        box = app.mailbox("ada")
        await box.post.aio("hi")
        (message,) = await box.pull.aio(wait=20)
        await box.ack.aio(message)
        chat = await app.chats.create.aio(["ada", "bo"], sender="cy", message="hi", id="aio")
        assert [message.body for message in await app.chats.of("bo").pull.aio(wait=20)] == ["hi"]
        assert await chat.delete.aio()

        (tmp_path / "log").write_text("one\ntwo\n")
        channel = app.files("aio")
        await channel.open.aio(["alone"])
        await channel.send_lines.aio(tmp_path / "log", close=True)
        assert [line async for line in channel.receiver("alone").lines()] == [b"one", b"two"]
        assert await channel.delete.aio()


@pytest.mark.skipif(not (REDIS_SERVER and HAS_OPENSSL), reason="`make test-servers` runs this")
def test_the_user_of_the_document_has_no_other_rights_on_redis():
    with (
        redis_over_tls() as address,
        Penstock(address, prefix="other") as app,
        pytest.raises(ServerRefused, match="lacks a right"),
    ):
        app.queue("mail").put(1)
