"""Encodes values as JSON with msgspec, and decodes them. People can read JSON in the server; pickle is never used.

A value may have any type that msgspec encodes (dataclasses, datetimes, UUIDs, enums, sets, decimals …), and is decoded
as the annotation says. A value may also be a model of pydantic (see `models.py`), or of another class with `model_dump`
and `model_validate`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from penstock import models, sealing
from penstock.errors import BadCall, PayloadTooLarge
from penstock.settings import Seal


def _encode_other(value: Any) -> Any:
    if models.is_model(type(value)):
        return models.dump(value)
    if hasattr(value, "model_dump"):
        try:
            return value.model_dump(mode="json")
        except (TypeError, ValueError) as error:  # of the program's own class: its traceback helps
            raise ValueError(str(error)) from error
    raise NotImplementedError(f"a {type(value).__qualname__} cannot be written as JSON")


def _encode_canonical(value: Any) -> Any:
    return models.canonical(value) if models.is_model(type(value)) else _encode_other(value)


def _decode_other(kind: Any, value: Any) -> Any:
    if models.is_model(kind) or isinstance(kind, models.UnionOfModels):
        return models.load(kind, msgspec.json.encode(value))
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"a {getattr(kind, '__qualname__', kind)} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_canonical_encoder = msgspec.json.Encoder(enc_hook=_encode_canonical, order="deterministic")
_decoder = msgspec.json.Decoder()

_TEXTS = frozenset({str})
_SIMPLE = frozenset({str, int, float, bool, type(None)})
"""Types whose values contain no others. Most values, and most arguments of calls, have these."""

_LONGEST_ZEROS = 30
"""So many zeros of a decimal number are written out."""


def _refuse_non_finite(value: Any) -> None:
    """Raise ValueError if a number in a value is NaN or infinite: msgspec would write `null` for it."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"JSON cannot hold the number {one}: send None, or a text")
        if isinstance(one, dict):
            pending += one.keys()
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one


def _refuse_other_keys(value: Any, *, untyped: bool) -> None:
    """Raise ValueError for a dict with two keys that JSON writes as one text. `untyped`: the value is read without an
    annotation, so refuse also keys and bytes that would be read as text."""
    kind = type(value)
    if kind in _SIMPLE or (
        kind is dict and _SIMPLE.issuperset(map(type, value.values())) and _TEXTS.issuperset(map(type, value))
    ):
        return
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            others = [key for key in one if not isinstance(key, str)]
            if others and untyped:
                raise ValueError(f"the key {others[0]!r:.100} would be read as a text: send str(key)")
            texts = [*one.keys() - others, *map(_text_of, others)] if others else []
            if len(texts) > len(set(texts)):
                raise ValueError(f"two of the keys {[*one]!r:.100} are one key in JSON: keep one of them")
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        elif untyped and isinstance(one, bytes | bytearray | memoryview):
            raise ValueError(
                "bytes would be read as a text: send base64.b64encode(…).decode(), or an address of the data"
            )


def _text_of(key: Any) -> str:
    """A key as JSON writes it."""
    return str(msgspec.to_builtins(key, str_keys=True, enc_hook=_encode_other))


def encode(
    value: Any, *, limit: int, what: str, untyped: bool = False, seal: Seal | None = None, names: int = 0
) -> bytes:
    """`value` as JSON. Raises BadCall for a value that JSON cannot hold, PayloadTooLarge above `limit` bytes.

    what     names the value in the error message
    untyped  the value is read without an annotation: refuse bytes, and keys that are not strings
    seal     seals the JSON; `limit` is for the sealed bytes then. Raises SealError
    names    how many keys `value` itself has, if it is a dict whose keys are all texts: they need no check
    """
    data = _encoded(_encoder, value, what)
    if untyped or data.count(b'":') > names:
        try:
            _refuse_other_keys(value, untyped=untyped)
        except ValueError as error:
            raise BadCall(f"{what}: {error}") from None
    if data.startswith(sealing.BEGIN):
        raise BadCall(f"{what}: {sealing.NAME!r} as its first name is reserved for sealed values: rename it")
    if seal is not None:
        return sealed(data, seal, limit=limit, what=what)[1]
    if len(data) > limit:
        raise _too_large(data, limit, what)
    return data


def sealed(data: bytes, seal: Seal, *, limit: int, what: str) -> tuple[str, bytes]:
    """The id of the key, and the sealed bytes. Raises SealError, and PayloadTooLarge above `limit` bytes."""
    key, found = sealing.seal_body(data, seal, what)
    if len(found) > limit:
        raise _too_large(found, limit, what, when=f" when it is sealed, {len(data):,} before")
    return key, found


def _too_large(data: bytes, limit: int, what: str, *, when: str = "") -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{what} is {len(data):,} bytes{when}, the limit is {limit:,}: store the data elsewhere and pass its address"
    )


def canonical(value: Any, *, what: str) -> bytes:
    """Like `encode`, but with the same bytes for equal values: keys of objects and members of sets are sorted, and each
    value is `in_one_form`."""
    if type(value) not in _SIMPLE:
        try:
            value = in_one_form(_plain(value))
        except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
            raise BadCall(f"{what}: {error}") from error.__cause__
    return _encoded(_canonical_encoder, value, what)


def _plain(value: Any) -> Any:
    """The values of which JSON is made; moments and decimal numbers are left as they are."""
    return msgspec.to_builtins(
        value, builtin_types=(datetime, Decimal), str_keys=True, enc_hook=_encode_canonical, order="deterministic"
    )


def in_one_form(value: Any) -> Any:
    """The same form of equal values: a moment in UTC, a decimal number without zeros at its end; also in dicts and
    lists."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo is not None else value
    if isinstance(value, Decimal):
        return _without_zeros(value) if value.is_finite() else value
    if isinstance(value, dict):
        return {key: in_one_form(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*map(in_one_form, value)]
    return value


def _without_zeros(number: Decimal) -> Decimal:
    """An equal number without zeros at its end; 0 for -0."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if not number:
        return Decimal(0)
    left = len("".join(map(str, digits)).rstrip("0"))
    short = Decimal((sign, digits[:left], exponent + len(digits) - left))
    return Decimal(f"{short:f}") if abs(exponent) <= _LONGEST_ZEROS else short  # 100, and not 1E+2


def _encoded(encoder: msgspec.json.Encoder, value: Any, what: str) -> bytes:
    try:
        data = encoder.encode(value)
        if data.count(b"null"):  # faster than `in`, which first asks whether it is given a number
            _refuse_non_finite(msgspec.to_builtins(value, enc_hook=_encode_other))
    except UnicodeEncodeError as error:
        raise BadCall(f"{what}: half a character (a lone surrogate) cannot be sent: {error.object[:40]!r}") from None
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise BadCall(f"{what}: {error}") from error.__cause__
    return data


def decode(data: bytes, *, what: str, seal: Seal | None = None) -> Any:
    """The value of JSON bytes. `what` names them in the error message.

    Raises BadCall for damaged bytes, and SealError for sealed ones that `seal` cannot open.
    """
    try:
        return _decoder.decode(sealing.open_body(data, seal, what))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(f"{what} is damaged: {error}") from None


def readable(data: bytes, seal: Seal | None = None) -> Any:
    """JSON for people to read. Damaged bytes are shown as text, and what `seal` cannot open as `Sealed`."""
    opened = sealing.opened_or_sealed(data, seal)
    if isinstance(opened, sealing.Sealed):
        return opened
    try:
        return _decoder.decode(opened)
    except (ValueError, RecursionError):
        return opened.decode(errors="backslashreplace")


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder that reads JSON as `kind`, an annotation. Raises TypeError if no JSON can be read as that."""
    return msgspec.json.Decoder(models.readable(kind), dec_hook=_decode_other)
