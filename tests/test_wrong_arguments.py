"""Arguments of the wrong type are refused where they are written, before anything is sent."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any

import pytest

from penstock import (
    BadCall,
    Batch,
    Concurrency,
    ConfigurationError,
    History,
    Keep,
    Penstock,
    Rate,
    Retry,
    RetryLater,
    Unique,
    current,
    sleep,
    step,
    wait_for,
)
from penstock.errors import StepError
from tests.conftest import Do
from tests.worker.in_process import run_burst


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("complete", {"prefix": "a", "limit": 1.5}),
        ("complete", {"prefix": "a", "limit": "10"}),
        ("complete", {"prefix": "a", "limit": True}),
        ("complete", {"prefix": "a", "limit": None}),
        ("complete", {"prefix": "a", "by": ["weight"]}),
        ("complete", {"prefix": "a", "typos": "no"}),
        ("top", {"prefix": "a", "limit": 1.5}),
        ("add_many", {"names": "ada"}),
        ("add_many", {"names": None}),
    ],
)
async def test_a_wrong_argument_of_a_directory_is_named(app: Penstock, do: Do, verb: str, arguments: dict[str, Any]):
    wrong = [*arguments][-1]
    with pytest.raises(ValueError, match=rf"{verb}\({wrong}="):
        await do(getattr(app.directory("d"), verb), **arguments)


@pytest.mark.parametrize(
    "settings", [{"words": "no"}, {"accents": 2}, {"pinyin": "yes"}, {"shards": True}, {"shards": "2"}, {"shards": 1.5}]
)
async def test_a_wrong_setting_of_a_directory_is_named(app: Penstock, settings: dict[str, Any]):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"directory\({name}="):
        app.directory("d", **settings)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda app: app.lock("a", timeout=10), "lock() has no option 'timeout': write lease=seconds for how long"),
        (lambda app: app.lock("a", blocking_timeout=5), "lock() has no option 'blocking_timeout': write wait=seconds"),
        (lambda app: app.lock("a", reentrent=True), "lock() has no option 'reentrent': did you mean 'reentrant'?"),
        (lambda app: app.read_write_lock("a", lease=1, ttl=3), "write lease=seconds"),
        (lambda app: app.semaphore("a", value=3), "semaphore() has no option 'value': write limit=…"),
        (lambda app: app.rate_limit("a", limit=3, period=1), "write per=seconds"),
        (lambda app: app.election("a", timeout=3), "write lease=seconds"),
        (lambda app: app.latch("a", count=3, timeout=1), "write wait(timeout=seconds)"),
        (lambda app: app.barrier("a", count=3), "write parties=…"),
        (lambda app: app.transaction(key="a"), "transaction() has no option 'key': the options are tag"),
        (lambda app: app.contacts("a", maxlen=3), "write limit=…"),
        (lambda app: app.directory("a", fuzzy=True), "write complete(limit=…, typos=…)"),
        (lambda app: app.mailbox("a", timeout=3), "mailbox() has no option 'timeout': write pull(wait=seconds)"),
        (lambda app: app.mailbox("a").pull(block=3), "pull() has no option 'block': write wait=seconds"),
        (lambda app: app.mailbox("a").claim(count=3), "claim() has no option 'count': write n=…"),
        (lambda app: app.chats.create(["a"], creator="b"), "create() has no option 'creator': write sender=…"),
        (lambda app: app.chats.of("a").pull(count=3), "pull() has no option 'count': write limit=…"),
        (lambda app: app.files("a", limit=3), "files() has no option 'limit': write open(limit=…"),
        (lambda app: app.queue("a", maxlen=3), "write queue.bound(jobs=…)"),
        (lambda app: app.queue("a").claim(timeout=3), "claim() has no option 'timeout': write wait=seconds"),
        (lambda app: app.claim(["a"], timeout=3), "claim() has no option 'timeout': write wait=seconds"),
        (lambda app: app.aggregate("a", group="b"), "aggregate() has no option 'group': the options are channel,"),
        (lambda app: type(app)(host="a"), "Penstock() has no option 'host': write the address or a client"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_right_one(use: Callable[[Any], Any], said: str):
    with pytest.raises(ConfigurationError) as refused:
        use(Penstock("unix:///nowhere"))
    assert said in str(refused.value)


async def test_it_is_refused_on_the_other_face_as_well(app: Penstock):
    box: Any = app.mailbox("m")
    with pytest.raises(ConfigurationError, match="has no option 'timeout': write wait=seconds"):
        await box.pull.aio(timeout=3)
    lock: Any = app.lock
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        lock(wait=3)


@pytest.mark.parametrize("wrong", ["10", None, 1.5, True])
async def test_a_wrong_limit_of_messages_is_named(app: Penstock, do: Do, wrong: Any):
    box, contacts = app.mailbox("m"), app.contacts("c")
    calls: list[tuple[Any, dict[str, Any]]] = [
        (box.pull, {"limit": wrong}),
        (box.history, {"limit": wrong}),
        (box.claim, {"n": wrong}),
        (box.dead.list, {"limit": wrong}),
        (box.dead.list, {"offset": wrong}),
        (contacts.complete, {"prefix": "a", "limit": wrong}),
    ]
    for verb, arguments in calls:
        with pytest.raises(ValueError, match=r"limit=|offset="):
            await do(verb, **arguments)


@pytest.mark.parametrize("wrong", ["5", float("nan"), True, -1])
async def test_a_wrong_wait_of_messages_is_named(app: Penstock, do: Do, wrong: Any):
    box = app.mailbox("m")
    for verb, arguments in ((box.pull, {}), (box.claim, {}), (box.post, {"value": 1})):
        with pytest.raises(ValueError, match="wait="):
            await do(verb, **arguments, wait=wrong)


def handle(account: str = "", n: int = 1) -> None: ...


WRONG: tuple[Any, ...] = (
    -1,
    True,
    "x",
    ["x"],
    {"a": 1},
    b"x",
    1.5,
    object(),
    float("nan"),
    10**30,
    timedelta(1),
    datetime(2027, 1, 1),
)
TEXTS: tuple[Any, ...] = tuple(one for one in WRONG if not isinstance(one, str))
NUMBERS: tuple[Any, ...] = tuple(one for one in WRONG if one != 1.5)
FLAGS: tuple[Any, ...] = tuple(one for one in WRONG if one is not True)


@pytest.fixture
def offline() -> Penstock:
    return Penstock("unix:///nowhere")


def refuses(make: Callable[..., Any], option: str, values: Iterable[Any], said: str = "") -> None:
    for wrong in values:
        with pytest.raises(ValueError, match=said or f"{option}="):
            make(**{option: wrong})


@pytest.mark.parametrize(
    ("option", "values", "said"),
    [
        ("queue", (*TEXTS, None), ""),
        ("name", TEXTS, "task"),
        ("retry", WRONG, "Retry"),
        ("timeout", (*NUMBERS, 0), ""),
        ("result_ttl", NUMBERS, ""),
        ("isolate", FLAGS, ""),
        ("schedule", WRONG, "schedule"),
        ("every", (*NUMBERS, 0), ""),
        ("unique", WRONG, ""),
        ("limit", WRONG, "limit"),
        ("batch", WRONG, "batch="),
    ],
)
def test_a_wrong_option_of_a_task_is_refused_where_it_is_written(
    offline: Penstock, option: str, values: Iterable[Any], said: str
):
    refuses(lambda **one: offline.task(**{"name": "handle", **one})(handle), option, values, said)


@pytest.mark.parametrize("option", ["timezone", "missed"])
def test_a_wrong_option_of_a_schedule_is_refused_where_it_is_written(offline: Penstock, option: str):
    refuses(lambda **one: offline.task(schedule="* * * * *", **one)(handle), option, WRONG, option)


@pytest.mark.parametrize(
    ("make", "option", "values"),
    [
        (Retry, "base", NUMBERS),
        (Retry, "cap", NUMBERS),
        (Retry, "factor", (*NUMBERS, 0.5)),
        (Retry, "jitter", (*NUMBERS, 1.5)),
        (Retry, "on", (*WRONG, int)),
        (Retry, "never", (*WRONG, (1,))),
        (Retry, "retry_if", WRONG),
        (Unique, "debounce", NUMBERS),
        (Unique, "throttle", NUMBERS),
        (Unique, "exact", TEXTS),
        (Unique, "replace", FLAGS),
        (partial(Batch, 5), "linger", NUMBERS),
        (partial(Batch, 5), "by_tenant", FLAGS),
        (partial(Rate, 1), "per", NUMBERS),
        (partial(Rate, 1, 1), "burst", WRONG),
    ],
)
def test_a_wrong_argument_of_a_policy_is_named(make: Any, option: str, values: Iterable[Any]):
    refuses(make, option, values)


def test_a_wrong_number_of_a_policy_is_shown():
    refuses(Retry, "times", WRONG, r"Retry\(.+\): the number of retries")
    refuses(Batch, "size", WRONG, r"Batch\(.+\): 1 to 500 jobs")
    refuses(RetryLater, "when", (*NUMBERS, None, float("inf")), r"RetryLater\(.+\): (seconds from 0|a date with)")


@pytest.mark.parametrize("kind", [Unique, partial(Concurrency, 1), partial(Rate, 1, 1)])
def test_a_key_that_is_no_text_is_refused_where_it_is_written(offline: Penstock, kind: Any):
    for wrong in TEXTS:
        power = kind(key=wrong)
        arguments: dict[str, Any] = {"unique" if isinstance(power, Unique) else "limit": power}
        with pytest.raises(ConfigurationError, match="key="):
            offline.task(**arguments)(handle)


@pytest.mark.parametrize("unique", [Unique("{account}", until="start", replace=True), Unique("{account}", debounce=5)])
def test_arguments_that_would_be_replaced_behind_a_limit_are_refused_where_they_are_written(
    offline: Penstock, unique: Unique
):
    with pytest.raises(ConfigurationError, match="but not both"):
        offline.task(unique=unique, limit=Concurrency(1, key="{account}"))(handle)
    limited: Any = offline.task(limit=Concurrency(1, key="{account}"))(handle)
    with pytest.raises(ConfigurationError, match="but not both"):
        limited.using(unique=unique)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("delay", NUMBERS),
        ("at", WRONG),
        ("priority", WRONG),
        ("tenant", TEXTS),
        ("expires", (*NUMBERS, 0)),
        ("result_ttl", NUMBERS),
        ("id", TEXTS),
        ("unique", WRONG),
        ("durable", FLAGS),
    ],
)
def test_a_wrong_option_of_a_job_is_named(offline: Penstock, option: str, values: Iterable[Any]):
    task: Any = offline.task(name="handle")(handle)
    refuses(task.using, option, values)
    refuses(partial(offline.queue("q").put, "x"), option, values)


@pytest.mark.parametrize("option", ["task", "tenant", "worker", "id_prefix"])
def test_a_wrong_condition_for_jobs_is_named(offline: Penstock, option: str):
    refuses(offline.queue("q").jobs, option, TEXTS)


@pytest.mark.parametrize("place", ["valkey"])
async def test_a_wrong_argument_of_a_queue_or_a_job_is_named(app: Penstock, do: Do):
    queue = app.queue("q")
    job = await do(queue.put, "x", delay=60)
    for verb, option, values in (
        (queue.claim, "wait", NUMBERS),
        (queue.claim, "lease", NUMBERS),
        (job.cancel, "wait", NUMBERS),
        (job.reschedule, "delay", NUMBERS),
        (job.reschedule, "at", WRONG),
        (job.edit, "priority", WRONG),
        (job.result, "on_progress", WRONG),
        (job.result, "timeout", [one for one in NUMBERS if one not in (-1, 10**30)]),
        (queue.pause, "task", TEXTS),
        (queue.pause, "tenant", TEXTS),
        (queue.resume, "task", TEXTS),
        (queue.resume, "tenant", TEXTS),
    ):
        for wrong in values:
            with pytest.raises((ValueError, BadCall), match=f"{option}="):
                await do(verb, **{option: wrong})
    for wrong in WRONG:
        with pytest.raises(ValueError, match=r"claim\("):
            await do(queue.claim, wrong)
    for lookup in (app.schedules.get, app.schedules.pause, app.schedules.trigger, app.schedules.remove):
        for wrong in TEXTS:
            with pytest.raises(BadCall, match="give its name"):
                await do(lookup, wrong)
    assert await do(job.cancel)


@pytest.mark.parametrize("option", ["keep", "history"])
def test_limits_of_messages_that_are_none_are_refused(offline: Penstock, option: str):
    refuses(offline.mailbox("m").keep, option, (*WRONG, "", 0, []))
    refuses(partial(offline.chats.create, ["ada"]), option, (*WRONG, "", 0, []))


def test_a_wrong_argument_of_messages_is_named(offline: Penstock):
    box, chats = offline.mailbox("m"), offline.chats
    chat = chats.get("c")
    refuses(partial(box.post, 1), "sender", (*TEXTS, None, 0, []), "sender name")
    refuses(box.post_many, "values", (-1, None, 1.5))
    refuses(partial(box.post_many, [1]), "ids", (-1, 1.5, True))
    refuses(partial(chat.send_many, "ada"), "messages", (-1, None, 1.5))
    refuses(chats.create, "members", (-1, None, b"x", True))
    refuses(partial(chats.create, ["ada"]), "sender", (*TEXTS, []), "member name")
    refuses(partial(chat.join, "ada"), "history", (True, -1, 1.5, "x", None, 10**30))
    refuses(partial(chat.reader, "ada"), "device", (*TEXTS, None, 0, []), "device name")
    refuses(partial(chats.of, "ada"), "device", (*TEXTS, None, 0, []), "device name")
    refuses(chats.of("ada").ack, "messages", ("x", -1, None))
    with pytest.raises(BadCall, match="give messages"):
        chats.of("ada").ack(["x"])  # type: ignore[list-item]


def test_a_wrong_argument_of_names_is_named(offline: Penstock):
    directory = offline.directory("d")
    refuses(partial(directory.complete, "a"), "after", (*TEXTS, "x"))
    refuses(partial(directory.add, "ada"), "weight", WRONG[:6], "weight")
    refuses(partial(directory.bump, "1"), "by", (True, "x", float("nan"), 10**30))
    refuses(partial(offline.directory, "d"), "equivalents", ("x", 5, ["x"]))


@pytest.mark.parametrize("place", ["valkey"])
async def test_a_wrong_argument_of_jobs_together_is_named(app: Penstock, do: Do):
    task: Any = app.task(name="handle")(handle)
    one: Any
    for one in (5, True, 1.5, ["x"]):
        with pytest.raises(BadCall, match="after="):
            task.using(after=one)
    refuses(task.map, "items", (5, None), r"handle\.map\(items=")
    for one in (5, None, "x"):
        with pytest.raises(ValueError, match=r"enqueue_many\(calls="):
            await do(app.enqueue_many, one)
    with pytest.raises(BadCall, match="half a character"):
        task.call("\ud800")


class NoOffset(tzinfo):
    def utcoffset(self, date: datetime | None, /) -> None: ...
    def dst(self, date: datetime | None, /) -> None: ...
    def tzname(self, date: datetime | None, /) -> None: ...


def test_a_date_whose_time_zone_has_no_offset_is_refused(offline: Penstock):
    date = datetime(2027, 1, 1, tzinfo=NoOffset())
    with pytest.raises(ValueError, match="a date with a time zone"):
        RetryLater(date)
    task: Any = offline.task(handle)
    for option in ("at", "expires"):
        with pytest.raises(ValueError, match=f"{option}=.* a date with a time zone"):
            task.using(**{option: date})


async def test_a_wrong_argument_inside_a_job_is_named(app: Penstock):
    stopped: list[str] = []

    async def charge() -> None: ...

    @app.task(name="pay")
    async def pay() -> None:
        job: Any = current()
        steps: Any = step
        wrong: Any
        for wrong in (5, None, "x", charge()):
            with pytest.raises(StepError, match=r"give a function, then its arguments"):
                steps(wrong)
        for wrong in NUMBERS:
            with pytest.raises(ValueError, match="fraction from 0 to 1"):
                job.progress(wrong)
            with pytest.raises(ValueError, match="timeout="):
                _ = wait_for("s", timeout=wrong)
        for wrong in ("x", None, True, float("nan")):
            with pytest.raises(ValueError, match=r"sleep\(days="):
                _ = sleep(days=wrong)
        key = app.queue("default").key("k")
        for wrong in (None, True, [], float("nan"), "\ud800"):
            with pytest.raises((TypeError, ValueError), match=r"set\('"):
                job.stage.set(key, wrong)
            with pytest.raises(ValueError, match="zadd"):
                job.stage.zadd(key, "m", wrong)
        stopped.append("all were refused")

    await pay.enqueue.aio()
    await run_burst(app)
    assert stopped == ["all were refused"]


WITH_NUMBERS: dict[str, Callable[[Penstock, Any], Any]] = {
    "list(limit=": lambda app, wrong: app.queue("q").dead.list(limit=wrong),
    "list(offset=": lambda app, wrong: app.queue("q").dead.list(offset=wrong),
    "weigh(weight=": lambda app, wrong: app.queue("q").tenant("a").weigh(wrong),
    "claim(n=": lambda app, wrong: app.queue("q").claim(wrong),
    "enqueue(priority=": lambda app, wrong: app.queue("q").put(1, priority=wrong),
    "enqueue(delay=": lambda app, wrong: app.queue("q").put(1, delay=wrong),
    "Rate(most=": lambda app, wrong: Rate(wrong, per=1),
    "Rate(per=": lambda app, wrong: Rate(1, per=wrong),
    "Concurrency(most=": lambda app, wrong: Concurrency(wrong),
    "Batch(size=": lambda app, wrong: Batch(wrong),
    "Batch(linger=": lambda app, wrong: Batch(2, linger=wrong),
    "Retry(base=": lambda app, wrong: Retry(3, base=wrong),
    "Retry(factor=": lambda app, wrong: Retry(3, factor=wrong),
    "RetryLater(when=": lambda app, wrong: RetryLater(wrong),
    "send_lines(settle=": lambda app, wrong: app.files("f").send_lines([], settle=wrong, receivers=["r"]),
    "receiver(longest=": lambda app, wrong: app.files("f").receiver("r").lines(longest=wrong),
    "rejected(limit=": lambda app, wrong: app.aggregate("f", receiver="r")(lambda lines: {}).rejected(limit=wrong),
    "top(n=": lambda app, wrong: app.aggregate("f", receiver="r")(lambda lines: {}).top("t", wrong),
}
WITH_NUMBERS_OR_NONE: dict[str, Callable[[Penstock, Any], Any]] = {
    "enqueue(expires=": lambda app, wrong: app.queue("q").put(1, expires=wrong),
    "enqueue(result_ttl=": lambda app, wrong: app.queue("q").put(1, result_ttl=wrong),
    "Unique(throttle=": lambda app, wrong: Unique("{a}", throttle=wrong),
    "Retry(times=": lambda app, wrong: Retry(wrong),
    "channel(limit=": lambda app, wrong: app.files("f").send(__file__, receivers=["r"], limit=wrong),
    "channel(patience=": lambda app, wrong: app.files("f").send(__file__, receivers=["r"], patience=wrong),
    "receiver(lease=": lambda app, wrong: app.files("f").receiver("r").lines(share=True, lease=wrong),
    "Keep(bytes=": lambda app, wrong: Keep(bytes=wrong),
    "History(messages=": lambda app, wrong: History(messages=wrong),
    "claim(max_deliveries=": lambda app, wrong: app.mailbox("m").claim(max_deliveries=wrong),
    "post(ttl=": lambda app, wrong: app.mailbox("m").post(1, ttl=wrong),
}


@pytest.mark.parametrize("wrong", ["5", -1, True, float("nan"), 10**30, None], ids=repr)
@pytest.mark.parametrize("named", [*WITH_NUMBERS, *WITH_NUMBERS_OR_NONE])
def test_a_wrong_number_is_a_value_error_that_names_the_argument(offline: Penstock, named: str, wrong: Any):
    call = WITH_NUMBERS.get(named) if wrong is None else {**WITH_NUMBERS, **WITH_NUMBERS_OR_NONE}[named]
    if call:
        with pytest.raises(ValueError, match=f"^{re.escape(named)}"):
            call(offline, wrong)
