"""Jobs that wait for other jobs, on both faces: order, results as arguments, failures, trees, and bad input."""

from typing import Any, cast

import pytest

from penstock import (
    RESULT,
    BadCall,
    ConfigurationError,
    Drop,
    Job,
    Middleware,
    Penstock,
    ResultTimeout,
    Retry,
    Status,
    Unique,
    chain,
    group,
    result_of,
)
from penstock.errors import JobCancelled, JobNotFound
from penstock.jobs.listing import FoundJob
from penstock.jobs.middleware import EnqueueContext
from penstock.jobs.moving import move_jobs
from tests.conftest import Do
from tests.everywhere import face  # noqa: F401 - a fixture
from tests.worker.in_process import run_burst


@pytest.fixture
def place() -> str:
    return "valkey"


class Shop:
    """Tasks that log their runs. `fails` lists arguments with which `part` fails for good."""

    def __init__(self, app: Penstock) -> None:
        self.log: list[str] = []
        self.fails: set[str] = set()

        @app.task(queue="q", retry=Retry(0))
        async def part(name: str) -> str:
            if name in self.fails:
                raise ValueError("broken")
            if name == "dropped":
                raise Drop("not wanted")
            self.log.append(name)
            return name.upper()

        @app.task(queue="q")
        async def total(parts: list[str | None], note: str = "") -> str:
            self.log.append("total")
            return note + "+".join(str(one) for one in parts)

        @app.task(queue="q")
        async def after(text: str, times: int = 1) -> str:
            self.log.append(f"after {text}")
            return text * times

        self.part, self.total, self.after = part, total, after


async def dead(app: Penstock, do: Do, verb: str) -> int:
    """Requeue or remove all dead letters."""
    letters = app.queue("q").dead
    changed: int = await do(getattr(letters, verb), *(one.id for one in await do(letters.list)))
    return changed


async def test_a_job_that_expires_gets_the_results_of_others_as_well(app: Penstock, do: Do):
    shop = Shop(app)
    parts = await do(app.enqueue_many, [shop.part.call(name) for name in "ab"])
    end = await do(shop.total.using(after=parts, expires=60).enqueue, RESULT, note="= ")
    assert (await do(end.info)).expires is not None
    await run_burst(app)
    assert await do(end.result, 0) == "= A+B"


async def test_a_job_waits_for_the_jobs_that_it_names(app: Penstock, do: Do):
    shop = Shop(app)
    parts: list[Job[str]] = [await do(shop.part.enqueue, name) for name in "abc"]
    done = await do(shop.total.using(after=parts).enqueue, RESULT, note="sum ")
    assert await do(done.status) == Status.WAITING
    assert (await do(app.queue("q").count)).dependent == 1
    await run_burst(app)
    assert await do(done.result, 5) == "sum A+B+C"
    assert shop.log == ["a", "b", "c", "total"]
    assert (await do(app.queue("q").count)).dependent == 0


async def test_results_are_arguments_by_name_by_position_and_in_lists(app: Penstock, do: Do):
    shop = Shop(app)
    a, b = await do(shop.part.enqueue, "a"), await do(shop.part.enqueue, "b")
    one = await do(shop.after.using(after=a).enqueue, result_of(a), times=2)
    also = await do(shop.after.using(after=a).enqueue, RESULT)
    two = await do(shop.after.using(after=[a, b]).enqueue, text=result_of(b))
    three = await do(shop.total.using(after=[a, b]).enqueue, [result_of(b), result_of(a)])
    await run_burst(app)
    assert [await do(job.result, 5) for job in (one, also, two, three)] == ["AA", "A", "B", "B+A"]


async def test_a_step_of_a_flow_may_wait_for_a_job_that_was_enqueued_before(app: Penstock, do: Do):
    shop = Shop(app)
    x = await do(shop.part.enqueue, "x")
    flow = chain(shop.part.call("a"), shop.total.using(after=x).call([result_of(x)], note="x is "))
    done = await do(flow.enqueue)
    await run_burst(app)
    assert await do(done.result, 5) == "x is X"


async def test_a_parameter_of_any_type_takes_a_result(app: Penstock, do: Do):
    shop = Shop(app)

    @app.task(queue="q")
    async def pair(one: Any, others: Any) -> Any:
        return [one, others]

    a = await do(shop.part.enqueue, "a")
    done = await do(pair.using(after=[a]).enqueue, result_of(a), RESULT)
    await run_burst(app)
    assert await do(done.result, 5) == ["A", ["A"]]


async def test_a_job_that_has_ended_is_accepted_with_its_result(app: Penstock, do: Do):
    shop = Shop(app)
    a = await do(shop.part.enqueue, "a")
    await run_burst(app)
    done = await do(shop.after.using(after=a).enqueue, RESULT)
    assert await do(done.status) == Status.READY
    await run_burst(app)
    assert await do(done.result, 5) == "A"


async def test_the_steps_of_a_chain_run_one_after_another(app: Penstock, do: Do):
    shop = Shop(app)
    last = await do(chain(shop.part.call("x"), shop.after.call(RESULT, times=2), shop.after.call(RESULT)).enqueue)
    await run_burst(app)
    assert await do(last.result, 5) == "XX"
    assert shop.log == ["x", "after X", "after XX"]


async def test_groups_and_chains_nest(app: Penstock, do: Do):
    shop = Shop(app)
    flow = (
        group(
            chain(shop.part.call("a"), shop.after.call(RESULT, 2)),
            shop.part.map(["b", "c"]).then(shop.total.call(RESULT)),
            shop.part.call("d"),
        )
        .then(shop.total.call(RESULT, note="="))
        .then(group(shop.after.call(RESULT), shop.after.call("e")))
    )
    jobs = await do(flow.enqueue)
    await run_burst(app)
    assert [await do(job.result, 5) for job in jobs] == ["=AA+B+C+D", "e"]


async def test_each_job_of_a_group_waits_for_each_job_of_the_one_before(app: Penstock, do: Do):
    shop = Shop(app)
    jobs = await do(shop.part.map("abc").then(group(shop.total.call(RESULT) for _ in range(4))).enqueue)
    await run_burst(app)
    assert [await do(job.result, 5) for job in jobs] == ["A+B+C"] * 4


async def test_a_map_of_nothing_is_an_empty_result(app: Penstock, do: Do):
    shop = Shop(app)
    assert await do(shop.part.map([]).enqueue) == []
    at_once = await do(shop.part.map([]).then(shop.total.call(RESULT, note="none")).enqueue)
    behind = await do(chain(shop.part.call("a"), chain(shop.part.map([])), shop.total.call(RESULT)).enqueue)
    beside = await do(group(shop.part.map([]), shop.part.call("b")).then(shop.total.call(RESULT)).enqueue)
    await run_burst(app)
    assert [await do(job.result, 0) for job in (at_once, behind, beside)] == ["none", "", "B"]
    assert shop.log.index("a") < len(shop.log) - 1 - shop.log[::-1].index("total")


async def test_a_dead_letter_blocks_until_it_is_requeued(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    done = await do(shop.part.map("abc").then(shop.total.call(RESULT)).enqueue)
    await run_burst(app)
    assert await do(done.status) == Status.BLOCKED
    with pytest.raises(ResultTimeout, match="dead letter"):
        await do(done.result, 0)
    shop.fails.clear()
    assert await dead(app, do, "requeue") == 1
    assert await do(done.status) == Status.WAITING
    await run_burst(app)
    assert await do(done.result, 5) == "A+B+C"


async def test_the_removal_of_a_dead_letter_stops_all_that_wait_for_it(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    flow = shop.part.map("abc").then(shop.total.call(RESULT)).then(shop.after.call(RESULT))
    last = await do(flow.enqueue)
    await run_burst(app)
    assert await do(last.status) == Status.WAITING
    assert await dead(app, do, "remove") == 1
    with pytest.raises(JobCancelled, match=r"it waited for job .*, which failed"):
        await do(last.result, 5)
    assert shop.log == ["a", "c"]


@pytest.mark.parametrize("how", ["cancelled", "dropped", "expired"])
async def test_a_job_that_leaves_the_queue_undone_stops_what_waits_for_it(app: Penstock, do: Do, clock: Any, how: str):
    shop = Shop(app)
    task = shop.part.using(expires=5) if how == "expired" else shop.part
    first = await do(task.enqueue, "dropped" if how == "dropped" else "a")
    last = await do(shop.after.using(after=first).enqueue, RESULT)
    if how == "cancelled":
        assert await do(first.cancel)
    if how == "expired":
        clock.advance(6)
    await run_burst(app)
    assert await do(last.status) == Status.CANCELLED


async def test_a_job_that_others_wait_for_is_not_moved_to_another_queue(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    one = await do(shop.part.enqueue, "a")
    flow = await do(chain(shop.part.call("b"), shop.after.call(RESULT)).enqueue)
    several = await do(chain(shop.part.call("c"), group(shop.after.call(RESULT) for _ in range(2))).enqueue)
    moved = await do(app.queue("q").jobs(task=shop.part.name).move, app.queue("other"))
    assert moved.done == 1
    assert await do(one.status) == Status.CANCELLED, "the one that nothing waits for"
    await run_burst(app)
    assert (await do(app.queue("q").jobs(state="dead").move, app.queue("other"))).done == 0
    assert (await do(app.queue("other").count)).ready == 1
    assert await do(flow.status) == Status.BLOCKED
    assert [await do(job.result, 5) for job in several] == ["C"] * 2


async def test_a_job_that_others_begin_to_wait_for_while_it_is_moved_stays(app: Penstock, do: Do):
    shop, other = Shop(app), app.queue("other")
    one, two = await do(shop.part.enqueue, "a"), await do(shop.part.enqueue, "b")
    queue, last, rows = app.queue("q"), None, []
    for job in (one, two):
        stored = await app._driver.aio.run(queue.first.bindings.show(job.key))
        assert stored.record is not None
        rows.append(FoundJob(job.key, b"", stored.record, ""))
    moving = move_jobs(queue.first, other.shards, rows)
    call: Any = next(moving)
    while call.script.name != "edit":
        if call.script.name == "change_jobs":
            last = await do(shop.after.using(after=one).enqueue, RESULT)
        call = moving.send(await app._driver.aio.run(call))
    await app._driver.aio.run(call)
    assert await do(two.status) == Status.CANCELLED
    assert last is not None
    await run_burst(app, queues=("q",))
    assert await do(last.result, 5) == "A"
    assert ((await do(other.count)).ready, (await do(other.count)).cancelled) == (1, 1)


async def test_a_job_that_was_moved_is_not_taken_for_one_that_failed(app: Penstock, do: Do):
    shop = Shop(app)
    one = await do(shop.part.enqueue, "a")
    assert (await do(app.queue("q").jobs().move, app.queue("other"))).done == 1
    with pytest.raises(JobNotFound, match=f"it was moved to another queue: wait for other:{one.key}"):
        await do(shop.after.using(after=one).enqueue, RESULT)


async def test_a_job_may_run_though_others_failed(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    calls = [shop.part.call(name) for name in ("a", "b", "dropped")]
    done = await do(group(calls).then(shop.total.using(on_failure="continue").call(RESULT)).enqueue)
    await run_burst(app)
    assert await do(done.result, 5) == "A+None+None"
    shop.fails.clear()
    await dead(app, do, "requeue")
    await run_burst(app)
    assert shop.log == ["a", "total", "b"]


async def test_another_call_takes_the_place_of_a_job_that_cannot_run(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    instead = shop.after.call("sorry", 2)
    flow = shop.part.map("ab").then(shop.total.using(on_failure=instead).call(RESULT)).then(shop.after.call(RESULT))
    last = await do(flow.enqueue)
    await run_burst(app)
    assert await do(last.result, 5) == "sorrysorry"
    assert "total" not in shop.log
    await dead(app, do, "remove")


async def test_a_tree_shows_every_job_of_a_flow(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"b"}
    flow = group(shop.part.map("ab").then(shop.total.call(RESULT)), shop.part.call("c"))
    last = await do(flow.then(shop.total.call(RESULT)).enqueue)
    await run_burst(app)
    tree = await do(last.tree)
    assert (tree.id, tree.status, tree.total, tree.left) == (last.id, Status.WAITING, 2, 1)
    inner, c = tree.predecessors
    assert (inner.status, inner.total, inner.left, inner.dead, c.status) == (Status.BLOCKED, 2, 1, 1, Status.COMPLETED)
    assert [one.status for one in inner.predecessors] == [Status.COMPLETED, Status.DEAD]
    assert inner.predecessors[1].task.endswith("part")
    shop.fails.clear()
    await dead(app, do, "requeue")
    await run_burst(app)
    statuses = [one.status for one in (await do(last.tree)).predecessors]
    assert statuses == [Status.COMPLETED] * 2, "a flow that has ended can be shown, too"
    assert len((await do(last.tree, 2)).predecessors) == 1


async def test_a_tree_shows_what_waits_for_a_job(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"a"}
    first = await do(shop.part.enqueue, "a")
    middle = [await do(shop.after.using(after=first, on_failure="stop").enqueue, "x") for _ in range(3)]
    last = await do(shop.total.using(after=middle).enqueue, ["y"])
    tree = await do(first.tree)
    assert (tree.total, tree.awaited_by) == (0, 3)
    assert [(one.id, one.total, one.awaited_by) for one in tree.dependents] == [(one.id, 1, 1) for one in middle]
    assert [[one.id for one in node.dependents] for node in tree.dependents] == [[last.id]] * 3
    assert tree.dependents[0].dependents[0].status is Status.WAITING
    tree = await do(middle[0].tree)
    assert ([one.id for one in tree.predecessors], [one.id for one in tree.dependents]) == ([first.id], [last.id])
    await run_burst(app)
    tree = await do(first.tree)
    assert (tree.status, [one.status for one in tree.dependents]) == (Status.DEAD, [Status.BLOCKED] * 3)
    assert await do(middle[0].cancel)
    tree = await do(first.tree)
    assert {one.id for one in tree.dependents} == {one.id for one in middle[1:]}, "a cancelled job waits no longer"
    assert tree.awaited_by == 2
    shop.fails.clear()
    await dead(app, do, "requeue")
    await run_burst(app)
    tree = await do(first.tree)
    ends = dict.fromkeys((one.id for one in middle[1:]), Status.COMPLETED)
    assert {one.id: one.status for one in tree.dependents} == ends, "known from the rows of ended jobs"
    assert [[below.id for below in one.dependents] for one in tree.dependents] == [[last.id]] * 2


async def test_the_tree_of_a_dead_letter_shows_the_jobs_that_did_not_wait_longer(app: Penstock, do: Do):
    shop = Shop(app)
    shop.fails = {"a"}
    first = await do(shop.part.enqueue, "a")
    goes_on = await do(shop.after.using(after=first, on_failure="continue").enqueue, "x")
    last = await do(shop.after.using(after=goes_on).enqueue, "y")
    waits = await do(shop.after.using(after=first, on_failure="stop").enqueue, "z")
    await run_burst(app)
    tree = await do(first.tree)
    assert (tree.status, tree.awaited_by) == (Status.DEAD, 2)
    assert {one.id: one.status for one in tree.dependents} == {
        goes_on.id: Status.COMPLETED,
        waits.id: Status.BLOCKED,
    }
    assert [[below.id for below in one.dependents] for one in tree.dependents if one.id == goes_on.id] == [[last.id]]


async def test_a_tree_is_cut_in_each_direction_and_counts_the_rest(app: Penstock, do: Do):
    shop = Shop(app)
    before = await do(shop.part.enqueue, "a")
    job = await do(shop.after.using(after=before).enqueue, "b")
    for _ in range(300):
        await do(shop.after.using(after=job).enqueue, "c")
    tree = await do(job.tree, 280)
    assert (len(tree.predecessors), len(tree.dependents), tree.awaited_by) == (1, 279, 300)
    tree = await do(job.tree)
    assert len({one.id for one in tree.dependents}) == 300
    tree = await do(job.tree, 1)
    assert (tree.total, tree.predecessors, tree.awaited_by, tree.dependents) == (1, [], 300, [])
    assert await do(shop.after.using(id="again", after=job).enqueue, "d")
    assert await do(app.job("q:again").cancel)
    await do(shop.part.using(id="again").enqueue, "e")  # another job, which waits for nothing
    assert "q:again" not in {one.id for one in (await do(job.tree)).dependents}


async def test_a_flow_is_cancelled_whole(app: Penstock, do: Do):
    shop = Shop(app)
    flow = group(chain(shop.part.call("a"), shop.after.call(RESULT)), shop.part.map("bcd")).then(
        shop.total.call(RESULT)
    )
    last = await do(flow.enqueue)
    assert await do(last.cancel_tree) == 6
    counts = await do(app.queue("q").count)
    assert (counts.ready, counts.dependent, counts.cancelled) == (0, 0, 6)
    await run_burst(app)
    assert shop.log == []


async def test_a_flow_of_more_jobs_than_one_slice(app: Penstock, do: Do):
    shop = Shop(app)
    names = [str(n) for n in range(600)]
    done = await do(shop.part.map(names).then(shop.total.call(RESULT)).enqueue)
    await run_burst(app)
    assert await do(done.result, 5) == "+".join(names)


async def test_many_jobs_may_wait_for_one(app: Penstock, do: Do):
    shop = Shop(app)
    jobs = await do(chain(shop.part.call("a"), group(shop.after.call(RESULT) for _ in range(400))).enqueue)
    await run_burst(app)
    assert len(shop.log) == 401
    assert await do(jobs[-1].result, 5) == "A"
    failing = await do(chain(shop.part.call("dropped"), group(shop.after.call(RESULT) for _ in range(400))).enqueue)
    await run_burst(app)
    assert {await do(job.status) for job in failing[::50]} == {Status.CANCELLED}
    assert (await do(app.queue("q").count)).dependent == 0


async def test_hooks_see_the_jobs_of_a_flow(app: Penstock, do: Do):
    seen: list[str] = []

    class Trace(Middleware):
        def enqueue(self, context: EnqueueContext) -> Any:
            for job in context.jobs:
                job.trace = "t"
                seen.append(job.task)
            yield

    app.add_middleware(Trace())
    shop = Shop(app)
    done = await do(shop.part.map("ab").then(shop.total.call(RESULT)).enqueue)
    await run_burst(app)
    assert await do(done.result, 5) == "A+B"
    assert sorted(name.rpartition(".")[2] for name in seen) == ["part", "part", "total"]


async def test_bad_flows_are_refused_before_anything_is_enqueued(app: Penstock, do: Do):
    shop = Shop(app)

    @app.task(queue="other")
    async def elsewhere(text: str = "") -> None: ...

    @app.task(queue="q", unique=Unique("{n}"))
    async def once(n: int) -> None: ...

    @app.task(queue="q", result_ttl=0)
    async def forgets() -> str:
        return ""

    silent = await do(forgets.enqueue)
    gone = app.queue("q").job("gone")
    after: Any = shop.after
    refused: list[tuple[Any, str, Any]] = [
        (BadCall, "chain.. is empty", chain),
        (BadCall, "not str", lambda: group(cast("Any", "ab"))),
        (BadCall, "takes jobs", lambda: after.using(after=["x"])),
        (BadCall, "result_ttl=0", lambda: after.using(after=silent)),
        (ValueError, "on_failure='no'", lambda: after.using(on_failure="no")),
        (BadCall, "has to wait for other jobs", lambda: do(after.enqueue, RESULT)),
        (BadCall, "has to wait for other jobs", lambda: do(app.enqueue_many, [after.using(after=gone).call("x")])),
        (BadCall, "waits for none", lambda: do(after.using(on_failure="continue").enqueue, "x")),
        (BadCall, "waits for none", lambda: do(app.enqueue_many, [after.using(on_failure=after.call("y")).call("x")])),
        (
            BadCall,
            "waits for none",
            lambda: do(chain(after.using(on_failure="continue").call("x"), after.call("y")).enqueue),
        ),
        (BadCall, "does not wait for it", lambda: do(after.using(after=gone).enqueue, result_of(silent))),
        (BadCall, "argument text is missing", lambda: after.call(times=RESULT)),
        (BadCall, "no parameter|without \\*args", lambda: after.call("x", nothing=RESULT)),
        (BadCall, "Expected `str`, got `int`", lambda: after.call(5, times=RESULT)),
        (BadCall, "its result is not kept", lambda: do(chain(forgets.call(), after.call(RESULT)).enqueue)),
        (BadCall, "a cycle", lambda: do(after.using(id="me", after=app.job("q:me")).enqueue, "x")),
        (JobNotFound, "no job q:gone to wait for", lambda: do(after.using(after=gone).enqueue, "x")),
        (ConfigurationError, "is unique", lambda: do(chain(shop.part.call("a"), once.call(1)).enqueue)),
        (ConfigurationError, "delay", lambda: do(after.using(after=app.queue("q").job("x"), delay=5).enqueue, "x")),
        (
            ConfigurationError,
            "on_failure",
            lambda: do(after.using(after=gone, on_failure=elsewhere.call()).enqueue, ""),
        ),
    ]
    for error, match, call in refused:
        with pytest.raises(error, match=match):
            await call()
    await do(silent.cancel)
    counts = await do(app.queue("q").count)
    assert (counts.waiting, counts.dependent) == (0, 0)


async def test_a_policy_for_failures_may_have_a_list_that_is_empty(app: Penstock, do: Do):
    shop = Shop(app)
    await do(shop.after.using(after=[], on_failure="continue").enqueue, "x")
    await do(shop.after.using(on_failure="stop").enqueue, "y")
    await run_burst(app)
    assert sorted(shop.log) == ["after x", "after y"]


async def test_an_id_of_ones_own_waits_once(app: Penstock, do: Do):
    shop = Shop(app)
    a = await do(shop.part.enqueue, "a")
    first = await do(shop.after.using(id="me", after=a).enqueue, RESULT)
    again = await do(shop.after.using(id="me", after=a).enqueue, RESULT)
    assert first == again
    await run_burst(app)
    assert shop.log == ["a", "after A"]


async def test_a_job_may_wait_for_jobs_with_large_results(app: Penstock, do: Do):
    @app.task(queue="large")
    async def large() -> str:
        return "x" * 400_000

    @app.task(queue="large")
    async def last(day: str) -> str:
        return day

    jobs = [await do(large.enqueue) for _ in range(7)]
    await run_burst(app)
    done = await do(last.using(after=jobs).enqueue, "monday")
    await run_burst(app)
    assert await do(done.result, 5) == "monday"
