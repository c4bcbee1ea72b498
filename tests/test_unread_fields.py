"""Which fields of JSON a class has not read, and that none is reported where all were read."""

import dataclasses
import datetime
import decimal
import enum
import typing
import uuid
from typing import Any

import msgspec
import pydantic
import pytest

from penstock import BadCall, Penstock


class Size(enum.Enum):
    SMALL = "s"


@dataclasses.dataclass
class Node:
    number: int
    by_date: dict[datetime.datetime, int] = dataclasses.field(default_factory=dict)
    by_size: dict[Size, int] = dataclasses.field(default_factory=dict)
    by_id: dict[uuid.UUID, list[Size]] = dataclasses.field(default_factory=dict)
    next: "Node | None" = None


class Tagged(msgspec.Struct, tag=True, omit_defaults=True, rename="camel"):
    some_name: int = 1
    inner: "Tagged | None" = None


class Row(msgspec.Struct, array_like=True):
    number: int
    text: str = "x"


class Root(pydantic.RootModel[dict[str, int]]):
    pass


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    number: int


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=str.upper, populate_by_name=True)
    some: int
    inner: dict[Size, int] = {}


class Money(pydantic.BaseModel):
    amount: decimal.Decimal

    @pydantic.model_serializer
    def written(self) -> dict[str, str]:
        return {"value": str(self.amount)}

    @pydantic.model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return {"amount": value["value"]} if isinstance(value, dict) and "value" in value else value


class Some(typing.TypedDict, total=False):
    number: int
    nodes: list[Node]


@dataclasses.dataclass(frozen=True)
class Key:
    number: int


class Pair(typing.NamedTuple):
    number: int
    node: Node


NODE = Node(
    1,
    {datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC): 1},
    {Size.SMALL: 2},
    {uuid.UUID(int=7): [Size.SMALL]},
    Node(3),
)

VALUES: dict[str, tuple[Any, Any]] = {
    "a dataclass": (Node, NODE),
    "a tagged struct": (Tagged, Tagged(5, Tagged())),
    "a union": (Tagged | list[int] | None, Tagged(5, Tagged())),
    "an array": (Row, Row(1)),
    "a root model": (Root, Root({"a": 1})),
    "an open model": (Open, Open.model_validate({"number": 1, "more": {"deep": 1}})),
    "aliases": (Aliased, Aliased.model_validate({"some": 1, "inner": {"s": 1}})),
    "a model with a form of its own": (Money, Money(amount=decimal.Decimal("1.5"))),
    "a typed dict": (Some, {"number": 1, "nodes": [NODE]}),
    "a set": (set[Key], {Key(1), Key(2)}),
    "a named tuple": (Pair, Pair(1, NODE)),
    "a map": (dict[str, Node], {"one": NODE}),
    "anything": (Any, {"any": [{"thing": 1}]}),
}


def reader(kind: Any) -> Any:
    app = Penstock("valkey://unused:1")

    def task(node: Node, value: Any = None, *more: Any, **named: Any) -> None: ...

    task.__annotations__ |= {"value": kind, "more": kind, "named": kind}
    return app.task(task)


@pytest.mark.parametrize("name", VALUES)
def test_what_was_read_whole_is_not_reported(name: str):
    kind, value = VALUES[name]
    task = reader(kind)
    payload = task.call(NODE, value, value, value, last=value).payload
    task.definition.signature.read(payload, payload)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b'{"node":{"number":1,"new":2}}', "node.new"),
        (b'{"node":{"number":1,"next":{"number":2,"new":3}}}', "node.next.new"),
        (
            b'{"node":{"number":1},"value":{"nodes":[{"number":1},{"number":2,"new":3}]}}',
            r"value.nodes\[1\].new",
        ),
        (b'{"node":{"number":1},"value":{"new":1}}', "value.new"),
        (b'{"node":{"number":1},"*args":[{"new":1}]}', r"\*args\[0\].new"),
        (b'{"node":{"number":1},"**kwargs":{"a":{"new":1}}}', r"\*\*kwargs.a.new"),
    ],
    ids=range(6),
)
def test_a_field_that_was_not_read_is_named(payload: bytes, path: str):
    signature = reader(Some).definition.signature
    with pytest.raises(BadCall, match=f"{path} is unknown"):
        signature.read(payload, payload)
    assert signature.decode_all([payload]) is None
