"""What the records of a channel of files hold (their order and life: `channel.lua`).

    BEGIN   Manifest            a file begins
    DATA    Header and bytes    a block of it
    END     Ending              it was sent whole; size and digest as a receiver must have found them
    ABORT   text                it will not be whole: why
    CLOSE   -                   nothing comes any more

A file's digest is a chain over its blocks, digest = SHA-256(digest before + SHA-256 of the block), so that whoever
begins in the middle, with the digest so far, checks every byte all the same.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, NamedTuple

import msgspec

from penstock.errors import FileDamaged

BEGIN, DATA, END, ABORT, CLOSE = "B", "D", "E", "A", "C"

INFLATED = 1024 * 1024
"""Bytes that no block has, however well it is packed."""

START = bytes(32)
"""The digest of a file before its first block."""


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """`lines`: it was cut at line ends; `unpacked`: and was gzip. `offset`, `line`: what was sent of it before: bytes,
    and lines; `length`, `last`: size and SHA-256 of the last block of that."""

    name: str
    size: int
    lines: bool
    unpacked: bool = False
    offset: int = 0
    line: int = 0
    length: int = 0
    last: bytes = b""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Of one block. `offset`: of its first byte; `line`: of how many lines the ends are before it, -1 if it was not
    cut at line ends; `inside`: it begins in the middle of one that is longer than a block; `packed`: deflated;
    `digest`: SHA-256 of its bytes; `more`: its last line goes on in the next."""

    name: str
    offset: int
    line: int
    inside: bool
    packed: bool
    digest: bytes
    more: bool = False


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """`size`: the offset behind the last byte; `lines`: how many there are up to there."""

    size: int
    lines: int
    digest: bytes


class Record(NamedTuple):
    """A record as it was read; `file`: whose it is."""

    number: int
    kind: str
    file: str
    body: bytes


pack: Any = msgspec.msgpack.Encoder().encode
_manifest = msgspec.msgpack.Decoder(Manifest).decode
_header = msgspec.msgpack.Decoder(Header).decode
_ending = msgspec.msgpack.Decoder(Ending).decode


def pack_block(header: Header, data: bytes) -> bytes:
    head: bytes = pack(header)
    return b"".join((len(head).to_bytes(2, "big"), head, zlib.compress(data, 1) if header.packed else data))


def as_record(row: tuple[int, str, bytes]) -> Record:
    number, by, body = row
    return Record(number, by[:1], by[1:], body)


def is_id(file: str) -> bool:
    """Whether it can name a part of a file: nobody but a sender of ours is sure to have made it."""
    return file.isascii() and file.isalnum() and len(file) <= 100


def manifest(record: Record) -> Manifest:
    return _read(record, _manifest)  # type: ignore[no-any-return]


def ending(record: Record) -> Ending:
    return _read(record, _ending)  # type: ignore[no-any-return]


def header(record: Record) -> Header:
    return _header(record.body[2 : 2 + int.from_bytes(record.body[:2], "big")])


def block(record: Record) -> tuple[Header, bytes]:
    """The bytes are those that were sent: their digest is checked. Raises FileDamaged."""
    try:
        head = header(record)
        data = record.body[2 + int.from_bytes(record.body[:2], "big") :]
        if head.packed:
            data = zlib.decompressobj().decompress(data, INFLATED)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise FileDamaged(f"record {record.number} cannot be read: {error}") from None
    if hashlib.sha256(data).digest() != head.digest:
        raise FileDamaged(f"{head.name} is damaged: its block at byte {head.offset:,} is not the one that was sent")
    return head, data


def _read(record: Record, decode: Any) -> Any:
    try:
        return decode(record.body)
    except msgspec.MsgspecError as error:
        raise FileDamaged(f"record {record.number} cannot be read: {error}") from None
