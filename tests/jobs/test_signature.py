"""A call is checked where it is written: its arguments arrive with the annotated types, or it is never sent."""

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Optional
from uuid import UUID

import pytest

from penstock import BadCall, ConfigurationError, Penstock, PenstockError
from penstock.errors import PayloadTooLarge

NOWHERE = "unix:///nowhere"


class Colour(Enum):
    RED = "red"


@dataclass
class Person:
    name: str
    born: date | None = None


class Model:
    """Has the methods of a pydantic model."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.n == self.n

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise ValueError("n: an integer is wanted")
        return cls(value["n"])


def travel(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Encode a call, and run it as a worker does. Returns what the function returns."""
    task = Penstock(NOWHERE).task(function)
    return task.definition.signature.call(task.definition.signature.decode(task.call(*args, **kwargs).payload))


def everything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


# --- places and names ---


def plain(a: int, b: int = 2) -> Any:
    return a, b


def mixed(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **others: int) -> Any:
    return a, b, rest, c, d, others


def keywords(*, a: int, b: int = 2) -> Any:
    return a, b


def hidden(a: int, /, **others: int) -> Any:
    return a, others


def gap(a: int = 1, b: int = 2, /, c: int = 3, *, d: int = 4) -> Any:
    return a, b, c, d


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "seen"),
    [
        (plain, (1,), {}, (1, 2)),
        (plain, (1, 3), {}, (1, 3)),
        (plain, (), {"b": 3, "a": 1}, (1, 3)),
        (plain, (1,), {"b": 3}, (1, 3)),
        (mixed, (1,), {"c": 3}, (1, 2, (), 3, 4, {})),
        (mixed, (1, 2, 7, 8), {"c": 3, "d": 5, "x": 9}, (1, 2, (7, 8), 3, 5, {"x": 9})),
        (mixed, (1,), {"c": 3, "a": 6}, (1, 2, (), 3, 4, {"a": 6})),
        (mixed, (1,), {"c": 3, "rest": 6, "others": 7}, (1, 2, (), 3, 4, {"rest": 6, "others": 7})),
        (keywords, (), {"a": 1}, (1, 2)),
        (hidden, (1,), {"a": 2}, (1, {"a": 2})),
        (gap, (), {}, (1, 2, 3, 4)),
        (gap, (9,), {"c": 8}, (9, 2, 8, 4)),
        (everything, (1, "a", None), {"b": [1]}, ((1, "a", None), {"b": [1]})),
        (everything, (), {"args": 1, "kwargs": 2, "self": 3}, ((), {"args": 1, "kwargs": 2, "self": 3})),
        (lambda: 7, (), {}, 7),
    ],
)
def test_arguments_reach_their_parameters(function: Any, args: Any, kwargs: Any, seen: Any):
    assert travel(function, *args, **kwargs) == seen


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "said"),
    [
        (plain, (), {}, "missing required field `a`"),
        (plain, (1, 2, 3), {}, "takes 2 positional arguments, 3 were given"),
        (plain, (1,), {"a": 2}, "got a twice: by position and by name"),
        (plain, (1,), {"colour": 2}, "has no parameter colour; it has .*a"),
        (plain, ("one",), {}, "Expected `int`, got `str` for a"),
        (plain, (1, None), {}, "Expected `int`, got `null` for b"),
        (plain, (1.5,), {}, "Expected `int`, got `float` for a"),
        (plain, (True,), {}, "Expected `int`, got `bool` for a"),
        (keywords, (1,), {}, "takes 0 positional arguments, 1 were given"),
        (hidden, (), {"a": 1}, "missing required field `a`"),
        (mixed, (1, 2, "x"), {"c": 3}, "for "),
        (mixed, (1,), {}, "missing required field `c`"),
        (everything, (object(),), {}, "a object cannot be written as JSON"),
        (everything, ({1: object()},), {}, "cannot be written as JSON"),
        (everything, ("\ud800",), {}, "surrogate"),
    ],
)
def test_wrong_arguments_fail_in_the_call(function: Any, args: Any, kwargs: Any, said: str):
    task = Penstock(NOWHERE).task(function)
    for attempt in (task.call, task.enqueue):
        with pytest.raises(BadCall, match=said) as caught:
            attempt(*args, **kwargs)
        assert isinstance(caught.value, TypeError)
        assert f"{task.name}()" in str(caught.value)


def test_a_call_above_the_limit_is_refused():
    app = Penstock(NOWHERE)
    task = app.task(everything)
    task.call("x" * (app.settings.max_payload - 100))
    with pytest.raises(PayloadTooLarge, match=r"1,048,9\d\d bytes, the limit is 1,048,576"):
        task.call("x" * (app.settings.max_payload + 400))


def test_a_value_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadCall):
        Penstock(NOWHERE).task(everything).call(loop)


# --- values ---


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**60),
        (float, 1.5),
        (str, "名前 😀 \x00"),
        (bytes, b"\x00\xff"),
        (bool, True),
        (Optional[int], None),  # noqa: UP045
        (int | str, "a"),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (dict[str, list[float]], {"a": [1.5]}),
        (Literal["a", "b"], "b"),
        (datetime, datetime(2024, 2, 29, 12, 0, 1, 5, tzinfo=UTC)),
        (date, date(2024, 2, 29)),
        (timedelta, timedelta(days=2, seconds=1.5)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("0.10")),
        (Colour, Colour.RED),
        (Person, Person("Zoë", date(1999, 1, 2))),
        (list[Person], [Person("a"), Person("b")]),
        (Model, Model(7)),
        (dict[str, Model], {"a": Model(7)}),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_values_arrive_as_the_annotation_says(kind: Any, value: Any):
    def task(given: Any) -> Any:
        return given

    task.__annotations__["given"] = kind
    arrived = travel(task, value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_default_need_not_fit_its_annotation():
    def task(a: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return a

    assert travel(task) is None


def test_a_default_is_taken_from_the_function_that_runs():
    app = Penstock(NOWHERE)

    @app.task(name="old")
    def before(a: int, b: int = 1) -> Any:
        return a, b

    @app.task(name="new")
    def after(a: int, b: int = 2, c: int = 3) -> Any:
        return a, b, c

    payload = before.call(0).payload
    assert after.definition.signature.call(after.definition.signature.decode(payload)) == (0, 2, 3)


def test_a_call_that_no_longer_fits_is_refused():
    app = Penstock(NOWHERE)

    @app.task(name="old")
    def before(a: int, b: int) -> None: ...

    @app.task(name="new")
    def after(a: int) -> None: ...

    payload = before.call(0, 1).payload
    with pytest.raises(BadCall, match=r"new\(\): Object contains unknown field `b`"):
        after.definition.signature.decode(payload)


def test_a_model_that_refuses_a_value_is_a_bad_call():
    def task(model: Model) -> None: ...

    with pytest.raises(BadCall, match="an integer is wanted"):
        Penstock(NOWHERE).task(task).call({"n": "x"})  # type: ignore[arg-type]


def test_people_can_read_a_call_in_the_server():
    call = Penstock(NOWHERE).task(mixed).call(1, 2, 3, c=4, x=5)
    assert json.loads(call.payload) == {"a": 1, "b": 2, "*args": [3], "c": 4, "**kwargs": {"x": 5}}


# --- annotations that cannot work ---


def unresolvable(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def ambiguous(a: Person | Model | dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unresolvable, "task unresolvable: an annotation cannot be resolved: name 'Nowhere' is not defined"),
        (ambiguous, "task ambiguous: a parameter's annotation cannot be read from JSON"),
    ],
)
def test_an_annotation_that_cannot_work_is_reported_once(function: Any, said: str):
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        Penstock(NOWHERE).task(function).call({})


def test_an_annotation_without_a_json_form_is_refused():
    def task(a: Callable[[], int]) -> None: ...

    with pytest.raises(PenstockError, match=r"task.*: a Callable cannot be read from JSON"):
        Penstock(NOWHERE).task(task).call({})  # type: ignore[arg-type]


def test_a_return_annotation_without_a_json_form_is_refused():
    def task() -> Person | Model: ...  # type: ignore[empty-body]

    with pytest.raises(ConfigurationError, match="the return annotation cannot be read from JSON"):
        _ = Penstock(NOWHERE).task(task).definition.signature.returns


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("n must be positive")


def test_a_refused_call_shows_no_other_traceback_than_that_of_a_class_of_the_program() -> None:
    def send(to: str, amount: Positive | None = None) -> None: ...

    task, queue = Penstock(NOWHERE).task(send), Penstock(NOWHERE).queue("raw")

    refused: list[Callable[[], Any]] = [
        lambda: task.call(1),  # type: ignore[arg-type]
        lambda: task.call("a", subject="b"),  # type: ignore[call-arg]
        lambda: task.call("\ud800"),
        lambda: queue.put(object()),
        lambda: Penstock(NOWHERE).task(schedule="0 77 * * *")(send),
        lambda: Penstock(NOWHERE).task(schedule="0 7 * * *", timezone="Europa/Berlin")(send),
    ]
    for call in refused:
        with pytest.raises(PenstockError) as caught:
            call()
        assert "another exception occurred" not in (shown := "".join(traceback.format_exception(caught.value))), shown
        assert "direct cause" not in shown, shown

    with pytest.raises(BadCall, match="n must be positive") as caught:
        task.call("a", {"n": 0})  # type: ignore[arg-type]
    assert "in __post_init__" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(BadCall, match="no JSON for it") as caught:
        task.call(Unwritable(1))  # type: ignore[arg-type]
    assert "in model_dump" in "".join(traceback.format_exception(caught.value))


class Unwritable(Model):
    def model_dump(self, mode: str) -> dict[str, int]:
        raise ValueError("no JSON for it")
