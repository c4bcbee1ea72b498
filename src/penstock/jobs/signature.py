"""The parameters of a task: check the arguments of a call, encode them, and decode them in the worker.

The payload of a call is the JSON object `{"parameter": value, …}`. Extra positional arguments are stored under the name
`*args`, extra keyword arguments under `**kwargs`. The name of the task is in the header of the record.

Before a call is sent, its payload is decoded as the worker will decode it. So a wrong argument fails in the line that
enqueues the call, not later in a worker.
"""

from __future__ import annotations

import inspect
import logging
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock import codec
from penstock.core.cached import cached_property
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.dependencies import check_annotation, dependencies_of
from penstock.models import (
    abstract_class,
    class_lost,
    has_fields,
    is_untyped,
    lost_field,
    readable,
    takes_text_and_more,
    unread_field,
)

log = logging.getLogger("penstock.queue")

_PLAIN = (str, int, float, bool, type(None))
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN_FIELD = "Object contains unknown field"
_Parameter = inspect.Parameter


class UnknownName(BadCall):
    """The call has a parameter, or a field of a class, that the task does not have here.

    Calls are checked where they are made. So a program of another release, whose task has it, has sent the call.
    """


def check_classes(task: str, annotations: Mapping[str, Any], dependencies: Collection[str]) -> None:
    """Raise ConfigurationError for a class of which no object can be made: no worker could read such an argument.

    annotations   of the task; those that are still texts are ignored
    dependencies  parameters that a worker fills
    """
    for name, annotation in annotations.items():
        abstract = None if name in dependencies else abstract_class(annotation)
        if abstract is not None:
            what = "the return annotation" if name == "return" else f"the annotation of {name}"
            raise ConfigurationError(
                f"task {task}: {what} has {abstract}, a class of which no object can be made: name the class that is "
                "passed, or a union of such classes"
            )


class Signature:
    """Encodes and decodes the arguments of one task."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._what = f"{name}()"
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        self.dependencies = dependencies_of(function)
        """The parameters that a worker fills. They are no arguments of a call."""
        self._parameters = [p for p in parameters if p.name not in self.dependencies]
        for p in self._parameters:
            if p.name.startswith("__") and not p.name.endswith("__"):
                raise ConfigurationError(
                    f"task {name}: the parameter {p.name} begins with two underscores, and Python changes such names "
                    "in classes: rename it"
                )
        if self.dependencies:
            self._check_order(parameters)
        positional = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
        keyword = (_Parameter.POSITIONAL_OR_KEYWORD, _Parameter.KEYWORD_ONLY)
        self._positional = [p.name for p in self._parameters if p.kind in positional]
        self._named = {p.name for p in self._parameters if p.kind in keyword}
        self._var_positional = next((p.name for p in self._parameters if p.kind is _Parameter.VAR_POSITIONAL), None)
        self._var_keyword = next((p.name for p in self._parameters if p.kind is _Parameter.VAR_KEYWORD), None)
        self._variable = {"*args": self._var_positional or "", "**kwargs": self._var_keyword or ""}

    def _check_order(self, parameters: list[inspect.Parameter]) -> None:
        """A caller counts positional arguments, so those that a worker fills must come last, or have names only."""
        is_after = False
        for p in parameters:
            if p.kind is _Parameter.KEYWORD_ONLY or p.kind is _Parameter.VAR_KEYWORD:
                continue
            if p.name in self.dependencies and p.kind is not _Parameter.POSITIONAL_ONLY:
                is_after = True
            elif is_after or p.name in self.dependencies:
                raise ConfigurationError(
                    f"task {self._name}: put the parameters that a worker fills ({', '.join(self.dependencies)}) "
                    "last, or after a `*`"
                )

    @property
    def names(self) -> list[str]:
        """The parameters that have a name of their own."""
        return [p.name for p in self._parameters if p.name not in (self._var_positional, self._var_keyword)]

    @property
    def required(self) -> list[str]:
        """The parameters that every call has to give."""
        variable = (self._var_positional, self._var_keyword)
        return [p.name for p in self._parameters if p.default is _Parameter.empty and p.name not in variable]

    @cached_property
    def mixed(self) -> frozenset[str]:
        """The parameters that take text and also other values, so that `1` and `"1"` are two values of them."""
        return frozenset(name for name in self.names if takes_text_and_more(self._hints.get(name, Any)))

    @property
    def described(self) -> tuple[Any, ...]:
        """What can be read as a call of this task. Two processes with the same parameters get the same value."""
        from penstock.jobs.release import described

        return tuple(
            (p.name, int(p.kind), p.default is _Parameter.empty, described(self._hints.get(p.name, Any)))
            for p in self._parameters
        )

    def value(self, arguments: msgspec.Struct, name: str) -> Any:
        """The decoded argument of this name, or the function's default."""
        given = getattr(arguments, name)
        if given is not msgspec.UNSET:
            return given
        return self._default(name)

    def _default(self, name: str) -> Any:
        return next(p.default for p in self._parameters if p.name == name)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return self._annotations()

    def _annotations(self) -> dict[str, Any]:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except Exception as error:
            raise ConfigurationError(f"task {self._name}: an annotation cannot be resolved: {error}") from None
        for name, hint in hints.items():
            check_annotation(f"task {self._name}", name, hint)
        check_classes(self._name, hints, self.dependencies)
        return hints

    @cached_property
    def _arguments(self) -> type[msgspec.Struct]:
        return msgspec.defstruct(f"{self._name}_arguments", self._fields, forbid_unknown_fields=True, kw_only=True)

    @property
    def _fields(self) -> list[Any]:
        fields: list[Any] = []
        for p in self._parameters:
            kind = readable(self._hints.get(p.name, Any))
            if p.kind is _Parameter.VAR_POSITIONAL:
                rest: Any = msgspec.field(name="*args", default_factory=list)
                fields.append((p.name, list.__class_getitem__(kind), rest))
            elif p.kind is _Parameter.VAR_KEYWORD:
                others: Any = msgspec.field(name="**kwargs", default_factory=dict)
                fields.append((p.name, dict.__class_getitem__((str, kind)), others))
            elif p.default is _Parameter.empty:
                fields.append((p.name, kind))
            else:
                fields.append((p.name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET))
        return fields

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return self._decoder_of(lambda: self._arguments, "a parameter's annotation")

    @cached_property
    def _list_decoder(self) -> msgspec.json.Decoder[list[Any]]:
        return codec.decoder(list.__class_getitem__(self._arguments))

    @cached_property
    def returns(self) -> msgspec.json.Decoder[Any]:
        """Decodes a result as the return annotation says."""
        return self._decoder_of(lambda: self._hints.get("return", Any), "the return annotation")

    def check(self) -> None:
        """Raise ConfigurationError if an annotation cannot be resolved, or its type cannot be decoded from JSON."""
        _ = self._decoder, self.returns

    def _decoder_of(self, kind: Callable[[], Any], what: str) -> msgspec.json.Decoder[Any]:
        annotation = kind()
        try:
            return codec.decoder(annotation)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"task {self._name}: {what} cannot be read from JSON: {error}") from None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bytes:
        """The payload of a call. Raises BadCall if the arguments do not fit, PayloadTooLarge above `limit` bytes."""
        what = self._what
        arguments = dict(zip(self._positional, args))  # noqa: B905 - to pass `strict` takes as long as all the rest
        if len(args) > len(self._positional):
            if self._var_positional is None:
                if len(self._positional) == 1:
                    raise BadCall(f"{what} takes 1 positional argument, {len(args)} were given")
                raise BadCall(f"{what} takes {len(self._positional)} positional arguments, {len(args)} were given")
            arguments["*args"] = args[len(self._positional) :]
        if kwargs:
            twice = arguments.keys() & kwargs.keys() & self._named
            if twice:
                raise BadCall(f"{what} got {', '.join(sorted(twice))} twice: by position and by name")
            others = {name: value for name, value in kwargs.items() if name not in self._named}
            if others and self._var_keyword is None:
                raise BadCall(f"{what} has no parameter {', '.join(sorted(others))}; it has {', '.join(self._named)}")
            arguments.update((name, value) for name, value in kwargs.items() if name in self._named)
            if others:
                arguments["**kwargs"] = others
        encoded = codec.encode(arguments, limit=limit, what=what, names=len(arguments))
        decoded = self._decoded(self._decoder, encoded)
        if self._has_fields:
            self._refuse_lost_fields(arguments, decoded)
        if self._untyped:
            for name, value in arguments.items():
                if name in self._untyped and not isinstance(value, _PLAIN):
                    self._warn_of_dict(name, value, decoded)
        return encoded

    @cached_property
    def _untyped(self) -> set[str]:
        """The parameters in which an object with fields may arrive as a dict, until the user was warned of it."""
        variable = {name: shown for shown, name in self._variable.items()}
        names = (p.name for p in self._parameters if is_untyped(self._hints.get(p.name, Any)))
        return {variable.get(name, name) for name in names}

    def _warn_of_dict(self, name: str, value: Any, decoded: msgspec.Struct) -> None:
        kind = class_lost(value, getattr(decoded, self._variable.get(name, name)))
        if kind is not None:
            self._untyped.discard(name)
            log.warning(
                "task %s: the %s in %s arrives as a dict, because the annotation does not name that class: name it, or "
                "pass a dict",
                self._name,
                kind,
                self._variable.get(name, name),
            )

    @cached_property
    def _has_fields(self) -> bool:
        """Whether a parameter's annotation has a class with fields in it, such as a dataclass."""
        return any(has_fields(self._hints.get(p.name)) for p in self._parameters)

    def _refuse_lost_fields(self, given: dict[str, Any], decoded: msgspec.Struct) -> None:
        """Raise BadCall for an object with fields that its annotation does not have: those fields would be lost."""
        for name, value in given.items():
            lost = lost_field(value, getattr(decoded, self._variable.get(name, name)))
            if lost is not None:
                raise BadCall(
                    f"{self._name}(): {name}{lost} would not arrive, because the annotation does not have it: annotate "
                    "the parameter with the class that you pass, or pass an object of the annotated class"
                )

    def awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The arguments that stand for results of other jobs, with their names."""
        from penstock.jobs.awaited import stands_for_results

        given = self._by_name(args, kwargs).items()
        return tuple((name, value) for name, value in given if stands_for_results(value) and name in self._named)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._positional, args, strict=False)), **kwargs}

    def encode_without(
        self, wanted: tuple[tuple[str, Any], ...], args: tuple[Any, ...], kwargs: dict[str, Any], limit: int
    ) -> bytes:
        """As `encode`, without the arguments in `wanted`, which stand for results of other jobs."""
        given = self._by_name(args, kwargs)
        if len(args) > len(self._positional) or len(given) < len(args) + len(kwargs):
            raise BadCall(f"{self._name}(): pass arguments by name if some are results of other jobs")
        if unknown := given.keys() - self._named:
            raise BadCall(
                f"{self._name}(): {', '.join(sorted(unknown))}: results of other jobs need a task without *args and "
                "**kwargs, whose parameters have names"
            )
        names = {name for name, _ in wanted}
        if missing := [name for name in self.required if name not in given]:
            raise BadCall(f"{self._name}(): the argument {missing[0]} is missing")
        fixed = {name: value for name, value in given.items() if name not in names}
        payload = codec.encode(fixed, limit=limit, what=f"{self._name}()")
        self.values(payload, names)
        return payload

    def values(self, payload: bytes, without: Collection[str] = ()) -> Callable[[str], Any]:
        """A function that returns the decoded argument of a name. `without`: those that `payload` lacks on purpose."""
        if not without:
            return partial(self.value, self.decode(payload))
        fields = [(name, kind) for name, kind, *_ in self._fields if name not in without]
        given = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        kinds = {name: kind for name, kind in fields if name in given}
        arguments = msgspec.defstruct(f"{self._name}_arguments", [*kinds.items()], kw_only=True)
        found = self._decoded(codec.decoder(arguments), payload)

        def value_of(name: str) -> Any:
            if name in without:
                raise BadCall(f"{self._name}(): a limit needs the argument {name}, which is not known yet")
            return getattr(found, name) if name in kinds else self._default(name)

        return value_of

    def canonical(self, payload: bytes, without: Collection[str] = ()) -> bytes:
        """The arguments of a call in one form, however they were given: `f(1)` and `f(1, c=<its default>)` are alike.

        A default that JSON cannot hold is left out. `without`: as for `values`.
        """
        value_of, given = self.values(payload, without), codec.decode(payload, what=f"{self._name}()")
        texts = {name: codec.canonical(given[name], what=name) for name in ("*args", "**kwargs") if name in given}
        for name in self.names:
            if name not in without:
                try:
                    texts[name] = codec.canonical(value_of(name), what=f"{self._name}(): {name}")
                except BadCall:
                    if name in given:
                        raise
        return b",".join(b'"%b":%b' % (name.encode(), text) for name, text in sorted(texts.items()))

    def decode(self, arguments: bytes) -> msgspec.Struct:
        """The typed arguments of a payload. Raises BadCall if they do not fit the function's current parameters."""
        return self._decoded(self._decoder, arguments)

    def read(self, arguments: bytes, sent: bytes) -> msgspec.Struct:
        """The typed arguments of a call that a worker has claimed. Raises BadCall if they do not fit.

        sent  the payload as its producer made it: `arguments` without the results of other jobs

        A field of a class that the annotation does not have is refused, as an unknown parameter is: a release that has
        the field has sent it, and the task would run without it.
        """
        decoded = self._decoded(self._decoder, arguments)
        if self._has_fields:
            self._refuse_unknown_fields(sent, decoded)
        return decoded

    def _refuse_unknown_fields(self, sent: bytes, decoded: msgspec.Struct) -> None:
        given: dict[str, Any] = msgspec.json.decode(sent)
        for name, value in given.items():
            read = getattr(decoded, self._variable.get(name, name), msgspec.UNSET)
            unknown = unread_field(value, read)
            if unknown is not None:
                raise UnknownName(
                    f"{self._name}(): {name}{unknown} is unknown: the annotation does not have it, and the task would "
                    "run without it"
                )

    def decode_all(self, arguments: Sequence[bytes]) -> list[msgspec.Struct] | None:
        """The typed arguments of many payloads, in one call of the decoder. None if one of them does not fit."""
        try:
            decoded = self._list_decoder.decode(b"[%b]" % b",".join(arguments))
        except (TypeError, ValueError, NotImplementedError, RecursionError):
            return None
        if len(decoded) != len(arguments):
            return None
        if self._has_fields:
            try:
                for sent, one in zip(arguments, decoded, strict=True):
                    self._refuse_unknown_fields(sent, one)
            except BadCall:
                return None
        return decoded

    def _decoded(self, decoder: msgspec.json.Decoder[Any], arguments: bytes) -> msgspec.Struct:
        try:
            decoded: msgspec.Struct = decoder.decode(arguments)
        except msgspec.ValidationError as error:
            text = _WHERE.sub(lambda m: f" for {m[1] or 'the call'}", str(error))
            kind = UnknownName if text.startswith(_UNKNOWN_FIELD) else BadCall
            raise kind(f"{self._name}(): {text}") from error.__cause__
        except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
            raise BadCall(f"{self._name}(): {error}") from error.__cause__
        return decoded

    @cached_property
    def _all_positional_or_keyword(self) -> bool:
        return all(p.kind is _Parameter.POSITIONAL_OR_KEYWORD for p in self._parameters)

    def call(self, arguments: msgspec.Struct, filled: dict[str, Any] | None = None) -> Any:
        """Call the function with decoded arguments. Those that were left out get the function's current defaults.

        filled  the values of `dependencies`
        """
        if filled is None and self._all_positional_or_keyword:
            values = msgspec.structs.astuple(arguments)
            if msgspec.UNSET not in values:
                return self._function(*values)
        args: list[Any] = []
        kwargs: dict[str, Any] = dict(filled or {})
        for p in self._parameters:
            value = getattr(arguments, p.name)
            if value is msgspec.UNSET:
                continue
            if p.kind is _Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif p.kind is _Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif p.kind is _Parameter.KEYWORD_ONLY or len(args) < self._positional.index(p.name):
                kwargs[p.name] = value
            else:
                args.append(value)
        return self._function(*args, **kwargs)
