"""Gzip (RFC 1952), inflated in bounded pieces, by the rules of whoever must not lose a line without knowing.

A file is one member or several, with zero bytes after each if need be (tapes pad so). zlib verifies checksum and
length of each member. All else is damage, and is told: other bytes behind a member, a file that ends inside of one,
a file of no bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from penstock.errors import FileDamaged

MAGIC = b"\x1f\x8b"

_GZIP_ALONE = 31  # zlib's `wbits`: a window of 32 KiB, and a header of gzip

# Each call of zlib copies what it did not take, and what stands behind a member: a step that is small bounds both.
_STEP = 16 * 1024


class Gunzip:
    """The text of one gzip file, which is fed in any pieces. `name` is for errors; `most`: bytes of a piece of text.

    Holds some 50 KiB and one piece, however well the file was packed.
    """

    def __init__(self, name: str, most: int = 64 * 1024) -> None:
        self._name = name
        self._most = most
        self._members = 0
        self._began = 0  # where in the file the present member begins
        self._taken = 0  # bytes of the file that were inflated or skipped
        self._member: zlib._Decompress | None = None  # None between two members

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text that these bytes of the file make, to be taken whole before the next are fed. Raises FileDamaged."""
        for start in range(0, len(data), _STEP):
            rest = data[start : start + _STEP]
            while rest := self._skip_padding(rest):
                text, rest = self._inflate(rest)
                if text:
                    yield text

    def end(self) -> None:
        """The file has no more bytes. Raises FileDamaged where it should."""
        if not self._members:
            raise self._damaged("it is empty, not even one gzip member is there")
        if self._member:
            raise self._damaged(f"it ends at byte {self._taken:,}, inside of {self._where}")

    def _skip_padding(self, data: bytes) -> bytes:
        """What follows the zeros between two members."""
        if self._member or not self._members:
            return data
        rest = data.lstrip(b"\0")
        self._taken += len(data) - len(rest)
        return rest

    def _inflate(self, data: bytes) -> tuple[bytes, bytes]:
        """A piece of text, and what of the data is still to be looked at."""
        member = self._member = self._member or self._begin(data)
        try:
            text = member.decompress(data, self._most)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]
            raise self._damaged(f"{self._where} is broken before byte {self._taken + len(data):,}: {reason}") from None
        if member.eof:
            self._member = None
        rest = member.unused_data if member.eof else member.unconsumed_tail
        self._taken += len(data) - len(rest)
        return text, rest

    def _begin(self, data: bytes) -> zlib._Decompress:
        if not MAGIC.startswith(found := data[:2]):
            what = f"{found.hex(' ')} at byte {self._taken:,}"
            if self._members:
                raise self._damaged(f"{what}, behind member {self._members}, is neither another member nor zeros")
            raise self._damaged(f"{what} is no beginning of a gzip member, which is {MAGIC.hex(' ')}")
        self._members += 1
        self._began = self._taken
        return zlib.decompressobj(_GZIP_ALONE)

    @property
    def _where(self) -> str:
        return f"member {self._members} (from byte {self._began:,})"

    def _damaged(self, what: str) -> FileDamaged:
        return FileDamaged(f"{self._name} is damaged: {what}")
