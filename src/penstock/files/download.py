"""The progress of a receiver: its downloads, and the checkpoints that the server keeps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.files.records import START_DIGEST


class Download(msgspec.Struct, frozen=True, array_like=True):
    """The progress of one file that is being received.

    lines, unpacked                as in FileBegin
    offset, digest                 of the bytes that were received and checked
    lines_given                    lines of the file that were given
    in_long_line, unfinished_line  the state of its LineCutter, so that another process can continue
    spooled                        the file is packed, and is received whole before its lines are read
    source, mode, modified         as in FileBegin
    size                           as in FileBegin; the bytes that are expected, for showing progress
    """

    name: str
    lines: bool
    unpacked: bool
    offset: int = 0
    digest: bytes = START_DIGEST
    lines_given: int = 0
    in_long_line: bool = False
    unfinished_line: bytes = b""
    spooled: bool = False
    source: str = ""
    mode: int = 0o644
    modified: int = 0
    size: int = 0


class ReceiverState(msgspec.Struct, frozen=True):
    """The files that have begun and have not ended, by the id of their upload."""

    downloads: dict[str, Download] = {}


class Checkpoint(NamedTuple):
    """The state of the receiver when everything up to record `number` is done."""

    number: int
    state: ReceiverState


decode_state = msgspec.json.Decoder(ReceiverState).decode


def encode_state(state: ReceiverState) -> str:
    return msgspec.json.encode(state).decode()


MOST_BEGUN = 10
"""Files of a receiver that an operator is shown."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """A file that a receiver has begun and not finished.

    received  bytes that it has acknowledged
    size      bytes that are expected; 0 if that is not known, as for a log that is still written
    """

    name: str
    received: int
    size: int


def begun_files(state: bytes) -> tuple[FileProgress, ...]:
    """Some of the files in the state of a receiver, for an operator; none if the state is damaged."""
    try:
        downloads = decode_state(state).downloads.values() if state else ()
    except msgspec.DecodeError:
        return ()
    begun = (FileProgress(one.name, one.offset, 0 if one.unpacked else one.size) for one in downloads)
    return tuple(islice(begun, MOST_BEGUN))
