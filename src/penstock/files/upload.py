"""Uploads one file to a channel: keeps track of what the server has stored, and makes the records to send next.

The script call that sends a batch of blocks also stores how far the upload is. So after a crash a new sender resumes
behind the last block. If the first sender was alive after all, its calls are refused from then on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import islice

import msgspec

from penstock.core.ids import mint_id
from penstock.core.operations import RoundTrip
from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings, PutReply, SourceEntry
from penstock.files.records import (
    ABORT,
    BEGIN,
    DATA,
    END,
    START_DIGEST,
    BlockHeader,
    FileBegin,
    FileEnd,
    chain_digest,
    pack,
    pack_block,
)
from penstock.files.source import Source
from penstock.files.source_reader import ResumePoint, SourceBlock, SourceReader

BLOCKS_PER_PUT = 4
"""Blocks in one round trip: a megabyte."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that was sent whole.

    size     bytes that receivers have of it; if it was sent as lines, of its text
    lines    how many lines it has; 0 if it was sent as bytes
    digest   what `file_digest` returns for it, if it was sent as bytes
    resumed  an earlier `send` had begun it
    """

    name: str
    size: int
    lines: int
    digest: str
    resumed: bool


class UploadState(msgspec.Struct, frozen=True):
    """How far an upload is, as the server keeps it.

    digest          of all blocks so far
    begins_in_line  the next block begins in the middle of a line that is longer than a block
    """

    name: str
    resume_point: ResumePoint | None
    digest: bytes
    begins_in_line: bool = False


_decode_state = msgspec.json.Decoder(UploadState).decode


@dataclass(slots=True)
class PendingFile:
    """A file that is to be sent.

    path_key     identifies an upload in progress, by host and path
    inode_key    identifies a file that was sent, by host, device and inode, so that a log is recognised after it was
                 renamed
    identity     changes with the content of the file
    in_progress  the channel's entry of an upload with this path_key, or None
    sent         the channel's entry of a file that was sent with this inode_key, or None
    """

    source: Source
    path_key: str
    inode_key: str
    size: int
    identity: str
    in_progress: SourceEntry | None = None
    sent: SourceEntry | None = None


@dataclass(frozen=True, slots=True)
class UploadContext:
    """The settings that all uploads of one `send` share.

    token  identifies this sender
    again  files that were sent before are sent once more
    """

    channel: ChannelBindings
    token: str
    host: str
    lines: bool
    again: bool

    def inode_key(self, inode: str) -> str:
        return f"{self._kind}:{self.host}:{inode}"

    def path_key(self, path: str) -> str:
        return f"{self._kind}:{self.host}:{path}"

    @property
    def _kind(self) -> str:
        return "lines" if self.lines else "bytes"


class Upload:
    """One upload. `failure`: the error that ended it early; to be raised once the records that report it are sent."""

    def __init__(
        self, context: UploadContext, pending: PendingFile, reader: SourceReader, upload_id: str, state: UploadState,
        records: list[tuple[str, bytes]],
    ) -> None:  # fmt: skip
        self.name = state.name
        self.reader = reader
        self.inode_key = context.inode_key(reader.inode)
        self.ended = False
        self.failure: FilesError | None = None
        self._context = context
        self._path_key = pending.path_key
        self._upload_id = upload_id
        self._resumed = not records
        self._expected = (pending.sent.raw if pending.sent else b"") if records else None
        self._resume_point = state.resume_point
        self._digest = state.digest
        self._begins_in_line = state.begins_in_line
        self._blocks = reader.blocks()
        self._records = records
        """The records to send next."""
        self._is_batch_ready = False
        self._outcome = ""

    @classmethod
    def begin(cls, context: UploadContext, pending: PendingFile) -> Upload:
        """Begin at the start of the file; or, if it has grown since it was sent as lines, where it ended then."""
        start = pending.sent and _decode_state(pending.sent.state).resume_point
        if start and context.lines and not context.again and start.file_size < pending.size:
            upload = cls._begin_at(context, pending, replace(start, file_size=pending.size))
            upload.read_batch()
            if not isinstance(upload.failure, FileChanged):
                return upload
            upload.reader.close()  # another file has the same inode by now
        return cls._begin_at(context, pending, None)

    @classmethod
    def _begin_at(cls, context: UploadContext, pending: PendingFile, start: ResumePoint | None) -> Upload:
        reader = SourceReader(pending.source, lines=context.lines, start=start)
        name = pending.source.name
        begin = FileBegin(name, reader.size, context.lines, context.lines and reader.packed)
        if start:
            begin = msgspec.structs.replace(
                begin, offset=start.offset, lines_before=start.lines, last_block_size=start.last_block_size,
                last_block_digest=start.last_block_digest,
            )  # fmt: skip
        state = UploadState(name, start, START_DIGEST)
        return cls(context, pending, reader, mint_id(), state, [(BEGIN, pack(begin))])

    @classmethod
    def resume(cls, context: UploadContext, pending: PendingFile, entry: SourceEntry) -> Upload:
        """Continue the upload that another process began. Raises FilesError if its file is gone or has changed."""
        state = _decode_state(entry.state)
        reader = SourceReader(pending.source, lines=context.lines, start=state.resume_point)
        return cls(context, pending, reader, entry.upload_id, state, [])

    @property
    def _offset(self) -> int:
        return self._resume_point.offset if self._resume_point else 0

    @property
    def _lines(self) -> int:
        return self._resume_point.lines if self._resume_point else 0

    def read_batch(self) -> None:
        """Make the records of the next blocks, unless they are ready. If the file cannot be read to its end, this sets
        `failure`, and the last record reports it to the receivers."""
        if self._is_batch_ready:
            return
        self._is_batch_ready = True
        missing = BLOCKS_PER_PUT
        try:
            for block in islice(self._blocks, BLOCKS_PER_PUT):
                self._add(block)
                missing -= 1
        except FilesError as error:
            self.failure = error
            # The outcome makes later calls of `send` skip a damaged file for as long as it does not change.
            is_damaged = isinstance(error, FileDamaged)
            self._end(ABORT, str(error).encode(), f"{self.reader.identity} {error}" if is_damaged else "-")
            return
        if missing:
            self._end(END, pack(FileEnd(self._offset, self._lines, self._digest)), self.reader.identity)

    def _end(self, kind: str, body: bytes, outcome: str) -> None:
        self._records.append((kind, body))
        self.ended, self._outcome = True, outcome

    def _add(self, block: SourceBlock) -> None:
        block_digest = hashlib.sha256(block.data).digest()
        self._digest = chain_digest(self._digest, block_digest)
        deflated = self._context.lines and self.reader.packed
        header = BlockHeader(
            self.name, block.offset, block.first_line - 1, self._begins_in_line, deflated, block_digest,
            block.last_line_continues,
        )  # fmt: skip
        self._begins_in_line = block.last_line_continues
        self._records.append((DATA, pack_block(header, block.data)))
        self._resume_point = self.reader.resume_point(block, block_digest)

    def put(self) -> RoundTrip[PutReply]:
        """Send the records that are ready."""
        state = UploadState(self.name, self._resume_point, self._digest, self._begins_in_line)
        return self._context.channel.put(
            self._path_key, self._upload_id, self._context.token, self._records, expected=self._expected,
            state=msgspec.json.encode(state).decode(), inode_key=self.inode_key, outcome=self._outcome,
        )  # fmt: skip

    def await_space(self, address: str, ttl: float) -> RoundTrip[PutReply]:
        return self._context.channel.await_space(self._records, address, ttl)

    def batch_sent(self) -> None:
        """Call it when the channel has stored the records."""
        self._records = []
        self._expected, self._is_batch_ready = None, False

    def result(self) -> SentFile:
        return SentFile(self.name, self._offset, self._lines, self._digest.hex(), self._resumed)
