"""Writes objects with fields as JSON and finds what would be lost: dataclasses, msgspec's structs, pydantic's models.

A pydantic model is written and read by the names of its fields. Aliases are ignored, because they may differ between
writing and reading. This module never imports pydantic: a program that has a model has imported it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

_FLAGS: Final = {"by_alias": False, "by_name": True}


def is_model(kind: Any) -> bool:
    """Whether this class is a model of pydantic 2."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def dump(model: Any) -> Any:
    """The model as values that JSON can hold. Raises ValueError with the field if reading it would give another value.

    Pydantic itself loses some values: it writes stars for a `SecretStr`, leaves out fields with `exclude=True`, and
    writes a subclass by the fields of the annotated class. So the JSON is read again and compared.
    """
    kind = type(model)
    try:
        written = model.model_dump_json(round_trip=True, by_alias=False)
    except ValueError as error:
        raise ValueError(f"{kind.__qualname__}{_unwritten(model)}: {error}") from error.__cause__
    try:
        read = load(kind, written)
    except ValueError as error:
        raise ValueError(f"{kind.__qualname__} cannot be read from its own JSON: {error}") from error.__cause__
    lost = _first_difference(model, read)
    if lost is not None:
        raise ValueError(
            f"{kind.__qualname__}.{lost} would arrive with another value: pydantic does not write all of it to JSON. "
            "Pass what is needed as a parameter or a field that JSON can hold"
        )
    return json.loads(written)


def canonical(model: Any) -> Any:
    """Like `dump`, but equal models give equal values: the members of sets are sorted, and moments are in UTC."""
    return _sorted(model.model_dump(round_trip=True, by_alias=False), dump(model))


def _sorted(value: Any, written: Any) -> Any:
    """`written` with the members of sorted sets, and moments in UTC. `value`: what was written."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, set | frozenset):
        return sorted(written, key=msgspec.json.encode)
    if isinstance(value, dict) and isinstance(written, dict):
        return {key: _sorted(one, it) for (key, it), one in zip(written.items(), value.values(), strict=True)}
    if isinstance(value, list | tuple) and isinstance(written, list):
        return [_sorted(one, it) for one, it in zip(value, written, strict=True)]
    return written


def _unwritten(model: Any) -> str:
    """The first field, with a dot before it, that pydantic cannot write; "" if each one can be written."""
    for name in type(model).model_fields:
        try:
            model.model_dump_json(include={name}, round_trip=True)
        except ValueError:
            return f".{name}"
    return ""


class UnionOfModels(type):
    """The class of the stand-ins by which `readable` replaces unions. Every value is an instance of each of them."""

    adapter: Any
    flags: Mapping[str, bool]

    def __instancecheck__(cls, value: object) -> bool:
        return True


def readable(annotation: Any) -> Any:
    """An annotation that msgspec can read. It refuses unions that have a model, so pydantic reads these."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = readable(members[0])
        if inner is members[0]:
            return annotation
        return _read_by_pydantic(annotation, inner.flags) if isinstance(inner, UnionOfModels) else inner
    if origin in (typing.Union, types.UnionType):
        kinds = [typing.get_args(one)[0] if typing.get_origin(one) is typing.Annotated else one for one in members]
        several = [kind for kind in kinds if kind is not type(None)]
        models = [kind for kind in several if is_model(kind)]
        if models and len(several) > 1 and msgspec.UnsetType not in several and not _has_bytes(annotation):
            return _read_by_pydantic(annotation, _flags(models[0]))
    if origin is None or origin is typing.Literal:
        return annotation
    changed = tuple(map(readable, members))
    if all(new is old for new, old in zip(changed, members, strict=True)):
        return annotation
    return typing.Union[changed] if origin is types.UnionType else origin[changed]  # noqa: UP007 - of a tuple


def _has_bytes(annotation: Any) -> bool:
    """Whether values of it may be bytes: msgspec writes them in base64, which pydantic would take for the bytes."""
    return annotation in (bytes, bytearray, memoryview) or any(map(_has_bytes, typing.get_args(annotation)))


def _read_by_pydantic(annotation: Any, flags: Mapping[str, bool]) -> UnionOfModels:
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)
    return UnionOfModels(str(annotation), (), {"adapter": adapter, "flags": flags})


def load(kind: Any, data: str | bytes) -> Any:
    """A model from the JSON of its fields. Raises pydantic's ValidationError, a ValueError."""
    try:
        if isinstance(kind, UnionOfModels):
            return kind.adapter.validate_json(data, **kind.flags)
        return kind.model_validate_json(data, **_flags(kind))
    except RuntimeError as error:  # pydantic cannot make objects of a class in it: the class is abstract or unfinished
        if isinstance(error, RecursionError):
            raise
        raise ValueError(f"pydantic cannot read {kind.__qualname__}: {str(error).splitlines()[0]}") from None


@lru_cache(1)
def _flags(kind: Any) -> dict[str, bool]:
    """How pydantic reads fields by name. Before its release 2.11 only the model itself could allow that."""
    return _FLAGS if "by_name" in inspect.signature(kind.model_validate_json).parameters else {}


def _first_difference(given: Any, read: Any) -> str | None:
    """The path of a field whose value differs, such as `login.password`; None if all are equal."""
    extra = given.__pydantic_extra__ or {}
    for name in (*type(given).model_fields, *extra):
        one, other = getattr(given, name), getattr(read, name, None)
        if is_model(type(one)) and type(one) is type(other):
            below = _first_difference(one, other)
            if below is not None:
                return f"{name}.{below}"
        elif not _is_same(one, other):
            return str(name)
    return None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal. If their class compares only identities, compare all their attributes."""
    if type(one) is type(other) and "__eq__" not in {name for kind in type(one).__mro__[:-1] for name in vars(kind)}:
        return getattr(one, "__dict__", None) == getattr(other, "__dict__", None)
    return bool(one == other)


def abstract_class(annotation: Any, above: tuple[Any, ...] = ()) -> str | None:
    """The name of a class in an annotation of which no object can be made, such as pydantic's `BaseModel`; or None.

    above  the models that have the annotation in a field
    """
    inner = [*typing.get_args(annotation)]
    if isinstance(annotation, type) and fields_of(annotation) is not None:
        is_base = is_model(annotation) and annotation.__module__.partition(".")[0] == "pydantic"
        if is_base or inspect.isabstract(annotation):
            return annotation.__qualname__
        if is_model(annotation) and annotation not in above:
            above = (*above, annotation)
            inner += [field.annotation for field in annotation.model_fields.values()]  # type: ignore[attr-defined]
    found = (abstract_class(one, above) for one in inner)
    return next((name for name in found if name is not None), None)


def takes_text_and_more(annotation: Any) -> bool:
    """Whether values of an annotation may be texts, and may be something else that could have the same text."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return takes_text_and_more(members[0])
    if origin is typing.Literal:
        return len({type(one) for one in members}) > 1
    if origin in (typing.Union, types.UnionType):
        return any(one is str or takes_text_and_more(one) for one in members) or any(
            typing.get_origin(one) is typing.Literal for one in members
        )
    return annotation in (Any, object) or isinstance(annotation, typing.TypeVar)


def is_untyped(annotation: Any) -> bool:
    """Whether an annotation leaves the class of a value open, at any depth: `Any`, `list`, `dict[str, Any]`."""
    bare = (object, dict, list, tuple, set, frozenset)
    return annotation is Any or annotation in bare or any(map(is_untyped, typing.get_args(annotation)))


def class_lost(given: Any, read: Any) -> str | None:
    """The name of a class with fields whose object was read as a dict, at any depth; None if it has no such object.

    given, read  as for `lost_field`
    """
    if isinstance(given, list | tuple) and isinstance(read, list | tuple):
        pairs = [*zip(given, read, strict=False)]
    elif not isinstance(read, dict):
        return None
    elif isinstance(given, Mapping):
        pairs = [(value, read[name]) for name, value in given.items() if name in read]
    else:
        kind = type(given)
        return kind.__qualname__ if fields_of(kind) is not None or hasattr(kind, "model_dump") else None
    return next((found for pair in pairs if (found := class_lost(*pair)) is not None), None)


def has_fields(annotation: Any) -> bool:
    """Whether an annotation has a class with fields in it, at any depth."""
    return fields_of(annotation) is not None or any(map(has_fields, typing.get_args(annotation)))


def fields_of(kind: Any) -> frozenset[str] | None:
    """The names that the fields of a class have in JSON; None for a class without fields."""
    if is_model(kind):
        return frozenset(kind.model_fields)
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind):
        return frozenset(one.name for one in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return frozenset(kind.__struct_encode_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return frozenset(one.name for one in kind.__attrs_attrs__)
    return frozenset(typing.get_type_hints(kind)) if typing.is_typeddict(kind) else None


@lru_cache(maxsize=1024)
def _class_fields(kind: type) -> frozenset[str] | None:
    """The fields of the class of a value. A worker reads values of few classes again and again."""
    return fields_of(kind)


def lost_field(given: Any, read: Any) -> str | None:
    """The path of a field that is lost when a value is written and read, such as `[2].breed`; None if nothing is lost.

    given  the value before it was written as JSON
    read   the value as its annotation reads the JSON
    """
    if isinstance(given, list | tuple) and isinstance(read, list | tuple):
        found = (_below(f"[{i}]", one, other) for i, (one, other) in enumerate(zip(given, read, strict=False)))
        return next((path for path in found if path), None)
    if is_model(type(given)) and is_model(type(read)) and not isinstance(given, type(read)):
        return f" of class {type(given).__qualname__}"  # of the classes of a union, another one fits as well
    fields = fields_of(type(read))
    if fields is None and not isinstance(read, Mapping):
        return None
    has: Mapping[Any, Any] = given if isinstance(given, Mapping) else _values_of(given)
    kept = {str(name) for name in read} if fields is None else fields
    lost = next((name for name in has if isinstance(name, str) and name not in kept), None)
    if lost is not None:
        return f".{lost}"
    after: Mapping[Any, Any] = read if fields is None else _values_of(read)
    found = (_below(f".{name}", value, after[name]) for name, value in has.items() if name in after)
    return next((path for path in found if path), None)


def unread_field(sent: Any, read: Any) -> str | None:
    """The path of a field in JSON that `read` does not have, such as `[2].breed`; None if all of it was read.

    sent  the values of the JSON
    read  the value that an annotation made of it
    """
    if not _may_lack(sent, read):
        return None
    try:  # the names alone may mislead, because a class may write its own JSON: compare with what it writes
        written = msgspec.to_builtins(read, enc_hook=_written, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        return None
    return _missing(sent, written)


def _written(value: Any) -> Any:
    if is_model(type(value)):
        return value.model_dump(mode="json", round_trip=True, by_alias=False)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError


def _may_lack(sent: Any, read: Any) -> bool:
    """Whether JSON has more names than the class of `read` has fields, at any depth."""
    if isinstance(sent, list):
        if not isinstance(read, list | tuple):
            return bool(sent) and not isinstance(read, set | frozenset)
        pairs = zip(sent, read, strict=False)
    elif not isinstance(sent, dict):
        return False
    elif isinstance(read, Mapping):
        if len(sent) > len(read):
            return True
        pairs = zip(sent.values(), read.values(), strict=False)
    else:
        kind: Any = type(read)
        fields = _class_fields(kind)
        if fields is None or not fields.issuperset(sent):
            return True
        nested = [name for name, value in sent.items() if isinstance(value, dict | list)]
        values = _values_of(read) if nested else {}
        pairs = zip([sent[name] for name in nested], [values.get(name) for name in nested], strict=True)
    return any(_may_lack(one, other) for one, other in pairs if isinstance(one, dict | list))


def _missing(sent: Any, written: Any) -> str | None:
    """The path of the first name in `sent` that `written` lacks."""
    if isinstance(sent, list) and isinstance(written, list):
        pairs = zip(sent, written, strict=False)
        return next((f"[{i}]{path}" for i, pair in enumerate(pairs) if (path := _missing(*pair)) is not None), None)
    if not isinstance(sent, dict) or not isinstance(written, dict):
        return None
    lost = next((name for name in sent if name not in written), None)
    if lost is not None:
        return f".{lost}"
    found = (_below_missing(name, value, written) for name, value in sent.items() if name in written)
    return next((path for path in found if path is not None), None)


def _below_missing(name: str, value: Any, written: Mapping[str, Any]) -> str | None:
    below = _missing(value, written[name])
    return None if below is None else f".{name}{below}"


def _below(path: str, given: Any, read: Any) -> str | None:
    below = lost_field(given, read)
    return None if below is None else path + below


def _values_of(value: Any) -> dict[str, Any]:
    """The values of the fields by their names in JSON; empty for a value without fields."""
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        pairs = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        return {written: getattr(value, name) for written, name in pairs}
    return {name: getattr(value, name) for name in _class_fields(kind) or () if hasattr(value, name)}
