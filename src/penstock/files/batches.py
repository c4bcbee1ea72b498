"""The lines of a channel's files, in batches of one block each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Never, Self

from msgspec.structs import replace

from penstock.core.operations import Driver
from penstock.core.renewal import Renewer
from penstock.errors import FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.download import Download
from penstock.files.exclusive_stream import ExclusiveStream
from penstock.files.lines import LONGEST, CutLine, LineCutter
from penstock.files.partial_files import PartialFiles, folder_of_receiver, temporary_folder
from penstock.files.records import BlockHeader, ChannelRecord
from penstock.files.stream import ReceiverStream
from penstock.files.unpack import HEAD, unpacker_for

_CHUNK = 256 * 1024


class LineBatch(tuple[bytes, ...]):
    """Lines that follow one another, without their line ends.

    file    the name of their file
    first   the number of the first line, from 1
    source  the host that has the file

    A batch cannot be changed, so a function that counts it cannot lose a line of it.
    """

    file: str
    first: int
    source: str

    def __new__(cls, lines: Iterable[bytes] = (), file: str = "", first: int = 1, source: str = "") -> Self:
        batch = super().__new__(cls, lines)
        vars(batch).update(file=file, first=first, source=source)
        return batch

    def __getnewargs__(self) -> tuple[tuple[bytes, ...], str, int, str]:
        return tuple(self), self.file, self.first, self.source

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(
            f"a batch cannot be changed, so {name} cannot be set: copy its lines, as list(batch), and change the copy"
        )


class BatchStream(ExclusiveStream[LineBatch]):
    """The lines of each block.

    A packed file that was sent as bytes is received whole, into a spool, before its lines are read: no process could
    resume in the middle of one.
    """

    def __init__(
        self,
        channel: ChannelBindings,
        driver: Driver,
        renewer: Renewer,
        receiver: str,
        wait: float | None,
        *,
        longest: int = LONGEST,
        spool: str | Path | None = None,
    ) -> None:
        self._longest = longest
        folder = Path(spool) if spool else temporary_folder()
        self._spool = PartialFiles(folder / folder_of_receiver(channel, receiver))
        super().__init__(channel, driver, renewer, receiver, wait)

    def _on_resume(self) -> None:
        self._cutters: dict[str, LineCutter] = {}
        self._spool.close()

    def _on_new_owner(self) -> None:
        self._spool.remove_others(keep=self._downloads)

    def _on_settled(self, number: int) -> None:
        self._spool.settled(number)

    def _on_block(self, record: ChannelRecord, header: BlockHeader, data: bytes | memoryview) -> Iterable[LineBatch]:
        download = self._downloads[record.upload_id]
        if not download.lines and header.offset == 0 and unpacker_for(bytes(data[:HEAD]), Path(download.name)):
            download = self._downloads[record.upload_id] = replace(download, spooled=True)
        if download.spooled:
            self._spool.write(record.upload_id, header, data)
            return
        cutter = self._cutter(record.upload_id, download)
        lines = cutter.feed(bytes(data))
        self._downloads[record.upload_id] = replace(
            download,
            lines_given=download.lines_given + len(lines),
            in_long_line=cutter.in_long_line,
            unfinished_line=cutter.unfinished,
        )
        yield from _batch(download, download.lines_given, lines)

    def _cutter(self, upload_id: str, download: Download) -> LineCutter:
        if (cutter := self._cutters.get(upload_id)) is None:
            cutter = self._cutters[upload_id] = LineCutter(
                self._longest, in_long_line=download.in_long_line, unfinished=download.unfinished_line
            )
        return cutter

    def _on_end(self, record: ChannelRecord, download: Download) -> Iterable[LineBatch]:
        if download.spooled:
            yield from self._batches_of_spooled(record.upload_id, download)
        else:
            yield from _batch(download, download.lines_given, self._cutter(record.upload_id, download).finish())
        self._on_dropped(record.number, record.upload_id)

    def _batches_of_spooled(self, upload_id: str, download: Download) -> Iterator[LineBatch]:
        """The batches of a spooled file, without the lines that an earlier process has delivered."""
        for before, lines in _lines_of_packed(self._spool.open(upload_id, download), download.name, self._longest):
            after = before + len(lines)
            if after > download.lines_given:
                self._downloads[upload_id] = replace(self._downloads[upload_id], lines_given=after)
                first_new = max(0, download.lines_given - before)
                yield from _batch(download, before + first_new, lines[first_new:])

    def _on_dropped(self, number: int, upload_id: str) -> None:
        self._cutters.pop(upload_id, None)
        self._spool.remove_later(number, upload_id)


def _batch(file: Download | BlockHeader, lines_before: int, lines: list[bytes]) -> Iterator[LineBatch]:
    """One batch, or nothing if there are no lines."""
    if lines:
        yield LineBatch(lines, file.name, lines_before + 1, file.source)


def batches_of_block(longest: int, header: BlockHeader, data: bytes | memoryview) -> Iterator[LineBatch]:
    """The lines that end in this block. A line that is longer than a block is cut: only its last piece is given, as
    a CutLine."""
    if header.lines_before < 0:
        raise FilesError(
            f"{header.name} was sent as bytes, so its blocks do not end at line ends: with share=True, send files "
            "with send_lines()"
        )
    cutter = LineCutter(longest)
    lines = cutter.feed(bytes(data))
    if not header.last_line_continues:
        lines += cutter.finish()
    if header.begins_in_line and lines:
        lines[0] = CutLine(lines[0])
    yield from _batch(header, header.lines_before, lines)


def _lines_of_packed(file: BinaryIO, name: str, longest: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines of the text, each list with the number of lines before it."""
    with file:
        head = file.read(HEAD)
        file.seek(0)
        unpacker_type = unpacker_for(head, Path(name))
        assert unpacker_type is not None  # checked when the file's first block arrived
        cutter, unpacker, before = LineCutter(longest), unpacker_type(name), 0
        while data := file.read(_CHUNK):
            for text in unpacker.feed(data):
                lines = cutter.feed(text)
                yield before, lines
                before += len(lines)
    unpacker.finish()
    yield before, cutter.finish()


class LineStream:
    """The lines of a receiver, one by one: `for line in …` or `async for`.

    `file` is the name of the file that the last line is from, `source` the host that has it. With an `encoding` the
    lines are str; a line that cannot be decoded stays bytes.
    """

    def __init__(self, batches: ReceiverStream[LineBatch], encoding: str | None) -> None:
        self.file = self.source = ""
        self._batches = batches
        self._encoding = encoding

    def _lines_of(self, batch: LineBatch) -> Sequence[Any]:
        self.file, self.source = batch.file, batch.source
        return batch if self._encoding is None else [_decoded(line, self._encoding) for line in batch]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield from self._lines_of(batch)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for batch in self._batches:
            for line in self._lines_of(batch):
                yield line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Settle. Lines of a batch that was not read to its end are delivered again."""
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
