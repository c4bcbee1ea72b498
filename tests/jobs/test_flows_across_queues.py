"""Jobs that wait for jobs of other queues, which may be in other slots, and for jobs of other shards."""

import asyncio
from typing import Any

import pytest

from penstock import RESULT, Drop, Job, Penstock, Retry, Status, chain, group, result_of
from penstock.core.slots import slot
from penstock.errors import JobCancelled, JobNotFound
from tests.conftest import Do
from tests.speed import Deadline, scaled
from tests.worker.in_process import running_worker


@pytest.fixture(params=["valkey", "cluster"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def face(place: str) -> str:
    return "blocking" if place == "cluster" else "aio"


class Company:
    """Three queues, each with its tasks. `fails` lists arguments with which a task fails for good."""

    def __init__(self, app: Penstock) -> None:
        self.log: list[str] = []
        self.fails: set[str] = set()

        @app.task(queue="fetch", retry=Retry(0))
        async def fetch(name: str) -> str:
            if name in self.fails:
                raise ValueError("broken")
            if name == "dropped":
                raise Drop("not wanted")
            self.log.append(name)
            return name.upper()

        @app.task(queue="parse", retry=Retry(0))
        async def parse(text: str, times: int = 1) -> str:
            if text in self.fails:
                raise ValueError("broken")
            self.log.append(f"parse {text}")
            return text * times

        @app.task(queue="total", retry=Retry(0))
        async def total(parts: list[str | None], note: str = "") -> str:
            self.log.append("total")
            return note + "+".join(str(one) for one in parts)

        self.fetch, self.parse, self.total = fetch, parse, total


async def result(do: Do, job: Job[Any]) -> Any:
    return await do(job.result, scaled(10))


async def status_becomes(do: Do, job: Job[Any], wanted: Status) -> None:
    deadline = Deadline(10)
    while await do(job.status) != wanted:
        assert not deadline.passed(), f"the job is {await do(job.status)}, and not {wanted}"
        await asyncio.sleep(0.02)


async def test_the_queues_are_in_different_slots(app: Penstock):
    Company(app)
    assert len({slot(app.queue(name).first.bindings.keys.base) for name in ("fetch", "parse", "total")}) == 3


async def test_steps_of_different_queues_run_one_after_another_with_results(app: Penstock, do: Do):
    shop = Company(app)
    flow = chain(
        shop.fetch.map("abc"),
        group(shop.total.call(RESULT, note=note) for note in ("=", "#")),
        shop.total.call(RESULT),
        shop.parse.call(RESULT, times=2),
    )
    last = await do(flow.enqueue)
    assert await do(last.status) == Status.WAITING
    async with running_worker(app):
        assert await result(do, last) == "=A+B+C+#A+B+C" * 2
    assert shop.log[3:] == ["total", "total", "total", "parse =A+B+C+#A+B+C"]


async def test_a_job_waits_for_jobs_of_several_queues_that_it_names(app: Penstock, do: Do):
    shop = Company(app)
    a, b = await do(shop.fetch.enqueue, "a"), await do(shop.parse.enqueue, "b")
    here = await do(shop.total.enqueue, ["c"])
    three = await do(shop.total.using(after=[a, here, b]).enqueue, [result_of(b), result_of(a), result_of(here)])
    both = await do(shop.total.using(after=[a, here, b]).enqueue, RESULT)
    async with running_worker(app):
        assert await result(do, three) == "b+A+c"
        assert await result(do, both) == "A+c+b"


async def test_a_job_of_another_queue_may_have_ended_before(app: Penstock, do: Do):
    shop = Company(app)
    a = await do(shop.fetch.enqueue, "a")
    async with running_worker(app):
        assert await result(do, a) == "A"
        done = await do(shop.parse.using(after=a).enqueue, RESULT, times=3)
        assert await result(do, done) == "AAA"


async def test_a_job_of_another_queue_that_is_gone_is_refused_and_nothing_is_left(app: Penstock, do: Do):
    shop = Company(app)
    a, gone = await do(shop.fetch.enqueue, "a"), app.queue("fetch").job("gone")
    with pytest.raises(JobNotFound, match="no job fetch:gone to wait for"):
        await do(shop.total.using(after=[a, gone]).enqueue, RESULT)
    counts = await do(app.queue("total").count)
    assert (counts.dependent, counts.cancelled) == (0, 1)
    async with running_worker(app):
        assert await result(do, a) == "A"


async def test_a_dead_letter_in_another_queue_blocks_until_it_is_requeued(app: Penstock, do: Do):
    shop = Company(app)
    shop.fails = {"b"}
    done = await do(shop.fetch.map("abc").then(shop.total.call(RESULT)).enqueue)
    async with running_worker(app):
        await status_becomes(do, done, Status.BLOCKED)
        late = await do(shop.parse.using(after=app.job((await do(app.queue("fetch").dead.list))[0].id)).enqueue, RESULT)
        await status_becomes(do, late, Status.BLOCKED)
        shop.fails.clear()
        await do(app.queue("fetch").dead.requeue, *(one.id for one in await do(app.queue("fetch").dead.list)))
        assert await result(do, done) == "A+B+C"
        assert await result(do, late) == "B"


async def test_what_fails_in_another_queue_stops_all_that_wait_for_it(app: Penstock, do: Do):
    shop = Company(app)
    shop.fails = {"b"}
    removed = await do(shop.fetch.map("ab").then(shop.total.call(RESULT)).then(shop.parse.call(RESULT)).enqueue)
    dropped = await do(chain(shop.fetch.call("dropped"), shop.parse.call(RESULT)).enqueue)
    async with running_worker(app):
        with pytest.raises(JobCancelled, match=r"it waited for job fetch:.*, which failed"):
            await result(do, dropped)
        await status_becomes(do, app.job((await do(removed.tree)).predecessors[0].id), Status.BLOCKED)
        await do(app.queue("fetch").dead.remove, *(one.id for one in await do(app.queue("fetch").dead.list)))
        with pytest.raises(JobCancelled, match=r"it waited for job total:.*, which failed"):
            await result(do, removed)


async def test_a_job_goes_on_or_is_replaced_after_a_failure_in_another_queue(app: Penstock, do: Do):
    shop = Company(app)
    shop.fails = {"b"}
    calls = [shop.fetch.call(name) for name in ("a", "b", "dropped")]
    goes_on = await do(group(calls).then(shop.total.using(on_failure="continue").call(RESULT)).enqueue)
    instead = shop.parse.call("sorry", 2)
    replaced = await do(chain(shop.fetch.call("b"), shop.parse.using(on_failure=instead).call(RESULT)).enqueue)
    async with running_worker(app):
        assert await result(do, goes_on) == "A+None+None"
        assert await result(do, replaced) == "sorrysorry"
    shop.fails.clear()
    letters = app.queue("fetch").dead
    assert await do(letters.requeue, *(one.id for one in await do(letters.list))) == 2
    async with running_worker(app):
        await status_becomes(do, goes_on, Status.COMPLETED)


async def test_a_tree_is_shown_and_cancelled_through_all_queues(app: Penstock, do: Do):
    shop = Company(app)
    inner = chain(shop.fetch.map("ab"), shop.total.call(RESULT))
    last = await do(group(inner, shop.fetch.call("c")).then(shop.parse.using(on_failure="stop").call("x")).enqueue)
    tree = await do(last.tree)
    assert (tree.total, tree.left, [one.id.split(":")[0] for one in tree.predecessors]) == (2, 2, ["total", "fetch"])
    assert [(one.status, one.total) for one in tree.predecessors] == [(Status.WAITING, 2), (Status.READY, 0)]
    assert [one.task.rpartition(".")[2] for one in tree.predecessors[0].predecessors] == ["fetch", "fetch"]
    nearest = await do(app.job(tree.predecessors[0].predecessors[0].id).tree)
    assert (nearest.total, nearest.awaited_by) == (0, 1)
    assert [(one.id, one.status) for one in nearest.dependents] == [(tree.predecessors[0].id, Status.WAITING)]
    assert [one.id for one in nearest.dependents[0].dependents] == [last.id]
    assert await do(last.cancel_tree) == 5
    for name, cancelled in (("fetch", 3), ("total", 1), ("parse", 1)):
        counts = await do(app.queue(name).count)
        assert (counts.ready, counts.dependent, counts.cancelled) == (0, 0, cancelled)
    async with running_worker(app):  # delivers what nothing waits for
        assert await result(do, await do(shop.fetch.enqueue, "z")) == "Z"
    assert shop.log == ["z"]


async def test_a_flow_of_many_jobs_is_counted_exactly(app: Penstock, do: Do):
    shop = Company(app)
    names = [str(n) for n in range(300)]
    done = await do(shop.fetch.map(names).then(shop.total.call(RESULT)).enqueue)
    many = await do(chain(shop.fetch.call("a"), group(shop.parse.call(RESULT) for _ in range(300))).enqueue)
    async with running_worker(app):
        assert await result(do, done) == "+".join(names)
        assert [await result(do, job) for job in many] == ["A"] * 300
    assert shop.log.count("total") == 1


async def test_a_flow_of_a_queue_with_shards(app: Penstock, do: Do):
    queue = app.queue("mail", shards=3)
    ran: list[str] = []

    @app.task(queue="mail")
    async def send(to: str) -> str:
        ran.append(to)
        return to.upper()

    @app.task(queue="mail")
    async def report(sent: list[str]) -> str:
        return "".join(sent)

    tenants = [f"tenant-{n}" for n in range(20)]
    calls = [send.using(tenant=tenant).call(str(n)) for n, tenant in enumerate(tenants)]
    done = await do(group(calls).then(report.using(tenant="tenant-3").call(RESULT)).enqueue)
    assert (await do(queue.count)).ready == 20
    assert min([(await do(app.queue(shard.name).count)).ready for shard in queue.shards.current.known[1:]]) > 0
    after = await do(report.using(tenant="tenant-1", after=[done]).enqueue, [result_of(done)])
    async with running_worker(app):
        assert await result(do, done) == "".join(map(str, range(20)))
        assert await result(do, after) == await result(do, done)
    await do(queue.add_shards, 6)
    async with running_worker(app):
        grown = await do(group(calls).then(report.using(tenant="tenant-5").call(RESULT)).enqueue)
        assert await result(do, grown) == await result(do, done)
    assert sorted(ran) == sorted([str(n) for n in range(20)] * 2)
