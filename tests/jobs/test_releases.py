"""Which releases of the app have live workers, and which tasks those know."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

from penstock import Penstock
from penstock.errors import ConfigurationError
from penstock.jobs.claims import Registration
from penstock.jobs.counts import WorkerInfo
from penstock.jobs.release import Release
from tests.jobs.stand import FakeWorker, Stand


def listed(stand: Stand) -> list[WorkerInfo]:
    return stand.run(stand.bindings.workers(10))


def started(stand: Stand, name: str, release: Release) -> FakeWorker:
    worker = FakeWorker(stand, name)
    worker.turn(0, registration=Registration(f"host:{name}", 1, release=release))
    return worker


def test_the_workers_of_a_release_are_counted_once_until_the_last_one_ends(stand: Stand):
    old, new = Release("v1", "01", ("greet",)), Release("v2", "02", ("greet", "pay"))
    workers = [started(stand, "a", old), started(stand, "b", old), started(stand, "c", new)]
    workers[0].repeat_turn()
    assert stand.dump()["releases"] == {b"01": b"2 v1", b"02": b"1 v2"}
    assert stand.dump()["tasks:02"] == [b"greet", b"pay"]
    assert sorted(worker.release for worker in listed(stand)) == ["v1", "v1", "v2"]
    for worker in (workers[0], workers[2]):
        worker.turn(0, once=True)  # it leaves
        worker.repeat_turn()
    assert stand.dump()["releases"] == {b"01": b"1 v1"}
    assert "tasks:02" not in stand.dump()
    stand.advance(11)  # the lease of the last one runs out
    FakeWorker(stand, "v").turn(0)
    assert not {"releases", "workers", "tasks:01"} & set(stand.dump())


def test_a_damaged_registration_is_of_a_worker_without_a_name(stand: Stand):
    started(stand, "a", Release("v1", "01", ("greet",)))
    stand.client.hset(stand.base + "workers", "a", "host:1 {}")
    assert [(worker.name, worker.release) for worker in listed(stand)] == [("", "")]
    stand.advance(11)
    FakeWorker(stand, "v").turn(0)
    assert "workers" not in stand.dump()


# --- the code of a release ---


class Size(enum.Enum):
    SMALL = 1


@dataclass
class Order:
    number: int
    size: Size = Size.SMALL
    next: Order | None = None


class Other(msgspec.Struct):
    number: int


def code(function: Any, name: str | None = None) -> str:
    app = Penstock("valkey://unused:1")
    app.task(name="task")(function)
    return Release.of([(one.name, one.signature.described) for one in app.registry], name).code


def test_two_programs_with_the_same_parameters_have_the_same_code():
    def one(order: Order, kind: Annotated[Literal["a"], object()] = "a", *rest: list[int | None]) -> None: ...

    def two(order: Order, kind: Annotated[Literal["a"], object()] = "a", *rest: list[int | None]) -> None: ...

    assert code(one) == code(two) != code(two, "v2")


@pytest.mark.parametrize(
    "changed",
    [
        lambda: _with({"order": Order, "more": int}),
        lambda: _with({"order": Other}),
        lambda: _with({"order": list[Order]}),
        lambda: _with({"sorder": Order}),
    ],
    ids=["a parameter", "another class", "a list", "another name"],
)
def test_other_parameters_have_another_code(changed: Any):
    assert code(changed()) != code(_with({"order": Order}))


def test_a_new_field_or_member_gives_another_code(monkeypatch: pytest.MonkeyPatch):
    before = code(_with({"order": Order}))

    @dataclass
    class Longer(Order):
        currency: str = "EUR"

    Longer.__qualname__ = Order.__qualname__
    assert code(_with({"order": Longer})) != before


def _with(parameters: dict[str, Any]) -> Any:
    text = f"def f({', '.join(parameters)}): ..."
    scope: dict[str, Any] = {}
    exec(text, scope)
    scope["f"].__annotations__ = parameters
    return scope["f"]


@pytest.mark.parametrize("name", ["", "é" * 40, 7])
def test_a_name_that_does_not_fit_is_refused(name: Any):
    with pytest.raises(ConfigurationError, match="1 to 64 bytes"):
        Release.of([], name)


def test_the_name_is_a_setting(monkeypatch: pytest.MonkeyPatch):
    assert Release.of([]).name == Release.of([]).code
    monkeypatch.setenv("PENSTOCK_RELEASE", "v7")
    assert Release.of([]).name == "v7"
    assert Release.of([], "v8").name == "v8"
