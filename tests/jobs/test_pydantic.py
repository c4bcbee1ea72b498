"""Pydantic's models and other objects with fields arrive whole, or are refused where the call is written."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)
from pydantic.alias_generators import to_camel

from penstock import BadCall, ConfigurationError, Penstock, codec, per_job
from penstock.jobs.signature import Signature

T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    retry_count: int = 3
    next_due: datetime | None = None


class Aliased(BaseModel):
    plain: int = Field(1, alias="p")
    read: int = Field(2, validation_alias="r")
    written: int = Field(3, serialization_alias="w")
    chosen: int = Field(4, validation_alias=AliasChoices("c", AliasPath("deep", 0)))


class SerializedByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    user_id: int = Field(alias="userId")


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    tags: set[int]
    at: datetime
    pause: timedelta
    uid: UUID
    price: Decimal
    colour: Colour
    pair: tuple[int, str]


class Parsed(BaseModel):
    data: Json[list[int]]


class Area(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def square(self) -> int:
        return self.width**2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int = 1


class Numbers(RootModel[list[int]]):
    pass


class Page(BaseModel, Generic[T]):
    items: list[T]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(9, alias="livesLeft")


class Fish(BaseModel):
    kind: Literal["fish"] = "fish"
    depth: float


class Tank(BaseModel):
    pets: list[Annotated[Cat | Fish, Field(discriminator="kind")]]
    by_name: dict[str, Camel] = {}


class Noted(BaseModel):
    name: str
    _seen: int = PrivateAttr(0)


@dataclasses.dataclass
class Box:
    inner: Camel
    more: list[Aliased] = dataclasses.field(default_factory=list)


WHOLE: list[Any] = [
    Camel(retryCount=9, nextDue=datetime(2026, 1, 2, tzinfo=UTC)),  # type: ignore[call-arg]
    Aliased(p=9, r=8, written=7, c=6),  # type: ignore[call-arg]
    Aliased.model_validate({"p": 9, "r": 8, "deep": [7]}),
    SerializedByAlias(userId=5),
    Swapped(a=1, b=2),
    Strict(
        tags={1, 2},
        at=datetime(2026, 1, 2, tzinfo=UTC),
        pause=timedelta(seconds=1.5),
        uid=UUID(int=7),
        price=Decimal("1.10"),
        colour=Colour.RED,
        pair=(1, "x"),
    ),
    Parsed(data="[1, 2]"),  # type: ignore[arg-type]
    Area(width=3),
    Open(known=2, other=3),  # type: ignore[call-arg]
    Numbers([1, 2]),
    Page[Camel](items=[Camel(retryCount=9)]),  # type: ignore[call-arg]
    Tank(pets=[Cat(livesLeft=3), Fish(depth=1.5)], by_name={"x": Camel(retryCount=9)}),  # type: ignore[call-arg]
    Noted(name="Ada"),
    Box(Camel(retryCount=9), [Aliased(p=9)]),  # type: ignore[call-arg]
]


@pytest.mark.parametrize("value", WHOLE, ids=lambda value: type(value).__name__)
def test_a_model_arrives_whole(value: Any):
    data = codec.encode(value, limit=10_000, what="the value")
    assert codec.decoder(type(value)).decode(data) == value
    several = codec.encode([value], limit=10_000, what="the value")
    assert codec.decoder(list.__class_getitem__(type(value))).decode(several) == [value]


class Login(BaseModel):
    password: SecretStr


class Team(BaseModel):
    logins: list[Login] = []
    lead: Login | None = None


class Excluded(BaseModel):
    kept: int = 1
    secret: str = Field(default="none", exclude=True)


class Rounded(BaseModel):
    price: float

    @field_serializer("price")
    def round_it(self, value: float) -> float:
        return round(value)


class Hashed(BaseModel):
    password: str

    @field_validator("password")
    @classmethod
    def hash_it(cls, value: str) -> str:
        return f"hash of {value}"


class Animal(BaseModel):
    name: str


class Dog(Animal):
    breed: str = "none"


class Cage(BaseModel):
    animal: Animal


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Login(password=SecretStr("hush")), r"Login\.password"),
        (Team(lead=Login(password=SecretStr("hush"))), r"Login\.password|Team\.lead\.password"),
        (Team(logins=[Login(password=SecretStr("hush"))]), r"Team\.logins"),
        ([{"deep": Login(password=SecretStr("hush"))}], r"Login\.password"),
        (Excluded(secret="x"), r"Excluded\.secret"),
        (Rounded(price=1.5), r"Rounded\.price"),
        (Hashed(password="x"), r"Hashed\.password"),
        (Cage(animal=Dog(name="Rex", breed="pug")), r"Cage\.animal"),
    ],
)
def test_what_pydantic_would_lose_is_refused_by_the_name_of_its_field(value: Any, field: str):
    with pytest.raises(BadCall, match=f"the value: ({field}) would arrive with another value") as refused:
        codec.encode(value, limit=10_000, what="the value")
    assert "hush" not in str(refused.value)


def test_a_field_that_is_left_out_and_has_its_default_is_not_lost():
    assert codec.encode(Excluded(), limit=100, what="the value") == b'{"kept":1}'


@dataclasses.dataclass
class Shape:
    name: str


@dataclasses.dataclass
class Square(Shape):
    width: int = 1


class Place(msgspec.Struct):
    city: str


class Address(Place):
    street: str = ""


class Order(TypedDict):
    number: int


def of_model(x: Animal) -> None: ...
def of_models(x: list[Animal]) -> None: ...
def of_dict(x: dict[str, Animal]) -> None: ...
def of_dataclass(x: Shape, y: Any = None) -> None: ...
def of_struct(*x: Place) -> None: ...
def of_typed_dict(x: Order) -> None: ...
def by_name(**x: Shape) -> None: ...


@pytest.mark.parametrize(
    ("function", "value", "lost"),
    [
        (of_model, Dog(name="Rex"), r"x\.breed"),
        (of_models, [Animal(name="A"), Dog(name="Rex")], r"x\[1\]\.breed"),
        (of_dict, {"a": Dog(name="Rex")}, r"x\.a\.breed"),
        (of_dataclass, Square("s"), r"x\.width"),
        (of_dataclass, {"name": "s", "nmae": 1}, r"x\.nmae"),
        (of_struct, Address("Rome"), r"\*args\[0\]\.street"),
        (of_typed_dict, {"number": 1, "nubmer": 2}, r"x\.nubmer"),
    ],
)
def test_a_field_that_the_annotation_lacks_is_refused(function: Callable[..., None], value: Any, lost: str):
    task = Penstock("unix:///nowhere").task(function)
    with pytest.raises(BadCall, match=rf"{function.__name__}\(\): {lost} would not arrive"):
        task.call(value)


def test_objects_of_the_annotated_class_pass():
    app = Penstock("unix:///nowhere")
    app.task(of_models).call([Animal(name="A"), Animal(name="B")])
    app.task(of_dataclass).call(Shape("s"), Square("s"))
    app.task(name="again")(of_dataclass).call({"name": "s"})  # type: ignore[arg-type]
    app.task(of_struct).call(Place("Rome"), Place("Oslo"))
    app.task(by_name).call(a=Shape("s"))
    with pytest.raises(BadCall, match=r"\*\*kwargs\.a\.width"):
        app.task(name="by_name2")(by_name).call(a=Square("s"))


class ByKind(BaseModel):
    kind: Literal["by"] = "by"
    retry_count: int = Field(1, alias="retryCount")


class OfKind(BaseModel):
    kind: Literal["of"] = "of"
    good: bool = Field(True, alias="isGood")


Kinds = Annotated[ByKind | OfKind, Field(discriminator="kind")]


def one_of(x: ByKind | OfKind) -> ByKind | OfKind:
    return x


def one_by_its_kind(x: Kinds, *more: Kinds, **named: list[Kinds]) -> Kinds:
    return x


def a_model_or_a_number(x: Camel | int | None = None) -> list[Camel | int]: ...  # type: ignore[empty-body]
def annotated(x: Annotated[Camel | str, "a note"]) -> None: ...


@pytest.mark.parametrize("function", [one_of, one_by_its_kind])
@pytest.mark.parametrize("value", [ByKind(retryCount=9), OfKind(isGood=False)])
def test_a_union_of_models_arrives_whole(function: Callable[..., Any], value: Any):
    signature = Signature("f", function)
    arguments = signature.decode(signature.encode((value,), {}, 1000))
    assert signature.value(arguments, "x") == value
    assert signature.returns.decode(codec.encode(value, limit=1000, what="the value")) == value
    with pytest.raises(BadCall, match="x"):
        signature.encode((5,), {}, 1000)


def test_unions_of_models_are_read_at_any_depth():
    signature = Signature("f", one_by_its_kind)
    several = OfKind(isGood=False), ByKind(retryCount=9), OfKind()  # type: ignore[call-arg]
    arguments = signature.decode(signature.encode(several, {"y": [several[1]]}, 1000))
    assert signature.value(arguments, "more") == [*several[1:]]
    assert signature.value(arguments, "named") == {"y": [several[1]]}


@pytest.mark.parametrize("value", [Camel(retryCount=9), 5, None])  # type: ignore[call-arg]
def test_a_model_or_another_value_arrives_whole(value: Any):
    signature = Signature("f", a_model_or_a_number)
    arguments = signature.decode(signature.encode((value,), {}, 1000))
    assert signature.value(arguments, "x") == value
    assert signature.value(signature.decode(signature.encode((), {}, 1000)), "x") is None
    if value is not None:
        assert signature.returns.decode(codec.encode([value], limit=1000, what="the value")) == [value]
    if isinstance(value, Camel):
        note = Signature("f", annotated)
        assert note.value(note.decode(note.encode((value,), {}, 1000)), "x") == value


class First(BaseModel):
    n: int


class Second(BaseModel):
    n: int


def either(x: First | Second) -> None: ...


def test_a_model_that_would_arrive_as_another_class_is_refused():
    """Their JSON is the same."""
    signature = Signature("f", either)
    signature.encode((First(n=1),), {}, 1000)
    with pytest.raises(BadCall, match="x of class Second would not arrive"):
        signature.encode((Second(n=1),), {}, 1000)


class Picture(BaseModel):
    name: str
    pixels: bytes


def test_bytes_that_json_cannot_hold_are_refused_by_the_name_of_their_field():
    with pytest.raises(BadCall, match=r"the value: Picture\.pixels: .*utf-8"):
        codec.encode(Picture(name="a", pixels=b"\xff"), limit=100, what="the value")


def a_model_or_bytes(x: First | bytes) -> None: ...
def a_model_or_some_bytes(x: First | dict[str, bytes]) -> None: ...


@pytest.mark.parametrize("function", [a_model_or_bytes, a_model_or_some_bytes])
def test_a_model_or_bytes_is_refused(function: Callable[..., Any]):
    """msgspec writes bytes in base64, and pydantic would take that text for the bytes."""
    with pytest.raises(ConfigurationError, match="cannot be read from JSON"):
        Signature("f", function).encode((First(n=1),), {}, 1000)


# --- classes of which no object can be made, and annotations that do not name a class ---


class AbstractModel(BaseModel, ABC):
    @abstractmethod
    def area(self) -> int: ...


@dataclasses.dataclass
class AbstractData(ABC):
    x: int

    @abstractmethod
    def area(self) -> int: ...


class Holds(BaseModel):
    others: "list[Holds]"
    inner: BaseModel


@pytest.mark.parametrize(
    "kind",
    [BaseModel, AbstractModel, AbstractData, list[BaseModel], Area | BaseModel, dict[str, AbstractModel | None], Holds],
)
def test_an_abstract_class_is_refused_where_the_task_is_declared(kind: Any):
    def takes(x: Any) -> None: ...

    def gives() -> Any: ...

    takes.__annotations__["x"] = gives.__annotations__["return"] = kind
    with Penstock("unix:///nowhere") as app:
        for function, what in ((takes, "the annotation of x"), (gives, "the return annotation")):
            with pytest.raises(ConfigurationError, match=f"{what} has .*of which no object can be made: name the"):
                app.task(function)


def test_an_abstract_class_in_a_text_is_refused_at_the_first_call():
    def takes(x: "BaseModel") -> None: ...

    with Penstock("unix:///nowhere") as app, pytest.raises(ConfigurationError, match="annotation of x has BaseModel"):
        app.task(takes).call(Area(width=1))


def test_a_worker_may_fill_a_parameter_of_an_abstract_class():
    def made() -> Iterator[Any]:
        yield None

    def takes(x: int, one: AbstractData = per_job(made)) -> None: ...

    with Penstock("unix:///nowhere") as app:
        app.task(takes).call(1)


def test_an_object_that_would_arrive_as_a_dict_is_reported_once(caplog: pytest.LogCaptureFixture):
    def takes(a=None, b: Any = None, c: list = [], *d: Any, e: dict[str, Any] = {}, f: Area | None = None) -> None: ...  # noqa: B006

    with Penstock("unix:///nowhere") as app:
        task = app.task(takes)
        for _ in range(2):
            task.call(Area(width=1), Camel(), [Area(width=2)], {"x": [Area(width=3)]}, e={"y": Area(width=4)})
            task.call({"a": 1}, [1], f=Area(width=5))
    words = [record.getMessage().partition(" arrives as a dict")[0] for record in caplog.records]
    assert words == [
        "task takes: the Area in a",
        "task takes: the Camel in b",
        "task takes: the Area in c",
        "task takes: the Area in d",
        "task takes: the Area in e",
    ]
