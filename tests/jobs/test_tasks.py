"""Tasks: register them, call them directly, enqueue them with options, one at a time and in bulk."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial, wraps
from importlib import import_module, reload
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from penstock import BadCall, Call, Concurrency, ConfigurationError, Options, Penstock, Retry, Unique
from penstock.errors import UnknownTask
from penstock.jobs.options import EnqueueManyOptions, EnqueueOptions
from tests.conftest import Do, Time, commands

NOWHERE = "unix:///nowhere"

shared = Penstock(NOWHERE)
"""The app of a module that a test executes twice."""


async def bodies(do: Do, app: Penstock, *queues: str) -> list[Any]:
    found = []
    while items := await do(app.claim, queues, 100):
        found += [item.body for item in items]
        for item in items:
            await do(item.complete)
    return found


# --- registration ---


async def test_a_task_stays_an_ordinary_function():
    app = Penstock(NOWHERE)

    @app.task
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    @app.task(queue="mail")
    async def wait(n: int) -> int:
        return n

    assert double(4) == 8
    assert await wait(4) == 4
    assert (double.name, double.__doc__) == ("double", "Twice.")
    assert (repr(double), repr(wait)) == ("<Task double on default>", "<Task wait on mail>")


def test_a_tasks_name_can_be_given():
    app = Penstock(NOWHERE)

    @app.task(name="mail.send")
    def send() -> None: ...

    assert app.registry.find("mail.send") is send.definition
    with pytest.raises(UnknownTask, match=r"did you mean 'mail\.send'"):
        app.registry.find("mail.sent")
    with pytest.raises(UnknownTask, match=r"known are: mail\.send"):
        app.registry.find("zzz")


def test_two_tasks_of_one_name_are_refused():
    app = Penstock(NOWHERE)

    @app.task(name="a")
    def one() -> None: ...

    app.task(name="a")(one)  # the same function again is fine
    with pytest.raises(ConfigurationError, match=r"two tasks are named 'a'.*give one a name="):

        @app.task(name="a")
        def other() -> None: ...


def timed(function: Callable[[int], str]) -> Callable[[int], str]:
    def wrapper(n: int) -> str:
        return function(n)

    return wrapper


def made_by_a_factory(app: Penstock, word: str, **options: Any) -> None:
    @app.task(**options)
    def act(n: int) -> str:
        return f"{word} {n}"


class Bot:
    def act(self, n: int) -> str:
        return f"{self} {n}"


MAKERS: dict[str, Callable[[Penstock, str], object]] = {
    "a factory": made_by_a_factory,
    "a factory with one name": partial(made_by_a_factory, name="act"),
    "a decorator without functools.wraps": lambda app, word: app.task(timed(lambda n: f"{word} {n}")),
    "a decorator with functools.wraps": lambda app, word: app.task(wraps(timed)(timed(lambda n: f"{word} {n}"))),
    "lambdas": lambda app, word: app.task(lambda n: f"{word} {n}"),
    "bound methods": lambda app, word: app.task(Bot().act),
    "partial functions": lambda app, word: app.task(name="act")(partial(made_by_a_factory, app)),
}


@pytest.mark.parametrize("how", MAKERS)
def test_two_functions_made_at_one_place_of_the_source_need_two_names(how: str):
    app = Penstock(NOWHERE)
    MAKERS[how](app, "charge")
    with pytest.raises(ConfigurationError, match=r"two tasks are named .*both made at .*give one a name="):
        MAKERS[how](app, "refund")


def test_two_lambdas_of_one_line_need_two_names():
    app = Penstock(NOWHERE)
    charge, refund = lambda n: n, lambda n: -n
    app.task(charge)
    with pytest.raises(ConfigurationError, match="two tasks are named '<lambda>'"):
        app.task(refund)


class Doubler:
    def __call__(self, n: int) -> int:
        return n


@pytest.mark.parametrize("task", [partial(max, 1), Doubler()], ids=["partial", "object"])
def test_what_has_no_name_needs_one(task: Any):
    """Its text would have an address, which differs in each process."""
    app = Penstock(NOWHERE)
    with pytest.raises(ConfigurationError, match=r"has no name of its own: give it a name=…"):
        app.task(task)


def test_a_script_may_not_define_two_tasks_of_one_name_in_one_line():
    """It has no spec, by which a module that is executed again is recognised."""
    script: dict[str, Any] = {"__name__": "__main__", "app": Penstock(NOWHERE)}
    with pytest.raises(ConfigurationError, match="two tasks are named '<lambda>'"):
        exec("app.task(lambda n: n), app.task(lambda n: -n)", script)
    for _ in range(2):  # a cell of a notebook may be executed again
        exec("@app.task\ndef cell(n: int) -> int: return n", script)


def test_one_method_may_be_registered_twice():
    app, bot = Penstock(NOWHERE), Bot()
    app.task(bot.act)
    app.task(bot.act)


@pytest.mark.parametrize("how", ["reload", "second import", "executed again as a script"])
def test_a_module_that_is_executed_again_replaces_its_tasks(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = "from tests.jobs.test_tasks import shared\n\n@shared.task\ndef act(n: int) -> int:\n    return n\n"
    (tmp_path / "executed_again.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    if how == "executed again as a script":
        script: dict[str, Any] = {"__name__": "script"}
        for _ in range(2):
            exec(compile(source, "script.py", "exec"), script)
        last = script["act"]
    else:
        module = import_module("executed_again")
        if how == "second import":
            del sys.modules["executed_again"]
        last = (import_module("executed_again") if how == "second import" else reload(module)).act
    assert shared.registry.find("act") is last.definition
    sys.modules.pop("executed_again", None)
    shared.registry._tasks.clear()


def generator() -> Iterator[int]:
    yield 1


class Kind:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (generator, {}, "a generator cannot be a task"),
        (Kind, {}, "a task is a function"),
        (lambda: None, {"isolate": True, "name": "task"}, "at the top of a module"),
        (asyncio.sleep, {"timeout": 0}, "seconds above 0"),
        (print, {"queue": "a b"}, "use 1 to 100 letters"),
    ],
    ids=["generator", "class", "lambda", "timeout", "queue"],
)
def test_a_task_that_cannot_work_is_refused_where_it_is_defined(function: Any, options: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        Penstock(NOWHERE).task(**options)(function)


@pytest.mark.parametrize(
    "options", [{"times": -1}, {"base": -1}, {"factor": 0.5}, {"jitter": 2}, {"cap": -1}, {"retry_if": 3}]
)
def test_a_retry_policy_that_cannot_work_is_refused(options: Any):
    with pytest.raises(ValueError, match="Retry"):
        Retry(**options)


def test_a_retry_policy_waits_longer_each_time_up_to_its_cap():
    policy = Retry(10, base=1, factor=2, cap=60, jitter=0.5)
    assert [policy.delay(n, chance=0) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, 60, 60]
    assert [policy.delay(n, chance=1) for n in (1, 2, 3, 7, 5000)] == [0.5, 1, 2, 30, 30]
    assert len({policy.delay(3) for _ in range(20)}) > 10
    assert [policy.left(n) for n in (1, 10, 11)] == [True, True, False]


# --- enqueue ---


async def test_an_enqueued_task_travels_as_a_call(app: Penstock, do: Do):
    @app.task(queue="mail")
    def send(to: str, subject: str = "Hi", *more: int) -> None: ...

    job = await do(send.enqueue, "ada", "Yo", 1, 2)
    assert job.id.startswith("mail:")
    await do(send.enqueue, to="bo")
    assert await bodies(do, app, "mail") == [
        ["send", {"to": "ada", "subject": "Yo", "*args": [1, 2]}],
        ["send", {"to": "bo"}],
    ]


async def test_options_of_a_call_reach_the_job(app: Penstock, do: Do, clock: Time):
    @app.task(queue="mail")
    def send(to: str) -> None: ...

    at = datetime.fromtimestamp(int(clock.now) + 100, UTC)
    special = send.using(at=at, priority=1, tenant="t", expires=500, id="mine")
    info = await do((await do(special.enqueue, "ada")).info)
    assert (info.id, info.priority, info.tenant, info.since) == ("mail:mine", 1, "t", at.timestamp())
    assert info.expires == pytest.approx(clock.now + 500, abs=0.01)
    plain = await do((await do(send.enqueue, "bo")).info)
    assert (plain.priority, plain.tenant, plain.expires) == (5, "", None)


async def test_many_calls_of_several_tasks_go_to_their_queues(app: Penstock, do: Do):
    @app.task(queue="a")
    def one(n: int) -> None: ...

    @app.task(queue="b")
    def two(n: int) -> None: ...

    def calls() -> Iterator[Call[None]]:
        for n in range(700):
            yield one.call(n)
            yield two.using(priority=1).call(n)

    jobs = await do(app.enqueue_many, calls())
    assert [job.id[:2] for job in jobs] == ["a:", "b:"] * 700
    assert len(set(jobs)) == 1400
    assert await bodies(do, app, "a", "b") == [["one", {"n": n}] for n in range(700)] + [
        ["two", {"n": n}] for n in range(700)
    ]


async def test_an_error_in_the_calls_leaves_complete_batches_enqueued(app: Penstock, do: Do):
    @app.task(queue="a")
    def one(n: int) -> None: ...

    with pytest.raises(BadCall, match=r"one\(\)"):
        await do(app.enqueue_many, (one.call(n if n < 600 else "x") for n in range(700)))  # type: ignore[arg-type]
    assert (await do(app.queue("a").count)).ready == 500


async def test_equal_calls_are_separate_jobs(app: Penstock, do: Do):
    @app.task(queue="a")
    def one(n: int) -> None: ...

    assert (await do(one.enqueue, 1)).id != (await do(one.enqueue, 1)).id
    assert (await do(app.queue("a").count)).ready == 2


async def test_a_call_that_does_not_fit_sends_nothing(app: Penstock, do: Do, nodes: list[Any]):
    @app.task(queue="a")
    def one(n: int) -> None: ...

    @app.task(queue="a", name="lost")
    def lost(n: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    before = sum(map(commands, nodes))
    for arguments in (("x",), (), (1, 2)):
        with pytest.raises(BadCall):
            await do(one.enqueue, *arguments)
    with pytest.raises(ConfigurationError, match="task lost: an annotation cannot be resolved"):
        await do(lost.enqueue, 1)
    assert sum(map(commands, nodes)) == before


def test_the_options_that_type_checkers_know_are_those_there_are():
    names = {"Unique": Unique}  # imported for type checkers only
    assert get_type_hints(EnqueueOptions, localns=names) == get_type_hints(Options, localns=names)
    assert EnqueueOptions.__optional_keys__ - EnqueueManyOptions.__optional_keys__ == {"id", "unique"}


@pytest.mark.parametrize(("tenants", "round_trips"), [(1, 2), (250, 4), (1000, 4)])
async def test_a_round_trip_of_a_bulk_enqueue_has_few_tenants(
    app: Penstock, do: Do, nodes: list[Any], tenants: int, round_trips: int
):
    """Each tenant costs the server several commands."""

    @app.task(queue="bulk")
    def task(n: int) -> None: ...

    calls = [task.using(tenant=f"t{n % tenants}").call(n) for n in range(1000)]
    await do(app.enqueue_many, calls[:1])
    before = sum(commands(node) for node in nodes)
    jobs = await do(app.enqueue_many, calls)
    assert len(jobs) == 1000
    assert sum(commands(node) for node in nodes) - before == round_trips
    await do(app.queue("bulk").purge)


# --- the words of other libraries ---


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda app, task: task.using(countdown=5),
            r"f\.using has no option 'countdown': write using\(delay=",
        ),
        (lambda app, task: task.using(prio=1), r"no option 'prio': write using\(priority=…\)"),
        (lambda app, task: task.using(priorty=1), "did you mean 'priority'"),
        (lambda app, task: app.task(max_retries=3)(print), r"no option 'max_retries': write @app\.task\(retry=…\)"),
        (
            lambda app, task: app.task(nothing_like_it=3)(print),
            "no option 'nothing_like_it': the options are queue, name,",
        ),
        (lambda app, task: app.task(limits=Concurrency(1))(print), "no option 'limits': did you mean 'limit'"),
        (lambda app, task: app.queue("q").put(1, prio=1), r"put\(\) to queue q has no option 'prio'"),
        (lambda app, task: app.job(None), "it must have the form queue:key"),
    ],
)
def test_an_option_of_another_library_is_refused_with_the_word_for_it(use: Callable[[Any, Any], Any], said: str):
    app = Penstock(NOWHERE)

    @app.task
    def f(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match=said):
        use(app, f)


def test_a_method_of_another_library_is_refused_with_the_word_for_it():
    app = Penstock(NOWHERE)

    @app.task
    def f(n: int) -> int:
        return n

    task: Any = f
    with pytest.raises(AttributeError, match=r"task f has no attribute 'delay': write enqueue\(…\)"):
        task.delay(1)
    assert not hasattr(task, "nothing_like_it")


def test_a_parameter_whose_name_python_mangles_is_refused_where_it_is_written():
    app = Penstock(NOWHERE)

    @app.task
    def f(__n: int) -> int:
        return __n

    with pytest.raises(ConfigurationError, match="task f: the parameter __n begins with two underscores"):
        f.enqueue(1)
