"""Bad input costs one clear error and nothing else: here is each kind of it, and a worker that continues."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import BadCall, Job, JobFailed, Penstock, ServerFull, Settings
from penstock.core.server_release import MINIMUM
from penstock.errors import PayloadTooLarge, ServerRefused, ServerTooOld, ServerUnavailable
from tests.conftest import Do, until
from tests.servers import Server
from tests.speed import scaled
from tests.worker.in_process import run_burst, running_worker


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Shop:
    """An app with good and bad tasks. Its worker must still run good ones after bad ones."""

    def __init__(self, app: Penstock) -> None:
        self.app = app

        @app.task(queue="q")
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task(queue="q")
        def leave() -> None:
            sys.exit(3)

        @app.task(queue="q")
        async def leave_the_loop() -> None:
            sys.exit(3)

        @app.task(queue="q")
        def unencodable() -> Any:
            return object()

        @app.task(queue="q")
        def huge() -> str:
            return "x" * app.settings.max_payload

        @app.task(queue="q")
        async def greedy() -> int:
            time.sleep(0.4)
            return 1

        self.add, self.leave, self.leave_the_loop = add, leave, leave_the_loop
        self.unencodable, self.huge, self.greedy = unencodable, huge, greedy

    async def is_working(self) -> None:
        job = await self.add.enqueue.aio(1, 2)
        assert await job.result.aio(scaled(20)) == 3


@pytest.fixture
def shop(app: Penstock) -> Shop:
    return Shop(app)


async def failure(do: Do, job: Job[Any]) -> str:
    with pytest.raises(JobFailed) as caught:
        await do(job.result, 5)
    return caught.value.reason


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, "missing required field `b`"),
        ((1, "two"), {}, "Expected `int`, got `str` for b"),
        ((1, 2, 3), {}, "takes 2 positional arguments, 3 were given"),
        ((1, 2), {"a": 1}, "got a twice"),
        ((1, 2), {"c": 1}, "has no parameter c"),
        ((1, object()), {}, "cannot be written as JSON"),
    ],
)
async def test_wrong_arguments_at_enqueue(shop: Shop, do: Do, args: Any, kwargs: Any, message: str):
    async with running_worker(shop.app):
        with pytest.raises(BadCall, match=message) as caught:
            await do(shop.add.enqueue, *args, **kwargs)
        assert str(caught.value).startswith("add()")
        await shop.is_working()


async def test_a_payload_changed_by_hand_in_the_server(shop: Shop, do: Do, raw: Any):
    job = await do(shop.add.enqueue, 1, 2)
    jobs = f"{shop.app.queue('q').first.bindings.keys.base}jobs"
    body = raw.hget(jobs, job.key)
    raw.hset(jobs, job.key, body.removesuffix(b"}"))
    async with running_worker(shop.app):
        assert (await failure(do, job)).startswith("add(): Input data was truncated (release ")
        await shop.is_working()


async def test_a_payload_over_the_limit(shop: Shop, do: Do):
    async with running_worker(shop.app):
        with pytest.raises(PayloadTooLarge, match="1,048,578 bytes, the limit is 1,048,576: store the data elsewhere"):
            await do(shop.app.queue("q").put, "x" * 1024 * 1024)
        await shop.is_working()


async def test_a_result_that_cannot_be_encoded(shop: Shop, do: Do):
    async with running_worker(shop.app):
        job = await do(shop.unencodable.enqueue)
        assert await failure(do, job) == "the result of unencodable: a object cannot be written as JSON"
        job = await do(shop.huge.enqueue)
        assert "bytes, the limit is 1,048,576" in await failure(do, job)
        await shop.is_working()


async def test_a_task_that_calls_sys_exit(shop: Shop, do: Do):
    async with running_worker(shop.app):
        for task in (shop.leave, shop.leave_the_loop):
            job = await do(task.enqueue)
            assert await failure(do, job) == "the task called sys.exit(3); raise an exception instead"
        await shop.is_working()


async def test_a_task_that_blocks_the_loop(shop: Shop, do: Do, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    async with running_worker(shop.app, blocked_warning=0.15):
        job = await do(shop.greedy.enqueue)
        assert await do(job.result, 5) == 1
        await shop.is_working()
    (warning,) = [one.getMessage() for one in caplog.records if "blocked the event loop" in one.getMessage()]
    assert f"job {job.id} (greedy)" in warning


# --- the server ---

QUICK = Settings(give_up_after=0.3, connect_timeout=0.3)


async def refused(app: Penstock, do: Do, kind: type[Exception], message: str) -> None:
    """Each verb, and a worker at its start, raise this error, in one line."""
    shop = Shop(app)
    with pytest.raises(kind, match=message) as caught:
        await do(app.queue("q").put, 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(kind, match=message):
        await run_burst(app)
    with pytest.raises(kind, match=message):
        await do(shop.add.enqueue, 1, 2)
    await app.aclose()


async def test_a_server_that_is_gone_at_the_start(do: Do, start: Callable[..., Server]):
    server = start()
    address = server.address
    server.kill()
    await refused(Penstock(address, settings=QUICK), do, ServerUnavailable, f"no server answers at {address}")
    server.start()


async def test_an_address_without_a_server(do: Do):
    app = Penstock("valkey://127.0.0.1:1/0", settings=QUICK)
    await refused(app, do, ServerUnavailable, r"no server answers at valkey://127\.0\.0\.1:1")


@pytest.mark.parametrize("password", ["", ":wrong@"])
async def test_a_wrong_password(do: Do, start: Callable[..., Server], password: str):
    server = start("--requirepass", "right")
    app = Penstock(f"unix://{password}{server.socket}", settings=QUICK)
    await refused(app, do, ServerRefused, "another user or password")
    good = Penstock(f"unix://:right@{server.socket}")
    await do(good.queue("q").put, 1)
    await good.aclose()


async def test_a_user_without_the_rights(do: Do, start: Callable[..., Server]):
    server = start()
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-evalsha", "-eval")
    app = Penstock(f"unix://few:x@{server.socket}", settings=QUICK)
    await refused(app, do, ServerRefused, "this user lacks a right")


async def test_a_user_who_may_not_be_woken(do: Do, start: Callable[..., Server], caplog: pytest.LogCaptureFixture):
    """The first call of any kind raises the error, instead of a wait that lasts for ever."""
    server = start()
    server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-ssubscribe")
    app = Penstock(f"unix://few:x@{server.socket}", settings=QUICK)
    await refused(app, do, ServerRefused, "this user lacks a right that wake-ups need")


async def test_a_server_that_is_too_old(do: Do, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch):
    """No old server is available here, so the test raises the version that Penstock wants."""
    for family in MINIMUM:
        monkeypatch.setitem(MINIMUM, family, (99, 0))
    server = start()
    app = Penstock(server.address, settings=QUICK)
    await refused(
        app, do, ServerTooOld, r"is (Valkey|Redis) \d+\.\d+\.\d+: Penstock needs Valkey 99\.0 or Redis 99\.0, or newer"
    )


async def test_a_full_server(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    shop = Shop(app)
    waiting = await do(shop.add.enqueue, 1, 2)
    server.client.config_set("maxmemory", 1)
    before = server.client.dbsize()
    for verb, *arguments in [(shop.add.enqueue, 1, 2), (app.queue("q").put_many, [1, 2])]:
        with pytest.raises(ServerFull, match="nothing was written"):
            await do(verb, *arguments)
    assert server.client.dbsize() == before
    async with running_worker(app):
        assert await do(waiting.result, 5) == 3
        server.client.config_set("maxmemory", 0)
        await shop.is_working()
    await app.aclose()


async def test_a_server_that_restarts_while_the_worker_is_idle(do: Do, start: Callable[..., Server]):
    server = start()
    app = Penstock(server.address)
    shop = Shop(app)
    async with running_worker(app):
        await shop.is_working()
        server.restart()
        await until(server.subscribers)
        await shop.is_working()
    await app.aclose()
