"""Sealed bodies: a codec of the program encrypts or compresses them, last before the wire and first after it.

A sealed body is a JSON object with one name, so that it can be used wherever a body can, also inside another one:

    {"*sealed":["2026-11","gAAAAB…"]}       the id of the key, and what the codec made of the body, in base64

So a body says of itself whether it is sealed, and programs with and without a codec share a server.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from penstock.errors import ConfigurationError, SealError
from penstock.settings import Seal

NAME: Final = "*sealed"

BEGIN: Final = b'{"*sealed":["'
"""How a sealed body begins."""

_TEXT_BEGIN: Final = BEGIN.decode()
_END: Final = b'"]}'
_KEY: Final = re.compile(r"[!#-\[\]-~]{1,64}")
"""The id of a key: ASCII without spaces, quotation marks and backslashes, because scripts and people read it."""


class Sealed:
    """Stands for a value that is sealed, and that this program cannot open. Its text is `sealed with key 2026-11`.

    key  the id of the key that the value is sealed with
    """

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __str__(self) -> str:
        return f"sealed with key {self.key}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sealed) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def check_seal(seal: object) -> None:
    """Raise ConfigurationError for an object that cannot be a codec."""
    if seal is not None and not (callable(getattr(seal, "seal", None)) and callable(getattr(seal, "open", None))):
        raise ConfigurationError(
            f"seal={seal!r:.100}: give an object with the methods seal(body) and open(sealed, key), as `Seal` says"
        )
    if isinstance(seal, type):
        raise ConfigurationError(f"seal={seal.__qualname__}: give an object of this class, not the class")


def key_of(body: bytes) -> str | None:
    """The id of the key that a body is sealed with; None if it is not sealed. The end of the body may be cut off."""
    if not body.startswith(BEGIN):
        return None
    return body[len(BEGIN) :].partition(b'"')[0].decode(errors="replace")


def seal_body(body: bytes, seal: Seal, what: str) -> tuple[str, bytes]:
    """The id of the key, and the sealed body. Raises SealError if the codec fails; `what` names the body then."""
    refused = f"{what} could not be sealed, and was not sent: {_name(seal)}"
    try:
        found = seal.seal(body)
    except Exception as error:
        raise SealError(f"{refused} raised {error!r}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise SealError(f"{refused}.seal() returned {type(found).__name__}, not the id of a key and bytes")
    key, sealed = found
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise SealError(
            f"{refused}.seal() returned {key!r:.80} as the id of its key: give 1 to 64 characters of ASCII, without "
            "spaces and quotation marks"
        )
    if not isinstance(sealed, bytes):
        raise SealError(f"{refused}.seal() returned {type(sealed).__name__}, not bytes")
    return key, b'%b%b","%b%b' % (BEGIN, key.encode(), binascii.b2a_base64(sealed, newline=False), _END)


def open_body(body: bytes, seal: Seal | None, what: str) -> bytes:
    """The body before it was sealed, or as it is if it is not sealed. Raises SealError if it cannot be opened."""
    key = key_of(body)
    if key is None:
        return body
    if seal is None:
        raise SealError(
            f"{what} is sealed with key {key!r}, and this program has no codec with that key: give its app "
            "Settings(seal=…)",
            key=key,
        )
    try:
        opened = seal.open(binascii.a2b_base64(body[len(BEGIN) + len(key) + 3 : -len(_END)], strict_mode=True), key)
    except LookupError as error:
        raise SealError(
            f"{what} is sealed with key {key!r}, which {_name(seal)} of this program does not have", key=key
        ) from error
    except Exception as error:
        raise SealError(
            f"{what} is sealed with key {key!r}, and {_name(seal)} cannot open it ({type(error).__name__}): it is "
            "damaged, or this program has another key of that name",
            key=key,
        ) from error
    if not isinstance(opened, bytes | bytearray | memoryview):
        raise SealError(
            f"{what} is sealed with key {key!r}, and {_name(seal)}.open() returned {type(opened).__name__}, not bytes",
            key=key,
        )
    return bytes(opened)


def opened_or_sealed(body: bytes, seal: Seal | None) -> bytes | Sealed:
    """The body as it was before it was sealed, or a `Sealed` if this program cannot open it. Never raises."""
    try:
        return open_body(body, seal, "the body")
    except SealError as error:
        return Sealed(error.key)


def opened_or_kept(body: bytes, seal: Seal | None) -> bytes:
    """The body as it was before it was sealed, or as it is if this program cannot open it: an error comes to whoever
    decodes it. Never raises."""
    opened = opened_or_sealed(body, seal)
    return body if isinstance(opened, Sealed) else opened


def seal_text(text: str, seal: Seal | None) -> str:
    """A text for people, sealed. Never raises: a text that cannot be sealed is not sent."""
    if seal is None or not text:
        return text
    try:
        return seal_body(text.encode(errors="backslashreplace"), seal, "the text")[1].decode()
    except SealError:
        return "(this text could not be sealed)"


def open_text(text: str, seal: Seal | None) -> str:
    """The text as it was before it was sealed, or a remark in brackets if this program cannot open it. Never raises."""
    if not text.startswith(_TEXT_BEGIN):
        return text
    opened = opened_or_sealed(text.encode(errors="replace"), seal)
    return f"({opened})" if isinstance(opened, Sealed) else opened.decode(errors="replace")


def _name(seal: Seal) -> str:
    return type(seal).__qualname__
