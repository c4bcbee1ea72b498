"""Unique tasks as programs use them, on both faces: keys from arguments, doubles, bulk calls, and bad input."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from penstock import BadCall, ConfigurationError, Job, Middleware, Penstock, Status, Unique, current
from penstock.errors import UniqueKeyHeld
from penstock.jobs.middleware import EnqueueContext
from tests.conftest import Do, Time
from tests.everywhere import face, place  # noqa: F401 - fixtures
from tests.worker.in_process import run_burst, running_worker


async def test_a_double_returns_the_first_jobs_handle_and_its_result(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{order}"))
    async def ship(order: int, note: str = "") -> str:
        return note

    first: Job[str] = await do(ship.enqueue, 1, "a")
    double = await do(ship.enqueue, 1, "b")
    other = await do(ship.enqueue, 2, "c")
    assert double == first
    assert other != first
    await run_burst(app)
    assert await do(double.result, 5) == "a"
    assert await do(ship.enqueue, 1, "d") != first
    await do(app.queue("q").purge)


async def test_keys_come_from_arguments_however_they_are_given(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{order}:{part}"))
    async def ship(order: int, part: str = "all", *, note: str = "") -> None: ...

    @app.task(queue="q", unique=Unique("{order}:{part}"))
    async def bill(order: int, part: str = "all") -> None: ...

    @app.task(queue="q", unique=Unique())
    async def every(a: int, b: dict[str, int]) -> None: ...

    jobs = [
        await do(ship.enqueue, 1),
        await do(ship.enqueue, order=1, part="all", note="x"),
        await do(ship.enqueue, 1, "b"),
        await do(bill.enqueue, 1),
        await do(every.enqueue, 1, {"x": 1, "y": 2}),
        await do(every.enqueue, b={"y": 2, "x": 1}, a=1),
        await do(every.enqueue, 2, {}),
    ]
    assert [jobs.index(job) for job in jobs] == [0, 0, 2, 3, 4, 4, 6]
    await do(app.queue("q").purge)


async def test_different_values_never_make_one_key(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{a}:{b}"))
    async def pair(a: str, b: str) -> None: ...

    @app.task(queue="q", unique=Unique("{a}"), name="x")
    async def short(a: str) -> None: ...

    @app.task(queue="q", unique=Unique("{a}"), name="x:y")
    async def long(a: str) -> None: ...

    pairs = [("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z"), ("x%", "3Ay:z"), ("", "x:y:z"), ("x:y:z", "")]
    calls = [pair.call(*values) for values in pairs] + [short.call("y:z"), long.call("z")]
    jobs = await do(app.enqueue_many, calls)
    assert len(set(jobs)) == len(calls)
    with pytest.raises(ConfigurationError, match="write something between the fields"):
        app.task(queue="q", unique=Unique("{a}{b}"), name="close")(pair._function)
    await do(app.queue("q").purge)


@pytest.mark.parametrize(("kind", "value"), [("set[str]", '{"a", "b", "c", "d"}'), ("M", 'M(y={"a", "b", "c", "d"})')])
def test_the_key_of_a_set_is_the_same_in_every_process(kind: str, value: str):
    """The order of a set of texts depends on the process."""
    script = f"""if True:
        from pydantic import BaseModel
        from penstock import Penstock, Unique
        from penstock.jobs.constants import UNIQUE_KEY
        from penstock.jobs.record import Record
        task = Penstock("unix:///nowhere").task(queue="q", unique=Unique("{{x}}"))
        class M(BaseModel):
            y: set[str]
        @task
        def f(x: {kind}) -> None: ...
        print(Record(f.call({value}).draft()[1]).sections[UNIQUE_KEY])"""
    keys = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in "123"
    }
    assert len(keys) == 1, keys


async def test_text_and_numbers_make_different_keys_where_a_parameter_takes_both(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{a}"))
    async def untyped(a) -> None: ...

    @app.task(queue="q", unique=Unique("{a}"))
    async def either(a: int | str) -> None: ...

    @app.task(queue="q", unique=Unique("{a}"))
    async def optional(a: Annotated[str | None, "note"] = None) -> None: ...

    @app.task(queue="q", unique=Unique("{a}"))
    async def one_of(a: Literal[1, "1"]) -> None: ...

    for task, values in (
        (untyped, (1, "1", True, "True", None, "None", 1.0, "1.0", [1], "[1]", {"a": 1}, '{"a":1}')),
        (either, (1, "1")),
        (optional, (None, "None")),
        (one_of, (1, "1")),
    ):
        jobs = [await do(task.enqueue, value) for value in values]
        assert len({job.id for job in jobs}) == len(values)
        assert [await do(task.enqueue, value) for value in values] == jobs
    await do(app.queue("q").purge)


@dataclass
class Slot:
    at: datetime
    price: Decimal = Decimal(1)


class SlotModel(BaseModel):
    at: datetime


async def test_equal_moments_and_numbers_make_one_key(app: Penstock, do: Do):
    noon, later = datetime(2027, 3, 1, 12, tzinfo=UTC), datetime(2027, 3, 1, 12, 0, 1, tzinfo=UTC)
    same = noon.astimezone(timezone(timedelta(hours=5, minutes=30)))

    @app.task(queue="q", unique=Unique("{at}"))
    async def plain(at: datetime) -> None: ...

    @app.task(queue="q", unique=Unique("{slot}"))
    async def nested(slot: Slot) -> None: ...

    @app.task(queue="q", unique=Unique("{slot}"))
    async def model(slot: SlotModel) -> None: ...

    @app.task(queue="q", unique=Unique())
    async def whole(slots: dict[str, list[Slot]]) -> None: ...

    @app.task(queue="q", unique=Unique("{price}"))
    async def priced(price: Decimal) -> None: ...

    calls: list[tuple[Any, list[Any]]] = [
        (plain, [noon, same, later]),
        (nested, [Slot(noon), Slot(same, Decimal("1.00")), Slot(noon, Decimal("1.01"))]),
        (model, [SlotModel(at=noon), SlotModel(at=same), SlotModel(at=later)]),
        (whole, [{"a": [Slot(noon)]}, {"a": [Slot(same)]}, {"b": [Slot(noon)]}]),
        (priced, [Decimal(100), Decimal("1E+2"), Decimal("100.001")]),
        (priced, [Decimal("0.0"), Decimal("-0"), Decimal("1e-40")]),
        (priced, [Decimal(10**35 + 1), Decimal(f"{10**35 + 1}.0"), Decimal(10**35 + 2)]),
    ]
    for task, (one, equal, other) in calls:
        first = await do(task.enqueue, one)
        assert await do(task.enqueue, equal) == first
        assert await do(task.enqueue, other) != first
    await do(app.queue("q").purge)


async def test_a_dict_in_a_key_has_no_order(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{x}"))
    async def f(x: dict[str, int]) -> None: ...

    first = await do(f.enqueue, {"a": 1, "b": 2})
    assert await do(f.enqueue, {"b": 2, "a": 1}) == first
    assert await do(f.enqueue, {"b": 1, "a": 2}) != first
    await do(app.queue("q").purge)


async def test_a_call_that_writes_a_default_is_a_double_of_one_that_leaves_it_out(app: Penstock, do: Do):
    nothing = object()

    @app.task(queue="q", unique=Unique())
    async def work(
        a: float, /, *more: int, b: dict[str, int] | None = None, c: Any = nothing, **others: int
    ) -> None: ...

    calls: list[tuple[Any, Any]] = [
        ((1,), {}),
        ((1.0,), {"b": None}),
        ((1,), {"b": {}}),
        ((1, 2), {}),
        ((1,), {"x": 2}),
        ((1,), {"c": 2}),
    ]
    jobs = [await do(work.enqueue, *args, **kwargs) for args, kwargs in calls]
    assert [jobs.index(job) for job in jobs] == [0, 0, 2, 3, 4, 5]
    await do(app.queue("q").purge)


async def test_bulk_calls_return_the_first_handles(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{n}"))
    async def work(n: int) -> None: ...

    jobs = await do(app.enqueue_many, [work.call(n % 700) for n in range(1400)])
    assert [job.key for job in jobs[:700]] == [job.key for job in jobs[700:]]
    assert (await do(app.queue("q").count)).ready == 700
    await do(app.queue("q").purge)


async def test_a_call_may_choose_its_own_key_and_a_value_an_exact_one(app: Penstock, do: Do):
    @app.task(queue="q")
    async def work(n: int) -> None: ...

    queue = app.queue("q")
    one = work.using(unique=Unique("{n}"), priority=2)
    assert await do(one.enqueue, 1) == await do(one.enqueue, 1)
    assert await do(work.enqueue, 1) != await do(one.enqueue, 1)
    first = await do(queue.put, "a", unique=Unique(exact="nightly"))
    assert await do(queue.put, "b", unique=Unique(exact="nightly")) == first
    assert await do(work.using(unique=Unique(exact="nightly")).enqueue, 3) == first
    await do(queue.purge)


async def test_hooks_of_enqueue_see_a_double_and_its_handle_is_right(app: Penstock, do: Do):
    seen: list[str] = []

    class Watch(Middleware):
        def enqueue(self, context: EnqueueContext) -> Any:
            seen.extend(job.key for job in context.jobs)
            yield

    app.add_middleware(Watch())

    @app.task(queue="q", unique=Unique("{n}"))
    async def work(n: int) -> None: ...

    first = await do(work.enqueue, 1)
    assert await do(work.enqueue, 1) == first
    assert await do(app.enqueue_many, [work.call(1), work.call(1)]) == [first, first]
    assert len(set(seen)) == 4
    await do(app.queue("q").purge)


async def test_the_last_arguments_count_with_replace_and_debounce(app: Penstock, do: Do):
    ran: list[tuple[str, int]] = []

    @app.task(queue="q", unique=Unique("{doc}", until="start", replace=True))
    async def index(doc: str, version: int) -> None:
        ran.append((doc, version))

    @app.task(queue="q", unique=Unique("{doc}", debounce=0.2))
    async def save(doc: str, version: int) -> None:
        ran.append((doc, version))

    jobs = {await do(task.enqueue, name, version) for version in range(5) for task, name in ((index, "i"), (save, "s"))}
    assert len(jobs) == 2
    async with running_worker(app):
        for job in jobs:
            await job.result.aio(20)
    assert sorted(ran) == [("i", 4), ("s", 4)]


async def test_a_job_that_reports_progress_gives_its_key_up_at_the_end(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{n}"))
    async def work(n: int) -> None:
        current().progress(0.5)
        await asyncio.sleep(0.05)

    first = await do(work.enqueue, 1)
    await run_burst(app)
    assert await do(work.enqueue, 1) != first
    await do(app.queue("q").purge)


async def test_a_throttled_task_is_enqueued_once_in_its_time(app: Penstock, do: Do, clock: Time):
    @app.task(queue="q", unique=Unique("{user}", throttle=60))
    async def greet(user: str) -> None: ...

    first = await do(greet.enqueue, "ada")
    await run_burst(app)
    assert await do(greet.enqueue, "ada") == first
    clock.advance(61)
    assert await do(greet.enqueue, "ada") != first
    await do(app.queue("q").purge)


async def test_a_dead_letter_is_not_requeued_beside_the_holder_of_its_key(app: Penstock, do: Do):
    @app.task(queue="q", unique=Unique("{n}"))
    async def fails(n: int) -> None:
        raise ValueError

    dead = await do(fails.enqueue, 1)
    await run_burst(app)
    holder = await do(fails.enqueue, 1)
    with pytest.raises(UniqueKeyHeld, match=holder.id):
        await do(app.queue("q").dead.requeue, dead.id)
    await do(holder.cancel)
    assert await do(app.queue("q").dead.requeue, dead.id) == 1
    assert await do(dead.status) == Status.READY
    await do(app.queue("q").purge)


async def test_what_cannot_work_is_refused_where_it_is_written(app: Penstock, do: Do):
    def greet(name: str) -> None: ...

    for unique, words in [
        (Unique("{nam}"), "has no parameter nam; its parameters are: name"),
        (Unique("name"), "names no argument, so all calls would be doubles"),
        (Unique("{name!r}"), "write the name of a parameter"),
        (Unique("{name"), "key='{name'"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            app.task(queue="q", name=f"greet {words}", unique=unique)(greet)
    task = app.task(queue="q")(greet)
    with pytest.raises(ConfigurationError, match="has no parameter x"):
        task.using(unique=Unique("{x}"))
    with pytest.raises(BadCall, match="at most 200"):
        await do(task.using(unique=Unique("{name}")).enqueue, "x" * 300)
    with pytest.raises(ValueError, match="give the key as Unique"):
        await do(app.queue("q").put, 1, unique=Unique("{name}"))
    with pytest.raises(ValueError, match="the debounce is the delay"):
        task.using(delay=5, unique=Unique("{name}", debounce=5))
    assert (await do(app.queue("q").count)).waiting == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": "later"}, "use 'done' or 'start'"),
        ({"replace": True}, 'needs until="start"'),
        ({"debounce": 0}, "seconds from 0.001"),
        ({"throttle": float("nan")}, "seconds from 0.001"),
        ({"throttle": 5, "debounce": 5}, "not both"),
        ({"throttle": 5, "until": "start"}, "decides itself"),
        ({"key": "{a}", "exact": "b"}, "not both"),
        ({"exact": ""}, "1 to 200 bytes"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        Unique(**options)


async def test_a_unique_job_in_a_pipeline_is_refused(app: Penstock):
    @app.task(queue="q", unique=Unique("{n}"))
    async def work(n: int) -> None: ...

    with pytest.raises(BadCall, match="cannot be enqueued in a pipeline"):
        work.enqueue_in(None, 1)


async def test_a_moment_that_utc_does_not_have_is_a_bad_call(app: Penstock):
    @app.task(queue="q", unique=Unique("{at}"))
    async def remind(at: datetime) -> None: ...

    with pytest.raises(BadCall, match=r"task remind: unique: at=.*out of range"):
        remind.call(datetime.max.replace(tzinfo=timezone(timedelta(hours=-8))))
