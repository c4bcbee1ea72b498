"""An election: one leader at a time, candidates in order of arrival, and observers that learn of each leader."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from penstock import ConfigurationError, Election, LeaseLost, Penstock
from penstock.errors import ElectionTimeout
from penstock.info import Leader
from penstock.locks.election import Observation
from penstock.locks.election_bindings import ElectionBindings
from tests.conftest import Apps, Do, MakeApp, until
from tests.locks.conftest import FrozenFace
from tests.servers import Server
from tests.speed import Deadline, scaled

one_place = pytest.mark.parametrize("place", ["valkey"])


@pytest.fixture
def election(app: Penstock) -> Election:
    return app.election("importer", value="http://one")


@pytest.fixture
def other(app: Penstock, make_app: MakeApp) -> Election:
    """The election as another process sees it."""
    return make_app(prefix=app.settings.prefix).election("importer", value="http://two")


async def until_waiting(election: Election, n: int) -> None:
    deadline = Deadline(30)
    while (await election.info.aio()).waiting != n:
        assert not deadline.passed(), "the number of candidates was not reached"
        await asyncio.sleep(0.005)


def observers(client: Any, election: Election) -> int:
    return sum(1 for face in client.zrange(election.bindings.declared[0] + "observers", 0, -1) if face)


# --- leading ---


async def test_one_leads_and_the_next_follows_when_it_resigns(election: Election, other: Election, do: Do):
    first = await do(election.campaign)
    first.check()
    waiting = asyncio.create_task(do(other.campaign))
    await until_waiting(election, 1)
    assert not waiting.done()
    began = time.monotonic()
    await do(first.resign)
    second = await waiting
    assert time.monotonic() - began < scaled(1)
    assert second.term > first.term > 0
    with pytest.raises(LeaseLost, match="election 'importer' was released"):
        first.check()
    await do(first.resign)  # may be repeated
    leader = await do(election.leader)
    assert (leader.value, leader.term) == ("http://two", second.term)
    await do(second.resign)
    assert await do(election.leader) is None


async def test_the_leader_is_known_to_all(election: Election, other: Election, do: Do):
    assert await do(other.leader) is None
    held = await do(election.campaign)
    leader = await do(other.leader)
    assert isinstance(leader, Leader)
    assert (leader.token, leader.term, leader.value) == (held.token, held.term, "http://one")
    assert leader.pid > 0
    assert 0 <= leader.age < 10
    assert 9 < leader.left <= 10
    waiting = asyncio.create_task(do(other.campaign))
    await until_waiting(election, 1)
    info = await do(election.info)
    assert (info.name, info.leader and info.leader.token, info.term) == ("importer", held.token, held.term)
    assert [one.pid for one in info.candidates] == [leader.pid]
    await do(held.resign)
    await do((await waiting).resign)
    info = await do(election.info)
    assert (info.leader, info.waiting, info.candidates) == (None, 0, ())
    assert info.term is not None
    assert info.term > held.term


async def test_candidates_are_elected_in_order_of_arrival(app: Penstock, election: Election, do: Do):
    held, order = await do(election.campaign), []

    async def campaign(n: int) -> None:
        leadership = await do(app.election("importer", value=str(n)).campaign)
        order.append(n)
        await do(leadership.resign)

    tasks = []
    for n in range(5):
        tasks.append(asyncio.create_task(campaign(n)))
        await until_waiting(election, n + 1)
    await do(held.resign)
    await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_a_campaign_has_a_limit(app: Penstock, make_app: MakeApp, election: Election, do: Do):
    held, elsewhere = await do(election.campaign), make_app(prefix=app.settings.prefix)
    began = time.monotonic()
    with pytest.raises(ElectionTimeout, match=r"election 'importer': another process led for all of 0\.2 s"):
        await do(elsewhere.election("importer", wait=0.2).campaign)
    assert 0.2 <= time.monotonic() - began < scaled(1)
    with pytest.raises(TimeoutError):
        await do(elsewhere.election("importer", wait=0).acquire)
    assert (await do(election.info)).waiting == 0
    await do(held.resign)


async def test_it_can_be_entered(election: Election, face: str):
    def enter() -> None:
        with election as leader:
            leader.check()
            assert leader.term > 0
            assert election.leader() is not None
        assert election.leader() is None

    async def aenter() -> None:
        async with election as leader:
            leader.check()
            assert await election.leader.aio() is not None
        assert await election.leader.aio() is None

    await (aenter() if face == "aio" else anyio.to_thread.run_sync(enter))


@one_place
async def test_a_cancelled_candidate_leaves_nothing(election: Election):
    held = await election.campaign.aio()
    waiting = asyncio.create_task(election.campaign.aio())
    await until_waiting(election, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await election.info.aio()).waiting == 0
    await held.resign.aio()


@one_place
async def test_a_campaign_cancelled_at_every_moment_leaves_no_leader(app: Penstock, election: Election, raw: Any):
    for delay in [0.0] * 5 + [n / 4000 for n in range(40)]:
        task = asyncio.create_task(election.campaign.aio())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().resign.aio()
        assert await election.leader.aio() is None


@one_place
async def test_terms_rise_though_the_last_one_was_forgotten(election: Election, raw: Any):
    first = await election.campaign.aio()
    await first.resign.aio()
    raw.delete(election.bindings.declared[0] + "term")
    second = await election.campaign.aio()
    assert second.term > first.term
    await second.resign.aio()


# --- losing ---


@one_place
async def test_a_leader_is_notified_before_its_lease_ends(app: Penstock, do: Do, raw: Any, deployment: Server):
    lost = threading.Event()
    election = app.election("importer", lease=3, on_loss=lambda _: lost.set())
    held = await do(election.campaign)
    assert 1.5 < held.remaining <= 2
    ends = raw.pexpiretime(election.bindings.declared[1]) / 1000
    deployment.freeze()  # no renewal succeeds from now on
    try:
        assert await anyio.to_thread.run_sync(held.lost.wait, 10)
        assert time.time() < ends - 0.5
        with pytest.raises(LeaseLost, match="election 'importer' was lost"):
            held.check()
    finally:
        deployment.thaw()
    await until(lost.is_set)
    with pytest.raises(LeaseLost):
        await do(held.resign)
    await until(lambda: raw.exists(election.bindings.declared[1]) == 0)


@one_place
async def test_the_notice_can_be_chosen(app: Penstock):
    for notice, remaining in ((0, 2.99), (2, 0.99), (None, 1.99)):
        held = await app.election("importer", lease=3, notice=notice).campaign.aio()
        assert remaining - 0.5 < held.remaining <= remaining
        await held.resign.aio()


@one_place
@pytest.mark.parametrize("notice", [None, 0, 2.4])
async def test_a_leadership_is_renewed(app: Penstock, do: Do, notice: float | None):
    """Also if the notice leaves only a fifth of the lease for the renewals."""
    held = await do(app.election("importer", lease=3, notice=notice).campaign)
    for _ in range(35):
        await asyncio.sleep(0.1)
        held.check()
    leader = await do(app.election("importer").leader)
    assert leader is not None
    assert leader.token == held.token
    assert held.lost.is_set() is False
    await do(held.resign)


@one_place
async def test_a_leadership_that_was_deleted_is_lost_and_reported(app: Penstock, do: Do, raw: Any):
    lost = threading.Event()
    election = app.election("importer", lease=0.6, on_loss=lambda _: lost.set())
    held = await do(election.campaign)
    raw.delete(election.bindings.declared[1])
    await until(lost.is_set)
    with pytest.raises(LeaseLost, match="the server no longer has it"):
        held.check()


@one_place
async def test_the_task_of_a_leader_can_be_cancelled(app: Penstock, raw: Any):
    election = app.election("importer", lease=0.6, cancel_on_loss=True)

    async def lead() -> None:
        async with election:
            raw.delete(election.bindings.declared[1])
            await asyncio.sleep(30)

    with pytest.raises(LeaseLost):
        await lead()


@one_place
async def test_after_the_death_of_a_leader_the_next_is_elected_when_its_lease_ends(
    app: Penstock, other: Election, do: Do
):
    dead = await do(app.election("importer", lease=1).campaign)
    dead.renewing = False
    began = time.monotonic()
    held = await do(other.campaign)
    assert 0.8 < time.monotonic() - began < scaled(2)
    assert held.term > dead.term
    assert dead.remaining == 0.0
    await do(held.resign)


@one_place
async def test_a_frozen_candidate_delays_the_next_by_two_seconds(
    election: Election, do: Do, deployment: Server, frozen_face: FrozenFace, app: Penstock
):
    held, bindings = await do(election.campaign), election.bindings
    frozen = bindings.request.pack("penstock/far/1/x", frozen_face(deployment, "f", bindings.declared[0]))
    await app._driver.aio.run(bindings.acquire(frozen, 0, join=True))
    waiting = asyncio.create_task(do(election.campaign))
    await until_waiting(election, 2)
    began = time.monotonic()
    await do(held.resign)
    assert await do(election.leader) is None  # it is reserved for the frozen one, which does not lead
    held = await waiting
    assert 1.8 < time.monotonic() - began < scaled(4)
    await do(held.resign)


# --- observing ---


class Observer:
    """Notes what it sees, in a thread or a task."""

    def __init__(self, election: Election, face: str) -> None:
        self.seen: list[str | None] = []
        self.task = asyncio.create_task(
            self._follow_aio(election.observe()) if face == "aio" else anyio.to_thread.run_sync(self._follow, election)
        )

    def _follow(self, election: Election) -> None:
        for leader in election.observe():
            if self._note(leader):
                return

    async def _follow_aio(self, leaders: Observation) -> None:
        async for leader in leaders:
            if self._note(leader):
                return

    def _note(self, leader: Leader | None) -> bool:
        self.seen.append(None if leader is None else leader.value)
        return leader is not None and leader.value == "end"


async def test_observers_see_every_leader(app: Penstock, election: Election, other: Election, face: str, do: Do):
    one, two = Observer(election, face), Observer(other, face)

    def saw(value: str) -> bool:
        return one.seen[-1] == two.seen[-1] == value

    await until(lambda: one.seen == two.seen == [None])
    for value in ("http://a", "http://b", "end"):
        held = await do(app.election("importer", value=value).campaign)
        await until(partial(saw, value))
        await do(held.resign)
        if value != "end":
            await until(lambda: one.seen[-1] is two.seen[-1] is None)
    await asyncio.gather(one.task, two.task)
    assert one.seen == two.seen == [None, "http://a", None, "http://b", None, "end"]


@one_place
async def test_a_change_of_leaders_is_no_time_without_a_leader(app: Penstock, election: Election, face: str, do: Do):
    held = await do(election.campaign)
    observer = Observer(election, face)
    await until(lambda: observer.seen == ["http://one"])
    waiting = asyncio.create_task(do(app.election("importer", value="end").campaign))
    await until_waiting(election, 1)
    await do(held.resign)
    held = await waiting
    await observer.task
    assert observer.seen == ["http://one", "end"]
    await do(held.resign)


@one_place
async def test_an_observer_notices_that_the_leader_has_died(app: Penstock, face: str, do: Do):
    held = await do(app.election("importer", lease=1, value="short").campaign)
    observer = Observer(app.election("importer"), face)
    await until(lambda: observer.seen == ["short"])
    held.renewing = False
    began = time.monotonic()
    await until(lambda: observer.seen == ["short", None])
    assert time.monotonic() - began < scaled(2)
    held = await do(app.election("importer", value="end").campaign)
    await observer.task
    await do(held.resign)


@one_place
async def test_idle_observers_of_a_face_look_once_for_each_lease_together(
    app: Penstock, make_app: MakeApp, do: Do, monkeypatch: pytest.MonkeyPatch
):
    looks = 0
    observe = ElectionBindings.observe

    def counted(bindings: ElectionBindings, address: str, ttl: float, known: str) -> Any:
        nonlocal looks
        looks += 1
        return observe(bindings, address, ttl, known)

    monkeypatch.setattr(ElectionBindings, "observe", counted)
    leading = await make_app(prefix=app.settings.prefix).election("importer", lease=1).campaign.aio()
    watching = [app.election("importer").observe() for _ in range(30)]
    firsts = [await do(one.fetch) for one in watching]
    assert {leader and leader.token for leader in firsts} == {leading.token}
    fetches = [asyncio.create_task(do(one.fetch)) for one in watching]
    await asyncio.sleep(1)
    began, before = time.monotonic(), looks
    await asyncio.sleep(4)
    # Each look finds that two thirds of a lease are left at least.
    assert 2 <= looks - before <= 2 * (time.monotonic() - began)
    leading.renewing = False  # as if it died: no message is sent
    assert await asyncio.wait_for(asyncio.gather(*fetches), scaled(5)) == [None] * len(watching)


@one_place
async def test_an_observation_has_a_time_out_of_its_own(election: Election, do: Do, raw: Any):
    seen = election.observe()
    assert await do(seen.fetch, 5) is None
    began = time.monotonic()
    assert await do(seen.fetch, 0.2) is None
    assert 0.2 <= time.monotonic() - began < scaled(1)
    held = await do(election.campaign)
    leader = await do(seen.fetch, 5)
    assert leader is not None
    assert leader.term == held.term
    await do(held.resign)


@one_place
async def test_a_cancelled_observer_leaves_nothing(election: Election, raw: Any):
    observer = Observer(election, "aio")
    await until(lambda: observer.seen == [None] and observers(raw, election) == 1)
    observer.task.cancel()
    await asyncio.wait([observer.task])
    assert observers(raw, election) == 0


@one_place
async def test_more_observers_than_one_call_wakes_all_see_the_leader(
    app: Penstock, apps: Apps, election: Election, raw: Any
):
    others = [apps.make(prefix=app.settings.prefix) for _ in range(150)]
    seeing = [Observer(other.election("importer"), "aio") for other in others]
    await until(lambda: observers(raw, election) == 150)
    began = time.monotonic()
    held = await app.election("importer", value="end").campaign.aio()
    await asyncio.gather(*(one.task for one in seeing))
    assert time.monotonic() - began < scaled(2)
    await held.resign.aio()
    await asyncio.gather(*(other.aclose() for other in others))


@one_place
async def test_an_observer_that_lost_its_connection_misses_no_leader(
    app: Penstock, election: Election, face: str, raw: Any, do: Do
):
    observer = Observer(election, face)
    await until(lambda: observer.seen == [None] and observers(raw, election) == 1)
    raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    held = await do(app.election("importer", value="end").campaign)
    await asyncio.wait_for(observer.task, scaled(3))
    await do(held.resign)


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lease": 0}, r"election\(lease=0\): seconds from 0.05 to a week"),
        ({"lease": "5"}, r"election\(lease='5'\)"),
        ({"lease": True}, r"election\(lease=True\)"),
        ({"lease": float("nan")}, r"election\(lease=nan\)"),
        ({"wait": -1}, r"election\(wait=-1\): seconds from 0, or None for ever"),
        ({"wait": True}, r"election\(wait=True\)"),
        ({"notice": -1}, r"election\(notice=-1\): seconds from 0 to 8, 0.8 of the lease"),
        ({"notice": 9}, r"election\(notice=9\)"),
        ({"notice": True}, r"election\(notice=True\)"),
        ({"notice": "1"}, r"election\(notice='1'\)"),
        ({"on_loss": 5}, r"election\(on_loss=5\): a function, or None"),
        ({"value": "x" * 1025}, r"election\(value='xxx.*\): a text of at most 1,024 bytes"),
        ({"value": b"x"}, r"election\(value=b'x'\)"),
        ({"value": 5}, r"election\(value=5\)"),
        ({"value": None}, r"election\(value=None\)"),
        ({"value": "\ud800"}, r"election\(value="),
    ],
)
async def test_bad_arguments_are_refused(options: Any, said: str):
    with pytest.raises(ValueError, match=said):
        Penstock("valkey://127.0.0.1:1/0").election("x", **options)


@pytest.mark.parametrize("name", ["", "a}b", "\ud800", "x" * 1025, b"bytes", 5, None])
async def test_bad_names_are_refused(name: Any):
    with pytest.raises(ConfigurationError, match="election name"):
        Penstock("valkey://127.0.0.1:1/0").election(name)


async def test_names_of_any_kind(app: Penstock, do: Do):
    for name in ("a:b", "a/b", "{a", "名前 😀", "new\nline", "nul\0", " ", "%*?[x]", "a" * 1024):
        held = await do(app.election(name, value=name).campaign)
        leader = await do(app.election(name).leader)
        assert leader is not None
        assert leader.value == name
        await do(held.resign)


async def test_a_full_server_lets_a_leader_renew_and_resign(start: Callable[..., Server], do: Do):
    server = start("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    app = Penstock(server.address)
    held = await do(app.election("x", lease=0.6).campaign)
    server.client.config_set("maxmemory", 1)
    await asyncio.sleep(1)
    held.check()
    await do(held.resign)
    server.client.config_set("maxmemory", 0)
    await app.aclose()
