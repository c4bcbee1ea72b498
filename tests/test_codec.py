"""Values that JSON cannot hold are refused where they are written."""

import dataclasses
import math
import uuid
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


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (b"x", "base64.b64encode"), ({"a": [b"x"]}, "base64.b64encode"), ({1: 2}, "send str"), ([{1.5: 2}], "send str"),
        ({1: "a", "1": "b"}, "send str"),
    ],
)  # fmt: skip
async def test_a_value_that_would_be_read_as_another_one_is_refused(app: Penstock, do: Do, value: Any, fix: str):
    chat = await do(app.chats.create, ["ada"])
    for verb, args in [
        (app.mailbox("m").post, (value,)),
        (app.mailbox("m").post_many, ([value],)),
        (chat.send, ("ada", value)),
        (app.queue("raw").put_many, ([value],)),
    ]:
        with pytest.raises(BadCall, match=fix):
            await do(verb, *args)
    await do(chat.delete)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {"deep": [{uuid.UUID(int=1): 1, str(uuid.UUID(int=1)): 2}]}])
def test_two_keys_that_json_writes_alike_are_refused_in_arguments(value: Any):
    @Penstock("redis://nowhere").task
    def work(rows: Any) -> None: ...

    with pytest.raises(BadCall, match="one key in JSON"):
        work.call(value)
    work.call({1: "a", "2": "b"})
