"""The records of a channel. `channel.lua` keeps them in a log, in the order in which they were sent.

    BEGIN   FileBegin              a file begins
    DATA    BlockHeader and bytes  one block of it
    END     FileEnd                the file was sent whole; size and digest that a receiver must arrive at
    ABORT   text                   the file will never be whole, and why
    CLOSE   -                      the channel was closed

The digest of a file is a chain over its blocks: digest = SHA-256(previous digest + SHA-256 of the block). So a receiver
that resumes in the middle of a file with the digest so far still checks every byte.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec

from penstock.errors import FileDamaged
from penstock.files import constants
from penstock.settings import MiB

BEGIN, DATA, END, ABORT, CLOSE = (
    kind.decode() for kind in (constants.BEGIN, constants.DATA, constants.END, constants.ABORT, constants.CLOSE)
)

MAX_INFLATED = 1024 * 1024
"""A block that inflates to more bytes than this was not made by a sender."""

START_DIGEST = bytes(32)
"""The digest of a file before its first block."""


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


@cache
def keep_freed_memory() -> None:
    """Have the process keep the memory of blocks that it has freed, up to 8 MiB, for the blocks that follow.

    The allocator of glibc returns what is freed to the system if it is more than twice the largest piece that it has
    returned before; then each new page costs a page fault. This piece is never written to, so it takes microseconds; a
    second one would come from the memory that is kept, and would be filled with zeros.
    """
    bytes(4 * MiB)


def chain_digest(digest: bytes, block_digest: bytes) -> bytes:
    """The digest of a file up to and including a block, from the digest before it and the block's own SHA-256."""
    return hashlib.sha256(digest + block_digest).digest()


class FileBegin(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a file.

    lines              the file was cut at line ends, by `send_lines`
    unpacked           the file is packed (gzip, Zstandard, bzip2 or xz), and its text is sent
    offset             if a log has grown since an earlier `send_lines`: the bytes that were sent then
    lines_before       lines in those bytes
    last_block_size    size of the last block of those bytes
    last_block_digest  SHA-256 of that block
    source             the host that has the file
    mode, modified     permissions of the file, and when it was last written, in nanoseconds since 1970
    earlier_name       if a log has grown: the name under which those bytes were sent
    """

    name: _Name
    size: _Number
    lines: bool
    unpacked: bool = False
    offset: _Number = 0
    lines_before: _Number = 0
    last_block_size: _Number = 0
    last_block_digest: bytes = b""
    source: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    mode: _Number = 0o644
    modified: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] = 0
    earlier_name: str = ""


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header before the bytes of a block.

    name                 the file's name
    offset               of the block's first byte in the file
    lines_before         line ends before this block; -1 if the file was not cut at line ends
    begins_in_line       the block begins in the middle of a line that is longer than a block
    deflated             the bytes are deflated
    digest               SHA-256 of the bytes
    last_line_continues  the last line continues in the next block
    source               the host that has the file
    """

    name: _Name
    offset: _Number
    lines_before: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    begins_in_line: bool
    deflated: bool
    digest: bytes
    last_line_continues: bool = False
    source: str = ""


class FileEnd(msgspec.Struct, frozen=True, array_like=True):
    """The last record of a file that was sent whole. `size`: the offset after its last byte; `lines`: line ends up to
    there; `digest`: of the whole file."""

    size: _Number
    lines: _Number
    digest: bytes


class ChannelRecord(NamedTuple):
    """A record as it was read. `number`: that of the log; `upload_id`: the upload that it belongs to; `position`:
    its number and time, which identify it also after the channel began again."""

    number: int
    kind: str
    upload_id: str
    body: bytes
    position: str = ""


pack: Any = msgspec.msgpack.Encoder().encode
_UNREADABLE = msgspec.MsgspecError, ValueError, RecursionError
"""Raised by the decoders for damaged bytes, for text that is not UTF-8, and for values that are nested too deeply."""

_file_begin = msgspec.msgpack.Decoder(FileBegin).decode
_block_header = msgspec.msgpack.Decoder(BlockHeader).decode
_file_end = msgspec.msgpack.Decoder(FileEnd).decode


def pack_block(header: BlockHeader, data: bytes) -> bytes:
    head: bytes = pack(header)
    return b"".join((len(head).to_bytes(2, "big"), head, zlib.compress(data, 1) if header.deflated else data))


def as_record(number: int, kind_and_upload_id: str, body: bytes, position: str = "") -> ChannelRecord:
    return ChannelRecord(number, kind_and_upload_id[:1], kind_and_upload_id[1:], body, position)


def is_upload_id(text: str) -> bool:
    """Whether this may be used in a file name. A record may come from a program other than a Penstock sender."""
    return text.isascii() and text.isalnum() and len(text) <= 100


def read_begin(record: ChannelRecord) -> FileBegin:
    return _read(record, _file_begin)  # type: ignore[no-any-return]


def read_end(record: ChannelRecord) -> FileEnd:
    return _read(record, _file_end)  # type: ignore[no-any-return]


def read_block(record: ChannelRecord) -> tuple[BlockHeader, bytes | memoryview]:
    """The header and the bytes of a block, not copied. Raises FileDamaged if they are not the bytes that were sent."""
    try:
        size = int.from_bytes(record.body[:2], "big")
        header = _block_header(record.body[2 : 2 + size])
        data: bytes | memoryview = memoryview(record.body)[2 + size :]
        if header.deflated:
            data = zlib.decompressobj().decompress(data, MAX_INFLATED)
    except (*_UNREADABLE, zlib.error) as error:
        raise FileDamaged(f"record {record.number} cannot be read: {error}") from None
    if hashlib.sha256(data).digest() != header.digest:
        raise FileDamaged(f"{header.name} is damaged: its block at byte {header.offset:,} is not the one that was sent")
    return header, data


def _read(record: ChannelRecord, decode: Any) -> Any:
    try:
        return decode(record.body)
    except _UNREADABLE as error:
        raise FileDamaged(f"record {record.number} cannot be read: {error}") from None
