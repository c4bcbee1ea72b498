"""One receiver of a channel, and what it can make of it: blocks, lines, files in a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from msgspec.structs import replace

from penstock.core.keys import check_name
from penstock.core.operations import Driver, Operation, RoundTrip, verb
from penstock.core.renewal import Renewer
from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.blocks import Header, Manifest, Record
from penstock.files.gunzip import MAGIC, Gunzip
from penstock.files.intake import Intake, Place
from penstock.files.lines import LONGEST, CutLine, Lines
from penstock.files.parts import Folder
from penstock.files.sharing import Sharing
from penstock.files.source import BLOCK
from penstock.files.stream import Stream
from penstock.messages.log import trim_rest
from penstock.settings import MiB

T = TypeVar("T")

MOST = 16 * MiB
"""Bytes of the longest line: what is there of one that is not complete is noted in the server."""

_CHUNK = 256 * 1024
_HIDDEN = ".penstock-"
_NO_NAME = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
"""What no second attempt mends: something else of that name is there, or it is too long."""


class Block(bytes):
    """The bytes of one block. `file`: its name; `offset`: of the first byte; `first_line`: its number from 1, of a
    file that was sent as lines."""

    file: str
    offset: int
    first_line: int


class Batch(list[bytes]):
    """Lines that follow one another, without their ends. `file`: its name; `first`: number of the first, from 1."""

    file: str = ""
    first: int = 1


class Saved(NamedTuple):
    """A file that is there whole. `digest`: as `file_digest` gives it for what was sent as bytes."""

    path: Path
    name: str
    size: int
    digest: str


def as_block(head: Header, data: bytes) -> tuple[Block]:
    found = Block(data)
    found.file, found.offset, found.first_line = head.name, head.offset, head.line + 1
    return (found,)


class Blocks(Intake[Block]):
    """The blocks as they were sent."""

    def _block(self, record: Record, head: Header, data: bytes) -> Iterable[Block]:
        return as_block(head, data)


class Batches(Intake[Batch]):
    """The lines of each block. A gzip file that was sent as bytes is received whole, into a spool, before it is read:
    nobody could go on in the middle of one."""

    def __init__(
        self, log: ChannelBindings, driver: Driver, renewer: Renewer, who: str, wait: float | None,
        *, longest: int = LONGEST, spool: str | Path | None = None,
    ) -> None:  # fmt: skip
        self._longest = longest
        self._spool = Folder((Path(spool) if spool else _temporary()) / _own(log, who))
        super().__init__(log, driver, renewer, who, wait)

    def _resumed(self) -> None:
        self._cutters: dict[str, Lines] = {}
        self._spool.close()

    def _tidy(self) -> None:
        self._spool.clear(keep=self._files)

    def _settled_upto(self, number: int) -> None:
        self._spool.settled(number)

    def _block(self, record: Record, head: Header, data: bytes) -> Iterable[Batch]:
        place = self._files[record.file]
        if not place.lines and head.offset == 0 and data.startswith(MAGIC):
            place = self._files[record.file] = replace(place, spooled=True)
        if place.spooled:
            self._spool.write(record.file, head, data)
            return
        cutter = self._cutter(record.file, place)
        lines = cutter.cut(data)
        self._files[record.file] = replace(
            place, line=place.line + len(lines), inside=cutter.inside, carried=cutter.carried
        )
        yield from _batch(place.name, place.line, lines)

    def _cutter(self, file: str, place: Place) -> Lines:
        if (cutter := self._cutters.get(file)) is None:
            cutter = self._cutters[file] = Lines(self._longest, inside=place.inside, carried=place.carried)
        return cutter

    def _end(self, record: Record, place: Place) -> Iterable[Batch]:
        if place.spooled:
            yield from self._unspooled(record.file, place)
        else:
            yield from _batch(place.name, place.line, self._cutter(record.file, place).rest())
        self._dropped(record.number, record.file)

    def _unspooled(self, file: str, place: Place) -> Iterator[Batch]:
        for before, lines in _lines_of_gzip(self._spool.open(file, place), place.name, self._longest):
            done = before + len(lines)
            if done > place.line:
                self._files[file] = replace(self._files[file], line=done)
                yield from _batch(place.name, max(before, place.line), lines[max(0, place.line - before) :])

    def _dropped(self, number: int, file: str) -> None:
        self._cutters.pop(file, None)
        self._spool.leave(number, file)


def _batch(name: str, before: int, lines: list[bytes]) -> Iterator[Batch]:
    if lines:
        batch = Batch(lines)
        batch.file, batch.first = name, before + 1
        yield batch


def lines_of_block(longest: int, head: Header, data: bytes) -> Iterator[Batch]:
    """Of one block alone. A line that is longer than a block is given as the last piece of it."""
    if head.line < 0:
        raise FilesError(
            f"{head.name} was sent as bytes, and its blocks do not end at line ends: share needs send_lines()"
        )
    cutter = Lines(longest)
    lines = cutter.cut(data)
    if not head.more:
        lines += cutter.rest()
    if head.inside and lines:
        lines[0] = CutLine(lines[0])
    yield from _batch(head.name, head.line, lines)


def _lines_of_gzip(file: BinaryIO, name: str, longest: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines of the text, and how many were before them."""
    cutter, gunzip, before = Lines(longest), Gunzip(name), 0
    with file:
        while data := file.read(_CHUNK):
            for text in gunzip.feed(data):
                lines = cutter.cut(text)
                yield before, lines
                before += len(lines)
    gunzip.end()
    yield before, cutter.rest()


def _temporary() -> Path:
    """Where the next process on this host finds it again."""
    ours = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)
    if ours.is_symlink() or ours.stat().st_uid != os.getuid():
        raise FilesError(f"{ours} belongs to somebody else: name a folder with spool=")
    return ours


def _own(log: ChannelBindings, who: str) -> str:
    """Name of a folder that no other receiver has, of any channel."""
    return f"{_HIDDEN}{who}-{hashlib.sha256(f'{log.keys.base}{who}'.encode()).hexdigest()[:8]}"


class Saving(Intake[Saved]):
    """The files, in a folder: each appears there when it is whole and checked, under its name."""

    def __init__(
        self, log: ChannelBindings, driver: Driver, renewer: Renewer, who: str, wait: float | None, folder: Path
    ) -> None:
        self._folder = folder
        self._parts = Folder(folder / _own(log, who))
        super().__init__(log, driver, renewer, who, wait)

    def _resumed(self) -> None:
        self._parts.close()

    def _tidy(self) -> None:
        self._parts.clear(keep=self._files)

    def _settled_upto(self, number: int) -> None:
        self._parts.settled(number)

    def _begun(self, file: str, what: Manifest) -> None:
        """What a log grew by comes behind what was saved of it before."""
        path = self._path(self._files[file])
        if what.offset:
            if not _holds(path, what):
                raise FileDamaged(
                    f"{what.name}: its first {what.offset:,} bytes were sent before, and are not in {path}"
                )
            self._parts.copy(path, file)

    def _block(self, record: Record, head: Header, data: bytes) -> Iterable[Saved]:
        self._parts.write(record.file, head, data)
        return ()

    def _end(self, record: Record, place: Place) -> Iterable[Saved]:
        path = self._path(place)
        with self._parts.open(record.file, place) as out:
            os.fsync(out.fileno())
        self._parts.leave(record.number, record.file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._parts.publish(record.file, path)
            self._keep_names(path.parent)
        except OSError as error:
            if error.errno in _NO_NAME:
                raise FilesError(f"{place.name} cannot be saved as {path}: {error.strerror}") from error
            raise
        yield Saved(path, place.name, place.offset, place.digest.hex())

    def _dropped(self, number: int, file: str) -> None:
        self._parts.leave(number, file)

    def _keep_names(self, folder: Path) -> None:
        """On disk: of the folder of a file, and of those within ours that may be new."""
        for one in (folder, *folder.parents):
            opened = os.open(one, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
            if one == self._folder:
                return

    def _path(self, place: Place) -> Path:
        packed = ".zst" if place.name.endswith(".zst") else ".gz"
        name = place.name.removesuffix(packed) if place.unpacked else place.name
        parts = name.split("/")
        if not name or any(part in {"", ".", ".."} for part in parts) or "\0" in name or parts[0].startswith(_HIDDEN):
            raise FileDamaged(f"{name!r} is no name to save a file under: it would leave the folder")
        return self._folder.joinpath(*parts)


def _holds(path: Path, what: Manifest) -> bool:
    """Whether the file is what was sent before, and not another that has its name: by the last block of that."""
    if not 0 < what.length <= min(what.offset, BLOCK):
        return False
    try:
        with path.open("rb") as file:
            file.seek(what.offset - what.length)
            return hashlib.sha256(file.read(what.length)).digest() == what.last
    except OSError:
        return False


class LinesOf:
    """The lines of a receiver, one by one: `for line in …`, `async for`. `file`: where the last one stands.

    `encoding`: lines are str, those that cannot be decoded stay bytes.
    """

    def __init__(self, batches: Stream[Batch], encoding: str | None) -> None:
        self.file = ""
        self._batches = batches
        self._encoding = encoding

    def _opened(self, batch: Batch) -> list[Any]:
        self.file = batch.file
        return batch if self._encoding is None else [_decoded(line, self._encoding) for line in batch]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield from self._opened(batch)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for batch in self._batches:
            for line in self._opened(batch):
                yield line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Lines of a batch that was not read to its end come again."""
        self._batches.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batches.settle.aio()


def _decoded(line: bytes, encoding: str) -> str | bytes:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return line


class Receiver:
    """A receiver of a channel, by its name. No round trip before it is used.

    Processes that receive under one name stand in for one another: one receives, the others wait until it has ended, or
    has not been heard of for a lease.
    """

    def __init__(self, log: ChannelBindings, driver: Driver, renewer: Renewer, name: str) -> None:
        self.name = check_name("receiver", name)
        self._log = log
        self._driver = driver
        self._renewer = renewer

    def __repr__(self) -> str:
        return f"<Receiver {self.name} of {self._log.label}>"

    def blocks(self, *, wait: float | None = None, share: bool = False, lease: float | None = None) -> Stream[Block]:
        """Every block as it was sent: `for block in …blocks()`, `async for`.

        wait   seconds to wait for more, then the loop ends; None: it ends when the channel is closed and all was had
        share  each block goes to one of several processes that share this receiver, in no order. For a receiver either
               all of them share, or none
        lease  of shared blocks: seconds until what was not done with goes to another; None: the app's setting

        A block counts as done with when the loop comes back for the next one; the server is told with the next pull, a
        megabyte or so later: one round trip for both. What was not told comes again after a crash. `with …blocks() as
        blocks:` tells at its end, too. Raises FileDamaged for a file whose bytes are not those that were sent, or that
        its sender gave up; BlocksMissed where this receiver was passed over; asked for more after that, it goes on.
        """
        if share:
            return self._shared(wait, lease, as_block)
        return Blocks(self._log, self._driver, self._renewer, self.name, wait)

    def _shared(
        self, wait: float | None, lease: float | None, make: Callable[[Header, bytes], Iterable[T]]
    ) -> Sharing[T]:
        chosen = self._log.settings.lease if lease is None else lease
        if not 0.05 <= chosen <= 7 * 86400:
            raise ValueError(f"lease={chosen}: seconds from 0.05 to a week")
        return Sharing(self._log, self._driver, self.name, wait, chosen, make)

    def batches(
        self, *, wait: float | None = None, share: bool = False, lease: float | None = None, longest: int = LONGEST,
        spool: str | Path | None = None,
    ) -> Stream[Batch]:  # fmt: skip
        """The lines of each block as a list, with `file` and `first`, the number of the first line. As `lines`
        otherwise."""
        if not 1 <= longest <= MOST:
            raise ValueError(f"longest={longest}: bytes from 1 to {MOST:,}; a longer line is given up to there")
        if share:
            return self._shared(wait, lease, partial(lines_of_block, longest))
        return Batches(self._log, self._driver, self._renewer, self.name, wait, longest=longest, spool=spool)

    def lines(
        self, *, wait: float | None = None, share: bool = False, lease: float | None = None, longest: int = LONGEST,
        encoding: str | None = None, spool: str | Path | None = None,
    ) -> LinesOf:  # fmt: skip
        """Every line without its end (LF or CRLF), as bytes; of gzip files those of the text.

        wait, share, lease  as in `blocks`; to share, files must be sent with `send_lines`
        longest   bytes, up to 16 MiB; of a longer line this much is given, as `CutLine`
        encoding  lines are str then, and those that cannot be decoded stay bytes
        spool     folder in which gzip files that were sent as bytes are collected; None: one in the folder for
                  temporary files

        Lines count as done with block by block, as in `blocks`. A gzip file that was sent with `send` is received whole
        before its first line comes, and on the same host after a crash; with `send_lines` neither is needed. Raises as
        `blocks` does, and FileDamaged for gzip that is truncated or broken.
        """
        batches = self.batches(wait=wait, share=share, lease=lease, longest=longest, spool=spool)
        return LinesOf(batches, encoding)

    def save(self, folder: str | Path, *, wait: float | None = None) -> Saving:
        """Save the files: `for saved in …save("in")` gives each when it is there, whole, checked and on disk.

        Until then it is in a hidden folder within; a file of this name is replaced in one step. What a process did not
        finish the next one does, from the block it was at. wait, errors: as in `blocks`.
        """
        return Saving(self._log, self._driver, self._renewer, self.name, wait, Path(folder))

    @verb
    def join(self) -> RoundTrip[bool]:
        """Receive what is begun from now on; False: it is a receiver already. One round trip."""
        return self._log.join_channel(self.name)

    @verb
    def leave(self) -> Operation[bool]:
        """Receive no more: nothing is kept for it. False: it was none. One round trip."""
        was, more = yield self._log.part(self.name)
        yield from trim_rest(self._log, more)
        return bool(was)
