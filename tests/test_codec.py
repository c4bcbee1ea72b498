"""Values that JSON cannot hold are refused where they are written."""

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from penstock import BadCall, Penstock, codec
from tests.conftest import Do


@dataclasses.dataclass
class Point:
    x: float
    y: float | None = None


class Shape(msgspec.Struct):
    points: list[Point]


class Model:
    """A class like pydantic's."""

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "x": math.inf}


NOT_NUMBERS = [
    math.nan,
    math.inf,
    -math.inf,
    [1, [math.nan]],
    {"a": {"b": math.inf}},
    (None, math.nan),
    {math.nan},
    Point(math.nan),
    Shape([Point(1, 2), Point(1, math.inf)]),
    Model(),
    {"x": Model()},
]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=range(len(NOT_NUMBERS)))
def test_a_number_that_json_cannot_hold_is_refused(value: Any):
    with pytest.raises(BadCall, match="cannot hold the number"):
        codec.encode(value, limit=1000, what="the value")


@pytest.mark.parametrize("value", [None, [None, 1.5], {"null": None}, "null", Point(1.5), {"a": {None}}], ids=repr)
def test_null_is_a_value(value: Any):
    assert b"null" in codec.encode(value, limit=1000, what="the value")


async def test_no_component_writes_null_for_a_number(app: Penstock, do: Do):
    @app.task
    def work(x: Any) -> None: ...

    chat = await do(app.chats.create, ["ada"])
    verbs = [
        (app.queue("q").put, (math.nan,)),
        (work.enqueue, ({"x": math.inf},)),
        (app.mailbox("b").post, ([math.nan],)),
        (app.mailbox("b").post_many, ([1, math.nan],)),
        (chat.send, ("ada", -math.inf)),
    ]
    for verb, args in verbs:
        with pytest.raises(BadCall, match="cannot hold the number"):
            await do(verb, *args)
    assert await do(app.mailbox("b").pull) == []
    assert (await do(app.queue("q").count)).ready == 0
