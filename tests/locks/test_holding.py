"""How a holding ends: by its bound, by an operator, in a forked child, and what the owner learns of it."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread
import pytest

from penstock import Held, LeaseLost, LockTimeout, Penstock, Permit
from penstock.errors import SelfDeadlock
from tests.conftest import Apps, Do, MakeApp, commands, until
from tests.locks.test_lock import name as name  # noqa: PLC0414 - a fixture
from tests.locks.test_lock import waiting
from tests.speed import scaled

one_place = pytest.mark.parametrize("place", ["valkey"])
one_face = pytest.mark.parametrize("face", ["aio"])

Make = Callable[..., Any]


@pytest.fixture(params=["lock", "semaphore", "reader", "writer"])
def make(request: pytest.FixtureRequest, name: str) -> Make:
    """Makes something that one owner holds at a time: the second reader asks to write."""
    made = 0

    def of(app: Penstock, **options: Any) -> Any:
        nonlocal made
        made += 1
        match request.param:
            case "lock":
                return app.lock(name, **options)
            case "semaphore":
                return app.semaphore(name, limit=1, **options)
            case side:
                lock = app.read_write_lock(name, **options)
                return lock.read() if side == "reader" and made == 1 else lock.write()

    return of


# --- max_hold, renew=False, extend ---


@one_place
async def test_a_holding_ends_after_max_hold_whatever_its_owner_does(app: Penstock, do: Do, make: Make):
    losses: list[Held | Permit] = []
    began = time.monotonic()
    held = await do(make(app, lease=0.6, max_hold=1.5, on_loss=losses.append).acquire)
    second = asyncio.create_task(do(make(app, lease=10, wait=20).acquire))
    await asyncio.sleep(1.1)
    held.check()  # it was renewed
    got = await second
    assert 1.4 < time.monotonic() - began < scaled(2.5)
    assert held.remaining == 0
    with pytest.raises(LeaseLost, match=r"it was held for max_hold=1\.5 s"):
        held.check()
    await until(lambda: losses)
    with pytest.raises(LeaseLost, match="max_hold"):
        await do(held.release)
    got.check()
    await do(got.release)


@one_place
async def test_a_frozen_owner_holds_it_no_longer_than_max_hold(app: Penstock, make: Make):
    """The bound holds in the server too: a renewal that is sent late extends nothing beyond it."""
    lock = make(app, lease=30, max_hold=0.5)
    held = await lock.acquire.aio()
    held.renewing = False
    await asyncio.sleep(0.2)
    assert await held.extend.aio(30) <= 0.5
    held.ends_at = held.valid_until = float("inf")  # as if this host's clock did not move
    await asyncio.sleep(0.4)
    other = await make(app, lease=10, wait=2).acquire.aio()
    await other.release.aio()


@one_place
async def test_without_renewal_it_is_held_for_exactly_one_lease(app: Penstock, do: Do, make: Make, name: str):
    began = time.monotonic()
    held = await do(make(app, lease=1, renew=False).acquire)
    waits = asyncio.create_task(do(make(app, lease=10, wait=20).acquire))
    await asyncio.sleep(0.8)
    held.check()
    with pytest.raises(Exception, match="within 0 s"):
        await do(make(app, lease=10, wait=0).acquire)
    got = await waits
    assert 1 <= time.monotonic() - began < scaled(2)
    with pytest.raises(LeaseLost, match="its lease of 1 s is over, and renew=False"):
        held.check()
    assert held.lost.wait(0) or await asyncio.to_thread(held.lost.wait, scaled(2))
    await do(got.release)


@one_place
async def test_a_lease_that_is_not_renewed_outlives_its_object(app: Penstock, raw: Any, name: str):
    """For instance to do something at most once in a minute."""
    await app.lock(name, lease=0.8, renew=False).acquire.aio()
    await asyncio.sleep(0.4)
    with pytest.raises(LockTimeout):
        await app.lock(name, lease=1, wait=0).acquire.aio()
    await asyncio.sleep(0.5)
    await (await app.lock(name, lease=1, wait=0).acquire.aio()).release.aio()


@one_place
async def test_extend_lengthens_a_lease_and_never_shortens_it(app: Penstock, do: Do, make: Make):
    held = await do(make(app, lease=0.6, renew=False).acquire)
    assert 1.9 < await do(held.extend, 2) <= 2
    assert 1.5 < await do(held.extend, 0.1) <= 2
    await asyncio.sleep(1)
    held.check()
    await do(held.release)
    with pytest.raises(LeaseLost, match="was released"):
        await do(held.extend, 1)


@one_place
async def test_renewals_do_not_shorten_what_was_extended(app: Penstock, do: Do, make: Make):
    held = await do(make(app, lease=0.3).acquire)
    await do(held.extend, 30)
    await asyncio.sleep(0.5)
    assert held.remaining > 25
    await do(held.release)


@one_place
async def test_extend_reports_a_loss(app: Penstock, name: str, raw: Any):
    held = await app.lock(name, lease=30).acquire.aio()
    raw.delete(name)
    with pytest.raises(LeaseLost, match="the server no longer has it"):
        await held.extend.aio(10)
    assert held.lost.is_set()


# --- an operator breaks it ---


class Kind(NamedTuple):
    """Something that a process holds, and that an operator can break.

    first, next  what acquires it for the first holder, and for one that has to wait
    whole        what `break_` and `info` are called of
    """

    first: Callable[..., Any]
    next: Callable[..., Any]
    whole: Callable[[Penstock], Any]


@pytest.fixture(params=["lock", "semaphore", "reader", "writer", "election"])
def kind(request: pytest.FixtureRequest, name: str) -> Kind:
    match request.param:
        case "lock":
            whole: Any = lambda app, **options: app.lock(f"{{{name}}}", **options)  # noqa: E731 - one of five forms
        case "semaphore":
            whole = lambda app, **options: app.semaphore(name, limit=1, **options)  # noqa: E731
        case "election":
            whole = lambda app, **options: app.election(name, **options)  # noqa: E731
        case side:

            def first(app: Penstock, **options: Any) -> Any:
                lock = app.read_write_lock(name, **options)
                return lock.read() if side == "reader" else lock.write()

            return Kind(
                first,
                lambda app, **options: app.read_write_lock(name, **options).write(),
                lambda app: app.read_write_lock(name, lease=10),
            )
    return Kind(whole, whole, partial(whole, lease=10))


def fence_of(held: Any) -> int:
    """The fence or term of a holder; 0 for one that has none."""
    return int(held._fence)


async def test_what_is_broken_goes_to_the_first_waiter_and_its_holder_is_notified(
    app: Penstock, make_app: MakeApp, do: Do, kind: Kind
):
    losses: list[Any] = []
    holder = make_app(app.settings.prefix)
    held = await asyncio.create_task(do(kind.first(holder, lease=600, on_loss=losses.append).acquire))
    waits = asyncio.create_task(do(kind.next(app, lease=10).acquire))
    await waiting(kind.whole(app))
    await asyncio.sleep(1.6)  # the holder's address is known in the server from its second second on
    began = time.monotonic()
    (broken,) = await do(kind.whole(app).break_, "it hangs since noon")
    assert (broken.token, broken.pid) == (held.token, os.getpid())
    got = await waits
    await until(lambda: losses)
    assert time.monotonic() - began < scaled(1)
    assert fence_of(got) >= fence_of(held)
    assert (fence_of(got) == 0) or fence_of(got) > fence_of(held)
    assert held.lost.is_set()
    with pytest.raises(LeaseLost, match=r"an operator broke it \(it hangs since noon\)"):
        held.check()
    with pytest.raises(LeaseLost, match="it hangs since noon"):
        await do(held.release)
    got.check()
    await do(got.release)
    assert await do(kind.whole(app).break_, "again") == []


@one_place
async def test_what_is_held_for_long_is_kept_and_a_break_is_still_noticed(
    app: Penstock, make_app: MakeApp, do: Do, kind: Kind, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.core.notices._SWEEP_INTERVAL", 0.2)
    held = await do(kind.first(make_app(app.settings.prefix), lease=600).acquire)
    await asyncio.sleep(2.5)  # several intervals after its address is known
    held.check()
    await do(kind.whole(app).break_, "why")
    await until(held.lost.is_set, scaled(1))
    with pytest.raises(LeaseLost, match=r"broke it \(why\)"):
        held.check()


@one_place
@pytest.mark.parametrize("way", ["renewal", "release", "extend"])
async def test_a_holder_that_was_not_notified_finds_out(app: Penstock, do: Do, kind: Kind, way: str):
    held = await do(kind.first(app, lease=600).acquire)
    await kind.whole(app).break_.aio("why")
    if way == "renewal":
        await until(held.lost.is_set, 5)
    else:
        with pytest.raises(LeaseLost, match=r"broke it \(why\)"):
            await (do(held.extend, 5) if way == "extend" else do(held.release))
    with pytest.raises(LeaseLost, match="was released" if way == "release" else r"broke it \(why\)"):
        held.check()


@one_place
async def test_a_transaction_under_a_lock_that_was_broken_writes_nothing(app: Penstock, do: Do, name: str):
    held = await do(app.lock(f"{{{name}}}", lease=600).acquire)
    await app.lock(f"{{{name}}}").break_.aio("why")
    fence = (await app.lock(f"{{{name}}}").info.aio()).fence
    assert fence is not None
    assert fence > held.fence
    with pytest.raises(LeaseLost):
        await do(held.transaction().set(f"{{{name}}}:x", 1).commit)


@one_place
async def test_a_break_that_is_sent_twice_takes_nothing_from_the_next_owner(
    app: Penstock, make_app: MakeApp, do: Do, kind: Kind
):
    held = await asyncio.create_task(do(kind.first(make_app(app.settings.prefix), lease=600).acquire))
    waits = asyncio.create_task(do(kind.next(app, lease=10).acquire))
    await waiting(kind.whole(app))
    (part,) = kind.whole(app).breakable_parts()
    call = part.end_holding(held.token, "why")
    for _ in range(2):
        assert (await app._driver.aio.run(call)).ended
    got = await waits
    await do(got.extend, 5)
    await do(got.release)
    with pytest.raises(LeaseLost, match="why"):
        await do(held.release)


@one_place
async def test_one_of_several_holders_is_broken(app: Penstock, do: Do, name: str):
    """The permits of the others, and their number, stay as they are."""
    one, two = [await do(app.semaphore(name, limit=5, permits=n, lease=600).acquire) for n in (2, 3)]
    three = asyncio.create_task(do(app.semaphore(name, limit=5, permits=2, lease=60).acquire))
    await waiting(app.semaphore(name, limit=5, lease=10))
    with pytest.raises(ValueError, match=r"break_\(token=7\)"):
        app.semaphore(name, limit=5, lease=10).break_.__wrapped__(app.semaphore(name, limit=5, lease=10), token=7)
    assert await do(app.semaphore(name, limit=5, lease=10).break_, token="unknown") == []
    (broken,) = await do(app.semaphore(name, limit=5, lease=10).break_, token=one.token)
    assert (broken.token, broken.permits) == (one.token, 2)
    await do((await three).release)
    await do(two.release)
    assert (await app.semaphore(name, limit=5, lease=10).info.aio()).held == 0


@one_place
@one_face
async def test_every_holder_of_a_large_semaphore_is_broken(app: Penstock, do: Do, name: str, raw: Any):
    """Also those whose leases end in the same millisecond."""
    semaphore = app.semaphore(name, limit=10_000, lease=600)
    until_ = 1000 * int(raw.time()[0]) + 300_000
    permits = {f"penstock/elsewhere/1/{n}/{i}": until_ + n // 3000 for n in range(3500) for i in (1, 2)}
    raw.zadd(semaphore.bindings.declared[1], permits)
    (one,) = await do(semaphore.break_, token="penstock/elsewhere/1/3499")
    assert one.permits == 2
    before = commands(raw)
    assert len(await do(semaphore.break_, "why")) == 3499
    assert commands(raw) - before <= 3499 + 7 + 4  # one for each holder and each 1000 permits; two scripts are loaded
    assert raw.exists(semaphore.bindings.declared[1]) == 0


@one_place
async def test_one_call_hands_over_a_bounded_number_of_permits(app: Penstock, name: str, raw: Any):
    """Waiters that are served ask for the next ones to be served."""
    semaphore = app.semaphore(name, limit=1000, permits=500, lease=600)
    held = await app.semaphore(name, limit=1000, permits=1000, lease=600).acquire.aio()
    key = semaphore.bindings.declared[0]
    waits = [asyncio.create_task(semaphore.acquire.aio()) for _ in range(8)]
    await until(lambda: raw.zcard(key + "waiters") == 8)
    with raw.pipeline() as together:  # no waiter takes its permits in between
        together.set(key + "limit", 10_000)
        release = semaphore.bindings.scripts["set_limit"]
        together.eval(release.source, 2, *semaphore.bindings.declared, 10_000)
        together.zcard(semaphore.bindings.declared[1])
        assert together.execute()[-1] == 2000
    for got in await asyncio.gather(*waits):
        await got.release.aio()
    await held.release.aio()


@one_place
async def test_all_readers_are_broken_and_a_later_one_is_not(app: Penstock, do: Do, name: str):
    lock = app.read_write_lock(name, lease=600)
    readers = [await do(lock.read().acquire) for _ in range(120)]
    assert len(await do(lock.break_, "why")) == 120
    await do((await do(lock.write().acquire)).release)
    for reader in readers[::40]:
        with pytest.raises(LeaseLost, match="why"):
            await do(reader.release)


@one_place
async def test_observers_see_that_a_leadership_was_broken(app: Penstock, do: Do, name: str):
    leads = await do(app.election(name, lease=600).acquire)
    seen = app.election(name).observe()
    first = await seen.fetch.aio()
    assert first is not None
    assert first.token == leads.token
    change = asyncio.create_task(seen.fetch.aio(scaled(5)))
    await asyncio.sleep(0.2)
    await do(app.election(name).break_)
    assert await change is None


@one_place
async def test_what_is_kept_of_holders_that_are_gone_is_removed(app: Penstock, do: Do, name: str, raw: Any):
    """The address of a holder that died is forgotten with its permit, and of one that released it at once."""
    semaphore = app.semaphore(name, limit=2, lease=600)
    notices = semaphore.bindings.declared[0] + "notices"
    held = await do(semaphore.acquire)
    await until(lambda: raw.hlen(notices) == 1, 5)
    times = raw.pipeline()  # both at the same moment
    times.pttl(notices)
    times.pttl(semaphore.bindings.declared[1])
    of_notices, of_holders = times.execute()
    assert 0 < of_notices <= of_holders
    raw.hset(notices, "penstock/elsewhere/1/x", "penstock:wake:gone/1")
    raw.zadd(semaphore.bindings.declared[1], {"penstock/elsewhere/1/x/1": 5})
    await do((await do(semaphore.acquire)).release)
    assert raw.hkeys(notices) == [held.token.encode()]
    await do(held.release)
    assert raw.exists(notices) == 0


@one_place
async def test_the_reasons_of_breaks_do_not_accumulate(app: Penstock, do: Do, name: str, raw: Any):
    lock = app.lock(name, lease=600)
    broken = lock.bindings.declared[0] + "broken"
    raw.hset(broken, mapping={str(n): "old" for n in range(1000)})
    held = await do(lock.acquire)
    await do(lock.break_, "new")
    assert raw.hgetall(broken) == {held.token.encode(): b"new"}
    assert 0 < raw.ttl(broken) <= 3600


@one_place
async def test_breaking_reaches_the_last_of_many_dead_waiters(app: Penstock, name: str, raw: Any):
    lock = app.lock(name, lease=10)
    raw.set(name, "penstock/elsewhere/1/x", px=60000)
    for n in range(700):
        dead = lock.bindings.request.pack(f"penstock/elsewhere/1/{n}", f"penstock:wake:gone{n}/1")
        raw.zadd(lock.bindings.declared[0] + "waiters", {dead: n})
    last = asyncio.create_task(lock.acquire.aio())
    await until(
        lambda: (
            raw.zscore(lock.bindings.declared[0] + "waiters", "x") is None
            and raw.zcard(lock.bindings.declared[0] + "waiters") > 0
        )
    )
    await asyncio.sleep(0.1)
    await lock.break_.aio()
    await (await asyncio.wait_for(last, scaled(2))).release.aio()


@one_place
async def test_a_lock_of_another_library_can_be_broken(app: Penstock, do: Do, name: str, raw: Any):
    raw.set(name, "theirs", px=60000)
    (owner,) = await do(app.lock(name).break_)
    assert (owner.host, owner.pid) == ("", 0)
    assert raw.get(name) is None


@one_place
@pytest.mark.parametrize("reason", [7, None, b"x", "x" * 501])
async def test_a_bad_reason_is_refused(app: Penstock, name: str, reason: Any):
    with pytest.raises(ValueError, match=r"break_\(reason=.*: a text of at most 500"):
        app.lock(name).break_.__wrapped__(app.lock(name), reason)


@one_place
async def test_holding_costs_one_more_command_in_the_first_second(app: Penstock, name: str, nodes: list[Any]):
    await app.lock(name, lease=600).info.aio()
    async with app.lock(name, lease=600):
        sent = sum(map(commands, nodes))
        await asyncio.sleep(3)
        assert sum(map(commands, nodes)) - sent <= 3  # a renewal, which needs EVAL at first, and the subscription


# --- a thread that waits for itself ---


@one_place
async def test_a_thread_or_task_that_waits_for_itself_gets_an_error_at_once(app: Penstock, make: Make, face: str):
    def block() -> None:
        with make(app, lease=10):
            began = time.monotonic()
            with pytest.raises(SelfDeadlock, match="this thread holds it already"):
                make(app, lease=10).acquire()
            with pytest.raises(SelfDeadlock), make(app, lease=10, wait=60):
                pass
            assert time.monotonic() - began < scaled(1)
            with pytest.raises(TimeoutError):
                make(app, lease=10, wait=0).acquire()
        with make(app, lease=10):
            pass

    async def wait() -> None:
        async with make(app, lease=10):
            with pytest.raises(SelfDeadlock, match="this task holds it already"):
                async with make(app, lease=10):
                    pass
            other = asyncio.create_task(make(app, lease=10).acquire.aio())
            await asyncio.sleep(0.05)
            assert not other.done()
        await (await other).release.aio()

    if face == "blocking":
        thread = threading.Thread(target=block)
        thread.start()
        await asyncio.to_thread(thread.join)
    else:
        await wait()


@one_place
async def test_a_semaphore_with_room_for_both_is_no_deadlock(app: Penstock, raw: Any):
    mine = await app.semaphore("x", limit=3, permits=2).acquire.aio()
    other = await asyncio.create_task(app.semaphore("x", limit=3).acquire.aio())
    waits = asyncio.create_task(app.semaphore("x", limit=3).acquire.aio())
    asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, other.release.aio())
    third = await app.semaphore("x", limit=3, wait=10).acquire.aio()
    with pytest.raises(SelfDeadlock):
        await app.semaphore("x", limit=3, permits=2).acquire.aio()
    await third.release.aio()
    await (await waits).release.aio()
    await mine.release.aio()


@one_place
async def test_waiting_for_a_lease_that_ends_by_itself_is_no_deadlock(app: Penstock, name: str):
    first = await app.lock(name, lease=0.5, renew=False).acquire.aio()
    second = await app.lock(name, lease=1, wait=5).acquire.aio()
    assert first.fence < second.fence
    await second.release.aio()


# --- a forked child ---


def in_child(work: Callable[[], object]) -> str:
    """Run `work` in a forked child. Returns the name and the text of its error, or its result."""
    inlet, outlet = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(outlet, said.encode())
        os._exit(0)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as found:
        said = found.read().decode()
    os.waitpid(pid, 0)
    return said


def test_every_verb_of_a_holding_refuses_in_a_forked_child(apps: Apps, raw: Any, name: str):
    with apps.make() as app:
        held = app.lock(f"{{{name}}}", lease=30, reentrant=True).acquire()
        permit = app.semaphore(name, limit=2).acquire()
        before = held.transaction().set(f"{{{name}}}:x", 1)
        refused: list[Callable[[], object]] = [
            held.check,
            permit.check,
            held.moment,
            permit.moment,
            lambda: held.extend(10),
            lambda: permit.extend(10),
            held.transaction,
            before.commit,
        ]
        for verb in refused:
            assert (
                f"LeaseLost: lock '{{{name}}}' is held by process {os.getpid()}, from which" in (said := in_child(verb))
                or f"semaphore '{name}' is held by process {os.getpid()}" in said
            ), said
        assert in_child(lambda: (held.remaining, permit.remaining)) == "(0.0, 0.0)"
        assert in_child(lambda: (held.release(), permit.release())) == "(None, None)"
        said = in_child(lambda: app.lock(f"{{{name}}}", lease=30, reentrant=True, wait=0).acquire())
        assert said.startswith("LockTimeout"), said
        held.check()
        permit.check()
        before.commit()
        permit.release()
        held.release()
        raw.delete(f"{{{name}}}:x")


# --- bad input ---

NOT_SECONDS = ["5", None, True, float("nan"), float("inf"), -1, 10**9, [1], b"5"]


@pytest.mark.parametrize("value", [*NOT_SECONDS, pytest.param(10**5000, id="huge")])
def test_a_bad_time_gets_one_clear_error(value: Any):
    app = Penstock("valkey://127.0.0.1:1/0")
    makes: dict[str, Callable[..., object]] = {
        "lock": lambda **options: app.lock("x", **options),
        "read_write_lock": lambda **options: app.read_write_lock("x", **{"lease": 5, **options}).read(),
        "semaphore": lambda **options: app.semaphore("x", limit=1, **options),
    }
    for kind, made in makes.items():
        for option in ("lease", "wait", "max_hold"):
            if value is None and (option != "lease" or kind == "semaphore"):
                continue
            with pytest.raises(ValueError, match=rf"^{kind}\({option}=.*: seconds from 0"):
                made(**{option: value})
    if value is not True:
        with pytest.raises(ValueError, match=r"lock\(renew=.*: True, or False"):
            app.lock("x", renew=value)
    if value is not None:
        with pytest.raises(ValueError, match=r"lock\(on_loss=.*: a function, or None"):
            app.lock("x", on_loss=value)


@pytest.mark.parametrize("bad", [b"bytes", 7, None, True, ["a", b"b"], [1], object()])
def test_a_name_that_is_no_text_gets_one_clear_error(bad: Any):
    app = Penstock("valkey://127.0.0.1:1/0")
    with pytest.raises(ValueError, match=r"lock name .*: a text \(str\), not "):
        app.lock(bad)
    if not isinstance(bad, list):
        with pytest.raises(ValueError, match=r"semaphore name .*: a text \(str\), not "):
            app.semaphore(bad, limit=1)
        with pytest.raises(ValueError, match=r"queue name .*: a text \(str\), not "):
            app.queue(bad)
        with pytest.raises(ValueError, match=r"mailbox name .*: a text \(str\), not "):
            app.mailbox(bad)
        with pytest.raises(ValueError, match=r"directory name .*: a text \(str\), not "):
            app.directory(bad)
        with pytest.raises(ValueError, match=r"key name .*: a text \(str\), not "):
            app.transaction().set(bad, 1)


@pytest.mark.parametrize("bad", ["1", 1.0, True, None, 0, -1, float("nan"), pytest.param(10**5000, id="huge")])
def test_a_bad_number_of_permits_gets_one_clear_error(bad: Any):
    app = Penstock("valkey://127.0.0.1:1/0")
    with pytest.raises(ValueError, match=r"semaphore\(limit=.*: 1 or more permits"):
        app.semaphore("x", limit=bad)
    with pytest.raises(ValueError, match=r"semaphore\(permits=.*, limit=3\): from 1 to the limit"):
        app.semaphore("x", limit=3, permits=bad)
    if bad is not None:
        with pytest.raises(ValueError, match=r"set_limit\(limit=.*: 1 or more permits"):
            app.semaphore("x", limit=3).set_limit.__wrapped__(app.semaphore("x", limit=3), bad)


def _held_by(app: Penstock, kind: str, **options: Any) -> Any:
    if kind == "lock":
        return app.lock("closed", **options)
    if kind == "locks":
        return app.lock(["{closed}:1", "{closed}:2"], **options)
    if kind == "reentrant":
        return app.lock("closed", reentrant=True, **options)
    if kind == "semaphore":
        return app.semaphore("closed", limit=3, permits=2, **options)
    if kind == "election":
        return app.election("closed", **options)
    both = app.read_write_lock("closed", **options)
    return both.read() if kind == "read" else both.write()


@pytest.mark.parametrize("kind", ["lock", "locks", "reentrant", "semaphore", "election", "read", "write"])
@pytest.mark.parametrize("place", ["valkey"])
async def test_a_holder_learns_that_the_app_was_closed(make_app: MakeApp, do: Do, kind: str, face: str):
    app, lost = make_app(), list[Any]()
    one = _held_by(app, kind, lease=0.5, on_loss=lost.append)
    held = await do(one.acquire)
    if face == "aio":
        await app.aclose()
    else:
        await anyio.to_thread.run_sync(app.close)
    assert held.lost.is_set()
    with pytest.raises(LeaseLost, match=r"was lost.*: the app was closed, so it is not renewed any longer"):
        held.check()
    with pytest.raises(LeaseLost, match="the app was closed"):
        await do(held.release)
    await until(lambda: lost == [held])
    await asyncio.sleep(0.6)  # its lease runs out
    await do((await do(one.acquire)).release)  # the app connects again
    await app.aclose()


@pytest.mark.parametrize("place", ["valkey"])
async def test_a_block_whose_app_was_closed_ends_with_the_loss(make_app: MakeApp, face: str):
    app = make_app()

    async def close_in_a_block() -> None:
        async with app.lock("closed", lease=0.5):
            await app.aclose()

    def close_in_a_plain_block() -> None:
        with app.lock("closed", lease=0.5):
            app.close()

    with pytest.raises(LeaseLost, match="the app was closed"):
        await (close_in_a_block() if face == "aio" else anyio.to_thread.run_sync(close_in_a_plain_block))
    await asyncio.sleep(0.6)  # its lease runs out
    await app.aclose()
