"""`inspect.signature` and `help()` show verbs as a person calls them, on both faces."""

import inspect
import pydoc
from typing import Any

import pytest

import penstock
import penstock.counting
from penstock import Penstock, Queue
from penstock.core.operations import verb
from penstock.core.shown_signature import result_of

VERBS = [
    (kind, name)
    for facade in (penstock, penstock.counting)
    for kind in (getattr(facade, name) for name in facade.__all__)
    if inspect.isclass(kind)
    for name in dir(kind)
    if not name.startswith("_") and isinstance(inspect.getattr_static(kind, name), verb)
]


@pytest.fixture
def app() -> Penstock:
    return Penstock("redis://localhost:1")  # nothing here sends a command


def helped(thing: object) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


def is_shown(signature: str, text: str) -> bool:
    """Python 3.13 and newer break a long signature into lines."""
    return "".join(signature.split()) in "".join(text.split())


def first_line(kind: type, name: str) -> str:
    return (inspect.getdoc(inspect.getattr_static(kind, name)) or "").splitlines()[0]


@pytest.mark.parametrize(("kind", "name"), VERBS, ids=lambda part: getattr(part, "__name__", part))
def test_help_shows_a_verb_as_it_is_called(kind: type, name: str):
    bound = getattr(object.__new__(kind), name)
    for face in (bound, bound.aio):
        if kind is penstock.Task and face is bound:
            continue  # it has the parameters of a function, which this empty object lacks
        shown = inspect.signature(face)
        assert "self" not in shown.parameters
        assert not any(word in str(shown) for word in ("Operation[", "RoundTrip[", ": '", "-> '"))
        assert is_shown(f"{face.__name__}{shown}", helped(face))
        assert first_line(kind, name) in helped(face)
    assert inspect.iscoroutinefunction(bound.aio)
    assert is_shown(f"{name}{inspect.signature(getattr(kind, name))}", helped(getattr(kind, name)))
    assert next(iter(inspect.signature(getattr(kind, name)).parameters)) == "self"


def test_the_signature_is_the_whole_of_it(app: Penstock):
    shown = "(n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> list[Item]"
    assert str(inspect.signature(app.queue("q").claim)) == shown
    assert str(inspect.signature(app.queue("q").claim.aio)) == shown
    assert str(inspect.signature(Queue.claim)) == shown.replace("(", "(self, ", 1)
    assert repr(app.queue("q").claim) == "<verb Queue.claim of <Queue q>>"


def test_a_task_is_enqueued_with_the_parameters_of_its_function(app: Penstock):
    @app.task(queue="mail")
    async def send(to: str, subject: str = "Hi") -> int:
        raise NotImplementedError

    assert str(inspect.signature(send.enqueue)) == "(to: str, subject: str = 'Hi') -> Job[int]"
    assert is_shown("enqueue(to: str, subject: str = 'Hi') -> Job[int]", helped(send.enqueue))


def test_help_of_a_class_lists_its_verbs():
    assert is_shown(
        "| claim(self, n: int = 1, *, wait: float | None", helped(Queue).replace(" |  ", "|").replace("|   ", "")
    )


async def test_a_verb_of_a_class_is_called_with_an_object(app: Penstock):
    with pytest.raises(RuntimeError, match=r"count\(\) would block the running event loop"):
        Queue.count(app.queue("q"))


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        ("RoundTrip[None]", "None"),
        ("Operation[dict[str, Any]]", "dict[str, Any]"),
        ("RoundTrip[Job[R]] | Operation[Job[R]]", "Job[R]"),
        ("RoundTrip[Leader | None]", "Leader | None"),
        ("int | None", "int | None"),
    ],
)
def test_what_a_verb_is_made_of_is_not_shown(annotation: str, result: str):
    assert result_of(annotation) == result


def test_an_unknown_attribute_of_a_verb_is_none(app: Penstock):
    bound: Any = app.claim
    with pytest.raises(AttributeError, match=r"claim\(\) has no attribute 'later'"):
        _ = bound.later
    assert not hasattr(Queue.claim, "later")
