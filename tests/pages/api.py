"""The pages of the API, from docstrings and signatures.

The modules are imported and asked, not parsed: only so are the parameters of a verb those that a caller writes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import Signature
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.core.shown_signature import Written
from tests.pages.docstrings import first_sentence, markdown
from tests.pages.public import INSIDE, Public, everything, members_of

WIDTH = 100

# The pages, in the order of the navigation. A name belongs to the page that names its module, or the module's folder.
PAGES = {
    "app": "App, settings and worker",
    "tasks": "Tasks and flows",
    "jobs": "Jobs and queues",
    "inside": "Inside a job",
    "middleware": "Middleware",
    "locks": "Locks and what waits",
    "completion": "Contacts and directories",
    "messages": "Mailboxes and chats",
    "files": "Files",
    "counting": "Counting",
    "testing": "Testing",
    "info": "Answers",
    "history": "Histories for tests",
    "sql": "Databases",
    "integrations": "Integrations and dashboard",
}
PLACES = {
    "penstock.settings": "app",
    "penstock.worker": "app",
    **{
        f"penstock.jobs.{name}": "tasks"
        for name in ("task", "options", "retry", "unique", "limits", "batching", "flow")
    },
    "penstock.jobs.awaited": "tasks",
    "penstock.jobs.schedules": "tasks",
    "penstock.jobs.current": "inside",
    "penstock.jobs.stage": "inside",
    "penstock.jobs.durable": "inside",
    "penstock.jobs.dependencies": "inside",
    "penstock.jobs.middleware": "middleware",
    "penstock.jobs.reporting": "middleware",
    "penstock.testing.history": "history",
    "penstock.sql": "sql",
    "penstock.web": "integrations",
}

# Classes with parameters as those of the inside, which programs construct nevertheless.
CONSTRUCTED = {"Penstock", "Worker", "AppUnderTest"}


def page_of(public: Public) -> str:
    if public.module == "penstock.info":
        return "info"
    if public.module.startswith(("penstock.testing", "penstock.integrations", "penstock.sql", "penstock.web")):
        home = public.module
    else:
        home = getattr(public.thing, "__module__", None) or type(public.thing).__module__
    while home != "penstock":
        if home in PLACES:
            return PLACES[home]
        if home.removeprefix("penstock.") in PAGES:
            return home.removeprefix("penstock.")
        home = home.rpartition(".")[0] or "penstock"
    return "app"


def pages() -> dict[str, str]:
    """The text of each page by its path below `reference`."""
    sorted_out: dict[str, list[Public]] = defaultdict(list)
    for public in everything():
        if public.module != "penstock.errors":
            sorted_out[page_of(public)].append(public)
    made = {f"api/{name}.md": _page(title, sorted_out[name]) for name, title in PAGES.items()}
    made["api/index.md"] = _index(sorted_out)
    return made


def _index(sorted_out: dict[str, list[Public]]) -> str:
    text = [
        "# API",
        "Every public name, made from the docstrings of the installed release. A method that is shown with `.aio` "
        "talks to the server: called, it blocks; with `.aio` after its name it is awaited. "
        "The errors have [a page of their own](../errors.md).",
    ]
    for name, title in PAGES.items():
        text.append(f"## [{title}]({name}.md)")
        text.append(
            "\n".join(f"- [`{one.name}`]({name}.md#{_anchor(one.name)}): {_short(one)}" for one in sorted_out[name])
        )
    return "\n\n".join(text) + "\n"


def _short(one: Public) -> str:
    return first_sentence(_doc(one.thing)).rstrip(":")


def _anchor(*names: str) -> str:
    return "-".join(names).lower().replace("_", "-").strip("-")


def _page(title: str, names: list[Public]) -> str:
    return "\n\n".join([f"# {title}", *(block for one in names for block in _entry(one))]) + "\n"


def _entry(one: Public) -> Iterator[str]:
    yield f"## `{one.name}` {{ #{_anchor(one.name)} }}"
    yield f"```python\nfrom {one.module} import {one.name}\n```"
    if inspect.isclass(one.thing):
        yield from _class(one.name, one.thing)
        return
    if inspect.isroutine(one.thing):
        yield _code(one.name, inspect.signature(one.thing))
    elif callable(one.thing):
        yield _code(one.name, inspect.signature(one.thing))
        yield markdown(_doc(one.thing))
        for name, member in members_of(type(one.thing)):
            yield from _member(one.name, type(one.thing), name, member)
        return
    yield markdown(_doc(one.thing))


def _class(name: str, kind: type) -> Iterator[str]:
    yield markdown(_doc(kind))
    if issubclass(kind, Enum):
        yield "\n".join(f"- `{name}.{one.name}`: `{one.value!r}`" for one in kind)
    elif shown := list(_fields(kind)):
        yield "\n".join(shown)
    elif (made := _constructor(kind)) is not None:
        yield _code(name, made)
    members = list(members_of(kind))
    if listed := "\n".join(_property(kind, name, member) for name, member in members if isinstance(member, property)):
        yield listed
    for member_name, member in members:
        if not isinstance(member, property):
            yield from _member(name, kind, member_name, member)


def _property(kind: type, name: str, member: property) -> str:
    result = inspect.signature(member.fget).return_annotation if member.fget else Signature.empty
    shown = name if result is Signature.empty else f"{name}: {_type(result)}"
    return f"- `{shown}`: {' '.join((doc_of(kind, name) or '').split())}".rstrip(": ")


def _fields(kind: type) -> Iterator[str]:
    """The fields of a class of values, as a list; with the docstring of each where the source has one."""
    annotations = {
        name: text for base in reversed(kind.__mro__) for name, text in vars(base).get("__annotations__", {}).items()
    }
    documented = field_docs(kind)
    names, defaults = names_of_fields(kind), dict[str, Any]()
    if is_dataclass(kind):
        defaults = {one.name: one.default for one in fields(kind)}
    elif names:
        row: Any = kind
        struct_defaults = getattr(row, "__struct_defaults__", ())
        defaults = getattr(row, "_field_defaults", None) or dict(
            zip(reversed(names), reversed(struct_defaults), strict=False)
        )
    for name in names:
        default = defaults.get(name, MISSING)
        shown = (
            ""
            if default is MISSING or "object at" in repr(default) or "NODEFAULT" in repr(default)
            else f" = {default!r}"
        )
        text = f": {' '.join(documented[name].split())}" if name in documented else ""
        yield f"- `{name}: {_type(annotations.get(name, ''))}{shown}`{text}"


def names_of_fields(kind: type) -> list[str]:
    """The public fields of a dataclass, a struct or a named tuple, in order."""
    row: Any = kind
    if is_dataclass(kind):
        names = [one.name for one in fields(kind)]
    else:
        names = list(getattr(row, "__struct_fields__", ()) or getattr(row, "_fields", ()))
    annotations = {
        name: text for base in reversed(kind.__mro__) for name, text in vars(base).get("__annotations__", {}).items()
    }
    return [one for one in names if not one.startswith("_") and not INSIDE.search(str(annotations.get(one, "")))]


def field_docs(kind: type) -> dict[str, str]:
    """The strings below the fields of a class."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("penstock"):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, IndentationError):
            continue
        statements = getattr(body, "body", [])
        for one, after in pairwise(statements):
            match one, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


def _type(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _constructor(kind: type) -> Signature | None:
    """How a program makes one; None if a factory makes it."""
    try:
        made = inspect.signature(kind)
    except (TypeError, ValueError):
        return None
    text = " ".join(str(one.annotation) for one in made.parameters.values())
    if (
        INSIDE.search(text)
        or re.search(r"\b(Connector|SourceFile|Lease\w*|App\w*|Run|prefix)\b", str(made))
        or issubclass(kind, Exception)
    ):
        return None
    return made.replace(return_annotation=Signature.empty)


def _member(owner: str, kind: type, name: str, member: Any) -> Iterator[str]:
    yield f"### `{owner}.{name}` {{ #{_anchor(owner, name)} }}"
    signature = inspect.signature(as_called(getattr(kind, name)))
    if not isinstance(member, (staticmethod, classmethod)):
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    yield _code(name, signature, f"  # or await {name}.aio(…)" if hasattr(member, "_make") else "")
    if text := markdown(doc_of(kind, name)):
        yield text


def doc_of(kind: type, name: str) -> str | None:
    """The docstring of a member, or that of the member which it overrides."""
    docs = (_doc(vars(base)[name]) for base in kind.__mro__ if name in vars(base))
    return next(filter(None, docs), None)


def _doc(thing: Any) -> str | None:
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
    return doc if isinstance(doc, str) else None


def _plain(annotation: Any) -> Any:
    return Written(annotation) if isinstance(annotation, str) else annotation


def _written(signature: Signature) -> str:
    plain = [one.replace(annotation=_plain(one.annotation)) for one in signature.parameters.values()]
    shown = signature.replace(parameters=plain, return_annotation=_plain(signature.return_annotation))
    text = re.sub(
        r"= (<[\w.]+ object at 0x[0-9a-f]+>|<factory>|Ellipsis)", "= …", str(shown).replace("EllipsisType | ", "")
    )
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)


def as_called(thing: Any) -> Any:
    """What `inspect` can ask: a verb that takes a session is not called by its class."""
    return thing if callable(thing) else thing._make


def call_of(thing: Any, *, is_method: bool = False) -> str:
    """How a caller writes it, from the parenthesis on; "" for a class that a program does not construct."""
    signature = _constructor(thing) if inspect.isclass(thing) else inspect.signature(as_called(thing))
    if signature is None:
        return ""
    return _written(signature.replace(parameters=list(signature.parameters.values())[is_method:]))


def _code(name: str, signature: Signature, remark: str = "") -> str:
    """The signature as it would be written, on one line if it fits."""
    text = _written(signature)
    if len(name) + len(text) > WIDTH:
        parts, depth, current = list[str](), 0, ""
        inner, _, result = text[1:].rpartition(")")
        for letter in inner:
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(letter, 0)
            if letter == "," and not depth:
                parts.append(current.strip())
                current = ""
            else:
                current += letter
        parts.append(current.strip())
        text = "(\n    " + ",\n    ".join(parts) + ",\n)" + result
    return f"```python\n{name}{text}{remark}\n```"


def write(folder: Path) -> None:
    for name, text in pages().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
