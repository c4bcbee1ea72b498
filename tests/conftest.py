"""Fixtures: real servers, an app for each test, and a check for leaks at the end of the test."""

import asyncio
import contextlib
import gc
import itertools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
import redis
import valkey
from hypothesis import HealthCheck, settings

from penstock import Penstock, Settings
from penstock.testing import MovableClock
from tests import everywhere, retries
from tests.faces import Faces
from tests.jobs.stand import Stand
from tests.leaks import leaks_of_test
from tests.leftovers import swept
from tests.servers import PROGRAM, RELEASE, Cluster, Server
from tests.speed import Deadline

_numbers = itertools.count(1)

# On a busy machine a generated input may take any time.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages: a test that spoils stored data, so that the counters cannot be right")


def pytest_addoption(parser: pytest.Parser) -> None:
    everywhere.add_pairs_option(parser)
    parser.addoption("--eager-tasks", action="store_true", help="run the tests of asyncio with eager tasks")
    retries.add_option(parser)


def pytest_report_header() -> str:
    return f"server: {RELEASE}, {PROGRAM}"


pytest_collection_modifyitems = everywhere.keep_pairs


@pytest.fixture(scope="module", autouse=True)
def garbage_is_collected_cheaply() -> None:
    """What is alive before a file's tests is exempt: the full collections that some tests run are then cheap."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    retries.report(terminalreporter, config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker process of pytest-xdist starts no further test after the process that controls it has ended."""
    if hasattr(item.config, "workerinput") and os.getppid() != _parent:
        pytest.exit("the test run was killed")
    retries.refuse_model(item)


_parent = os.getppid()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Tests leave no process and no temporary folder, however they end."""
    with swept():
        yield


@pytest.fixture(scope="session")
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    return ("asyncio", {"loop_factory": eager_loop}) if request.config.getoption("eager_tasks") else "asyncio"


def eager_loop() -> asyncio.AbstractEventLoop:
    """An event loop that starts each task before it returns it, for `--eager-tasks`; from Python 3.12 on."""
    loop = asyncio.new_event_loop()
    factory: Any = asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]
    loop.set_task_factory(factory)
    return loop


# --- servers ---


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.fixture(scope="session")
def small_cluster() -> Iterator[Cluster]:
    """Two nodes, for tests that migrate a slot from one to the other. A cluster takes two seconds to start."""
    with Cluster(2) as started:
        yield started


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts a server for one test, which may restart it, fill it up, or choose its options."""
    with contextlib.ExitStack() as started:

        def begin(*options: str, port: int = 0) -> Server:
            return started.enter_context(Server(*options, port=port))

        yield begin


@pytest.fixture(scope="session")
def script_server() -> Iterator[Server]:
    """A server for tests that call scripts directly."""
    with Server() as started:
        yield started


@pytest.fixture
def faces(script_server: Server) -> Iterator[Faces]:
    """Faces that hear what scripts send to their listeners."""
    with contextlib.closing(Faces(script_server)) as opened:
        yield opened


@pytest.fixture
def stand(script_server: Server) -> Iterator[Stand]:
    """A queue on a test stand; its server is empty at the start of each test."""
    script_server.client.flushall()
    with contextlib.closing(Stand(script_server.client)) as made:
        yield made


# --- the app under test ---


@pytest.fixture
def face() -> str:
    """The face that `do` uses: `blocking` or `aio`. A test file overrides this fixture to run on both."""
    return "aio"


@pytest.fixture
def place() -> str:
    """The server as the app is given it: `valkey` (an address), `redis` (a client of redis-py) or `cluster`."""
    return "valkey"


@pytest.fixture
def deployment(place: str, request: pytest.FixtureRequest) -> Any:
    """The server, or the cluster."""
    return request.getfixturevalue("cluster" if place == "cluster" else "server")


@pytest.fixture
def nodes(deployment: Any) -> list[Any]:
    """A client for each primary."""
    return [node.client for node in getattr(deployment, "nodes", [deployment])]


@pytest.fixture
def raw(deployment: Any, nodes: list[Any]) -> Iterator[Any]:
    """A client for keys that the test reads or writes without the app."""
    if len(nodes) == 1:
        yield nodes[0]
    else:
        client = valkey.ValkeyCluster(host="127.0.0.1", port=deployment.nodes[0].port)
        yield client
        client.close()


class Apps:
    """Makes apps, each with its own prefix."""

    def __init__(self, deployment: Any, place: str) -> None:
        self._deployment = deployment
        self._place = place
        self.made: list[Penstock] = []
        self._clients: list[Any] = []

    def make(self, prefix: str = "", **settings: Any) -> Penstock:
        server: Any = self._deployment.address
        if self._place == "redis":
            server = redis.Redis(unix_socket_path=str(self._deployment.socket))
            self._clients.append(server)
        self.made.append(Penstock(server, prefix=prefix or f"t{next(_numbers)}", settings=Settings(**settings)))
        return self.made[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def apps(deployment: Any, place: str, nodes: list[Any], request: pytest.FixtureRequest) -> Iterator[Apps]:
    """Makes apps, and fails the test for what they left in the server. A blocking test closes them itself."""
    leaks_of_test(nodes, (), damaged=True)  # deletes what tests without an app left behind
    made = Apps(deployment, place)
    yield made
    made.close()
    damaged = request.node.get_closest_marker("damages") is not None
    assert leaks_of_test(nodes, {app.settings.prefix for app in made.made}, damaged=damaged) == []


MakeApp = Callable[..., Penstock]


@pytest.fixture
async def make_app(apps: Apps) -> AsyncIterator[MakeApp]:
    yield apps.make
    for app in apps.made:
        await app.aclose()


@pytest.fixture
def app(make_app: MakeApp) -> Penstock:
    return make_app()


Time = MovableClock


@pytest.fixture
def clock(app: Penstock) -> Time:
    return Time(app)


Do = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture
def do(face: str) -> Do:
    """`await do(queue.put, 1)` calls a verb with the face under test."""

    async def aio(verb: Any, *args: Any, **kwargs: Any) -> Any:
        return await verb.aio(*args, **kwargs)

    async def blocking(verb: Any, *args: Any, **kwargs: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(verb, *args, **kwargs))

    return aio if face == "aio" else blocking


async def until(condition: Callable[[], Any], within: float = 30.0) -> None:
    """Wait for a state that no wake-up announces. As patient as `eventually`."""
    deadline = Deadline(within)
    while not condition():
        assert not deadline.passed(), "it did not happen in time"
        await asyncio.sleep(0.005)


_OURS = {"evalsha", "eval", "ping", "ssubscribe", "sunsubscribe", "script|load"}


def commands(client: Any) -> int:
    """How many commands Penstock has sent to a server so far. A script that the server did not know yet counts once."""
    stats = client.info("commandstats", "errorstats")
    sent_again: int = stats.get("errorstat_NOSCRIPT", {"count": 0})["count"]
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in _OURS) - sent_again
