"""Why a job does not run: each reason as a real state, on both faces."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Concurrency, Drop, Penstock, Rate, Retry, Status, wait_for
from penstock.errors import JobNotFound
from penstock.info import Explanation
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.claims import Registration, Settlement
from penstock.jobs.release import Release
from penstock.ops.inspect import Inspector
from penstock.testing import MovableClock
from tests.conftest import Do, Time
from tests.everywhere import face  # noqa: F401 - a fixture
from tests.worker.in_process import run_burst


@pytest.fixture
def place() -> str:
    return "valkey"


class FakeWorker:
    """A registered worker of a queue, whose turns the test takes one by one."""

    def __init__(self, app: Penstock, queue: str = "q", name: str = "web:7") -> None:
        self.app = app
        self.bindings: QueueBindings = app.queue(queue).first.bindings
        self.name = name
        self.number = 0
        self.release = Release()

    async def turn(self, want: int = 0, *settlements: Settlement, lease: float = 60.0) -> list[Any]:
        self.number += 1
        registration = Registration(self.name, 4, release=self.release) if self.number == 1 else None
        call = self.bindings.turn(
            "w", self.number, lease=lease, want=want, settlements=settlements, registration=registration
        )
        reply = await self.app._driver.aio.run(call)
        return reply.claims

    async def end(self) -> None:
        """End its life, so that it leaves no key."""
        left = 1
        while left:
            left, _, _ = await self.app._driver.aio.run(self.bindings.abandon("w"))


@pytest.fixture
async def worker(app: Penstock) -> Any:
    made = FakeWorker(app)
    yield made
    await made.end()


Ask = Callable[[Any], Any]


@pytest.fixture
def ask(do: Do) -> Ask:
    async def why(job: Any) -> Explanation:
        found: Explanation = await do(job.why)
        assert found.id == job.id
        assert await do(job.status) in (found.status, Status.UNKNOWN)
        assert found.sentence
        return found

    return why


async def test_no_live_worker_serves_the_queue(app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock):
    job = await app.queue("q").put.aio(1)
    found = await ask(job)
    assert (found.kind, found.workers, found.position) == ("no_worker", 0, 0)
    assert found.sentence == "no live worker serves queue q: start one with `penstock worker`"
    await worker.turn(lease=10)
    assert (await ask(job)).kind == "behind"
    clock.advance(11)
    assert (await ask(job)).kind == "no_worker"


async def test_workers_that_were_asked_to_be_quiet_do_not_serve_the_queue(app: Penstock, ask: Ask, worker: FakeWorker):
    await worker.turn()
    job = await app.queue("q").put.aio(1)
    assert (await ask(job)).kind == "behind"
    await Inspector(app).workers.quiet.aio("web:7")
    found = await ask(job)
    assert (found.kind, found.workers) == ("no_worker", 0)
    assert found.sentence == (
        "every live worker of queue q was asked to claim no more jobs: start another one with `penstock worker`"
    )


async def test_a_program_that_waits_to_claim_counts_as_one_that_serves_the_queue(app: Penstock, ask: Ask):
    queue = app.queue("q")
    await queue.put_many.aio([1, 2])
    (held,) = await queue.claim.aio(1)
    (other,) = (await queue.jobs(state="ready").page.aio()).jobs
    assert (await ask(queue.job(other.id))).kind == "behind"
    await held.complete.aio()


async def test_a_pause_of_the_queue_says_its_author(app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock):
    queue = app.queue("q")
    job = await queue.put.aio(1)
    await queue.pause.aio(by="ada@desk")
    clock.advance(180)
    found = await ask(job)
    assert (found.kind, found.paused, found.by, found.since) == ("paused", "queue", "ada@desk", clock.now - 180)
    assert found.sentence == "queue q was paused 3 min ago by ada@desk: to continue, `penstock queue resume q`"
    assert found.further == ("no live worker serves queue q: start one with `penstock worker`",)


@pytest.mark.parametrize("before", [True, False], ids=["paused before", "paused after"])
async def test_a_pause_of_a_tenant_holds_a_ready_and_a_parked_job(
    app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock, before: bool
):
    queue = app.queue("q")
    if before:
        await queue.pause.aio(tenant="acme", by="ada")
    job = await queue.put.aio(1, tenant="acme")
    await queue.pause.aio(tenant="acme", by="ada")
    await worker.turn()
    found = await ask(job)
    assert found.status == (Status.PARKED if before else Status.READY)
    assert (found.kind, found.paused, found.by) == ("paused", "tenant acme", "ada")
    assert found.sentence == (
        "tenant acme of queue q was paused 0.0 s ago by ada: to continue, `penstock queue resume q --tenant acme`"
    )


async def test_a_job_is_parked_at_a_limit(app: Penstock, ask: Ask, worker: FakeWorker):
    @app.task(queue="q", limit=Concurrency(1, key="{account}", name="sync"))
    async def sync(account: str) -> None: ...

    jobs = [await sync.enqueue.aio("a") for _ in range(4)]
    await worker.turn(1)
    found = await ask(jobs[3])
    assert (found.kind, found.limit, found.limit_key) == ("limit", "sync", "a")
    assert (found.used, found.most, found.position) == (1, 1, 2)
    assert found.sentence == (
        "it is parked at limit sync, key a: 1 of 1 places are used; the next place comes when one of those ends; "
        "about 2 parked jobs before it"
    )


async def test_a_rate_says_when_it_has_room_again(app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock):
    @app.task(queue="q", limit=Rate(1, per=60, name="crm"))
    async def sync() -> None: ...

    jobs = [await sync.enqueue.aio() for _ in range(3)]
    await worker.turn(1)
    clock.advance(15)
    found = await ask(jobs[2])
    assert (found.kind, found.limit, found.position) == ("limit", "crm", 1)
    assert found.next_in == pytest.approx(45, abs=1)
    assert found.eta == pytest.approx(105, abs=1)


async def test_others_go_first_by_priority_and_by_the_turns_of_tenants(app: Penstock, ask: Ask, worker: FakeWorker):
    queue = app.queue("q")
    await worker.turn()
    await queue.put_many.aio(range(1000), tenant="noisy")
    few = await queue.put_many.aio(range(3), tenant="few")
    await queue.put_many.aio(range(5), priority=0)
    last = await ask(few[2])
    assert last.kind == "behind"
    order = []
    while few[2].id not in order:
        claims = await worker.turn(1)
        order += [f"q:{claim.id}" for claim in claims]
        await worker.turn(0, *(Settlement(claim.token) for claim in claims))
    assert last.position == pytest.approx(len(order) - 1, abs=1)
    assert "5 more urgent, 2 of its tenant" in last.sentence
    await queue.purge.aio()


@pytest.mark.parametrize("chosen", ["light", "heavy", "single"])
async def test_the_position_counts_weights(app: Penstock, ask: Ask, worker: FakeWorker, chosen: str):
    queue = app.queue("q")
    await worker.turn()
    await queue.tenant("heavy").weigh.aio(3)
    jobs = {name: await queue.put_many.aio(range(n), tenant=name) for name, n in (("heavy", 60), ("light", 20))}
    jobs["single"] = await queue.put_many.aio([1], tenant="single")
    job = jobs[chosen][-1 if chosen == "single" else 9]
    found = await ask(job)
    order: list[str] = []
    while job.id not in order:
        order += [f"q:{claim.id}" for claim in await worker.turn(1)]
    assert found.position == pytest.approx(len(order) - 1, abs=3)
    await worker.end()
    await queue.purge.aio()


async def test_the_rate_of_the_last_minutes_makes_a_time(
    app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock
):
    queue = app.queue("q")
    jobs = await queue.put_many.aio(range(200))
    for _ in range(4):
        claims = await worker.turn(20)
        await worker.turn(0, *(Settlement(claim.token) for claim in claims))
        clock.advance(10)
    await worker.turn()
    found = await ask(jobs[-1])
    assert found.position == 119
    assert found.eta == pytest.approx(119 / 2, rel=0.35)
    assert (await ask(jobs[80])).sentence == "it is next: a worker claims it as soon as one is free"
    await queue.purge.aio()


async def test_a_delayed_job_says_when_it_is_due(app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock):
    job = await app.queue("q").put.aio(1, delay=600)
    found = await ask(job)
    assert (found.kind, found.until) == ("delayed", clock.now + 600)
    assert found.sentence.startswith("it is due in 10 min, ")
    assert found.further == ("no live worker serves queue q: start one with `penstock worker`",)


async def test_a_failed_run_is_tried_again(app: Penstock, ask: Ask, worker: FakeWorker):
    job = await app.queue("q").put.aio(1)
    (claim,) = await worker.turn(1)
    why = b'{"reason":"ValueError: broken"}'
    await worker.turn(0, Settlement(claim.token, why, "retry", 30.0))
    found = await ask(job)
    assert found.kind == "retry"
    assert found.sentence.startswith("run 1 of it failed (ValueError: broken); it is tried again in 30 s")


async def test_no_worker_knows_the_task(app: Penstock, ask: Ask, worker: FakeWorker):
    @app.task(queue="q")
    async def send() -> None: ...

    job = await send.enqueue.aio()
    (claim,) = await worker.turn(1)
    why = b'{"reason":"no task send here"}'
    await worker.turn(0, Settlement(claim.token, why, "unknown", 5.0, 3600.0))
    found = await ask(job)
    assert found.kind == "unknown_task"
    assert found.sentence.startswith("the last worker that met it does not know its task 'send' (no task send here)")


async def test_no_release_with_a_live_worker_has_the_task(app: Penstock, ask: Ask, make_app: Callable[..., Penstock]):
    @app.task(queue="q")
    async def send() -> None: ...

    job = await send.enqueue.aio()
    other = make_app(app.settings.prefix)

    @other.task(queue="q")
    async def charge() -> None: ...

    worker = FakeWorker(other)
    worker.release = Release("2", "c0de", ("charge",))
    await worker.turn()
    found = await ask(job)
    assert found.kind == "unknown_task"
    assert found.sentence.startswith("no live worker of queue q knows its task 'send'")
    assert (await ask(await charge.enqueue.aio())).kind == "behind"
    await worker.end()
    await app.queue("q").purge.aio()


async def test_a_durable_job_waits_for_a_signal(app: Penstock, ask: Ask):
    @app.task(queue="q")
    async def approve() -> None:
        await wait_for("approved", timeout=86400)

    @app.task(queue="q")
    async def wait() -> None:
        await wait_for("approved")

    jobs = [await task.enqueue.aio() for task in (approve, wait)]
    await run_burst(app)
    ends, endless = [await ask(job) for job in jobs]
    assert (ends.kind, ends.signal) == ("signal", "approved")
    assert ends.until == pytest.approx(ends.at + 86400, abs=60)
    assert ends.sentence.startswith("sleeping, until signal approved or ")
    assert (endless.kind, endless.until) == ("signal", None)
    assert endless.sentence == "sleeping, until signal approved"
    assert await app.queue("q").purge.aio() == 2


async def test_a_job_waits_for_other_jobs_and_is_blocked_by_a_dead_one(app: Penstock, ask: Ask):
    @app.task(queue="q", retry=Retry(0))
    async def part(n: int) -> int:
        return 1 // n

    @app.task(queue="q")
    async def total() -> None: ...

    parts = [await part.using(delay=3600).enqueue.aio(n) for n in (0, 1)]
    job = await total.using(after=parts).enqueue.aio()
    found = await ask(job)
    assert (found.kind, found.left, set(found.waits_for)) == ("jobs", 2, {one.id for one in parts})
    assert found.sentence == f"it waits for 2 of 2 jobs: {parts[0].id}, {parts[1].id}"
    await parts[0].promote.aio()
    await run_burst(app)
    found = await ask(job)
    assert (found.kind, found.status, found.waits_for) == ("blocked", Status.BLOCKED, (parts[0].id,))
    assert f"of which {parts[0].id} failed for good" in found.sentence
    dead = await ask(parts[0])
    assert (dead.kind, dead.status) == ("ended", Status.DEAD)
    assert dead.sentence.endswith(f"penstock dead retry {parts[0].id}`")
    await job.cancel_tree.aio()


async def test_a_suspect_waits_for_its_trial(app: Penstock, ask: Ask, worker: FakeWorker):
    job = await app.queue("q").put.aio(1)
    for _ in range(2):
        one = FakeWorker(app, name="gone:1")
        (claim,) = await one.turn(1)
        await one.app._driver.aio.run(one.bindings.abandon("w", "loss", b'{"reason":"killed"}', [claim.token]))
    await worker.turn()
    found = await ask(job)
    assert (found.kind, found.position) == ("suspect", 0)
    assert "0 suspects of 1 before it" in found.sentence


async def test_a_running_job_and_one_whose_worker_is_gone(
    app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock
):
    job = await app.queue("q").put.aio(1)
    await worker.turn(1, lease=10)
    clock.advance(4)
    found = await ask(job)
    assert (found.kind, found.worker, found.since) == ("running", "web:7", clock.now - 4)
    assert found.sentence == "it runs on web:7, claimed 4.0 s ago"
    clock.advance(18)
    found = await ask(job)
    assert found.kind == "lost"
    assert found.sentence.startswith("its worker web:7 is gone, its lease ran out 12 s ago")
    assert found.further == ("no live worker serves queue q: start one with `penstock worker`",)


async def test_a_batch_waits_for_more_jobs(app: Penstock, ask: Ask, worker: FakeWorker, clock: MovableClock):
    call = worker.bindings.turn("w", 1, lease=60, want=0, registration=Registration("web:7", 4, batch=(10, 5000, 0)))
    await app._driver.aio.run(call)
    worker.number = 1
    job = await app.queue("q").put.aio(1)
    found = await ask(job)
    assert (found.kind, found.until) == ("batch", clock.now + 5)
    assert found.sentence == "its batch waits for more jobs, up to 10, and is offered in 5.0 s at the latest"


async def test_how_a_job_ended(app: Penstock, ask: Ask, worker: FakeWorker):
    queue = app.queue("q")
    done = await queue.put.aio(1)
    (claim,) = await worker.turn(1)
    await worker.turn(0, Settlement(claim.token))
    cancelled = await queue.put.aio(2)
    await cancelled.cancel.aio()
    assert (await ask(done)).sentence == "it ran and completed"  # the worker of this test has sent no row
    assert (await ask(cancelled)).sentence.startswith("it was cancelled 0.")
    assert (await ask(done)).kind == "ended"


async def test_a_job_without_a_result_is_explained_by_its_row(app: Penstock, ask: Ask, clock: Time):
    @app.task(queue="q", result_ttl=0)
    async def nothing(n: int) -> None:
        if n:
            raise Drop("not needed")

    jobs = [await nothing.enqueue.aio(n) for n in range(2)]
    await run_burst(app)
    late = await nothing.using(expires=5).enqueue.aio(1)
    clock.advance(6)
    assert (await app.queue("q").count.aio()).waiting == 0
    clock.advance(54)
    done, dropped, expired = [await ask(job) for job in (*jobs, late)]
    assert (done.kind, done.status, done.worker != "") == ("ended", Status.COMPLETED, True)
    assert re.fullmatch(r"it ran in \S+ ?m?s on \S+ and completed (60|1)\S* \S+ ago", done.sentence)
    assert dropped.sentence.endswith("ago: not needed")
    assert expired.sentence.startswith("it expired 54")
    dead = await nothing.enqueue.aio(1)
    (item,) = await app.queue("q").claim.aio()
    await item.fail.aio("no luck")
    assert "failed for good" in (await ask(dead)).sentence
    await app.queue("q").dead.remove.aio(dead.id)
    gone = await ask(dead)
    assert gone.sentence.endswith("is no dead letter any more: no luck")
    assert gone.status is Status.DEAD


async def test_an_unknown_job_is_one_clear_error(app: Penstock, do: Do):
    with pytest.raises(JobNotFound, match="no job q:none: never enqueued here"):
        await do(app.queue("q").job("none").why)
    with pytest.raises(JobNotFound):
        await do(Inspector(app).jobs.why, "q:none")


async def test_a_job_in_a_shard(make_app: Callable[..., Penstock], ask: Ask):
    app = make_app()
    queue = app.queue("q", shards=3)
    jobs = [await queue.put.aio(1, tenant=tenant) for tenant in "abcdef"]
    assert len({job.shard.name for job in jobs}) > 1
    await queue.pause.aio(by="ada")
    for job in jobs:
        found = await ask(job)
        assert found.sentence.startswith("queue q was paused 0.")
        assert "serves queue q:" in found.further[0]
    await queue.resume.aio()
    await queue.purge.aio()


async def test_the_answer_costs_one_round_trip_whatever_waits(app: Penstock, ask: Ask, raw: Any, worker: FakeWorker):
    queue = app.queue("q")
    await worker.turn()
    jobs = await queue.put_many.aio(range(12_000), tenant="noisy")
    for tenant in range(200):
        await queue.put.aio(1, tenant=f"t{tenant}")
    await jobs[11_000].why.aio()  # the server knows the scripts from now on
    before = raw.info("commandstats")
    found = await jobs[11_000].why.aio()
    after = raw.info("commandstats")

    def calls(name: str) -> int:
        return int(after.get(name, {}).get("calls", 0)) - int(before.get(name, {}).get("calls", 0))

    assert calls("cmdstat_evalsha") == 1
    assert calls("cmdstat_llen") + calls("cmdstat_hexists") + calls("cmdstat_lindex") < 300
    assert found.position == pytest.approx(11_200, rel=0.05)
    await queue.purge.aio()
