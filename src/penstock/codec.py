"""Values to bytes and back: JSON by msgspec, so that people can read the server by hand; never pickle.

What msgspec encodes goes through (dataclasses, datetimes, UUIDs, enums, sets, decimals …) and comes back as the
annotation says; a class with `model_dump` and `model_validate` (pydantic) is taken too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import BadCall, PayloadTooLarge


def _encode_other(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__qualname__} cannot be written as JSON")


def _decode_other(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"a {getattr(kind, '__qualname__', kind)} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_decoder = msgspec.json.Decoder()


def encode(value: Any, *, limit: int, what: str) -> bytes:
    """JSON of `value`. Raises BadCall for what JSON cannot hold, PayloadTooLarge above `limit` bytes."""
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise BadCall(f"{what}: {error}") from error
    if len(data) > limit:
        raise PayloadTooLarge(
            f"{what} is {len(data):,} bytes, the limit is {limit:,}: store the data elsewhere and pass its address"
        )
    return data


def decode(data: bytes, *, what: str) -> Any:
    """The value of JSON bytes. Raises BadCall for damaged bytes."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(f"{what} is damaged: {error}") from error


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder that reads JSON as `kind`; raises TypeError where the annotation cannot be read from JSON."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_other)
