"""Uploads one file to a channel: keeps track of what the server has stored, and makes the records to send next.

The script call that sends a batch of blocks also stores the progress of the upload. So after a crash a new sender
resumes after the last block. If the first sender was alive after all, its calls are refused from then on.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from itertools import islice

import msgspec

from penstock.core.ids import mint_id
from penstock.errors import FileChanged, FileDamaged, FilesError
from penstock.files.bindings import SourceEntry, UploadPiece
from penstock.files.marks import with_mark
from penstock.files.recognition import (
    PendingFile,
    Recogniser,
    SendRules,
    UploadState,
    decode_state,
    encode_state,
)
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
from penstock.files.regular_file import printable
from penstock.files.source_reader import SourceBlock, SourceReader

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


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a `send`, reported after each batch of blocks, and while it waits for space.

    name, done, size  a file, the bytes of it that were read, and its size; packed bytes if the file is packed
    sent, total       bytes of all files: those that were read, and those that are to be sent
    held, slowest     bytes in the channel that some receiver has not acknowledged, and the receiver that is furthest
                      behind
    waiting           the channel is full: the slowest receiver sets the pace
    """

    name: str
    done: int
    size: int
    sent: int
    total: int
    held: int
    slowest: str
    waiting: bool


SMALL_UPLOAD = 256 * 1024
"""Bytes of an upload that may share its round trip with others."""

ENDED_EARLY = "?"
"""The outcome of an upload of lines that had to be given up: the rest of the file is still to be sent."""


class Upload:
    """One upload. `failure`: the error that ended it early; to be raised once the records that report it are sent."""

    def __init__(self, rules: SendRules, recogniser: Recogniser, pending: PendingFile) -> None:
        """Begin at the start of the file, where the growth of a log begins since it was sent as lines, or where another
        process stopped. Raises FilesError if the file is gone or has changed."""
        self._rules = rules
        self.pending = pending
        entry, state, start = pending.entry, pending.state, pending.start
        self.reader = SourceReader(
            pending.source, lines=rules.lines, start=start, hold_back=not recogniser.is_finished(pending, state)
        )
        if self.reader.inode != pending.inode:
            self.reader.close()
            raise FileChanged(f"{printable(pending.path)} was replaced before its upload began")
        self.name = pending.source.name
        self.ended = False
        self.failure: FilesError | None = None
        self.resumed = pending.is_resumed
        self._entry_id = entry.id if entry else mint_id()
        self._expected = entry.raw if entry else b""
        self._names = recogniser.names(pending)
        self._point = start
        self._marks = state.marks if state else ()
        if start is not None and not pending.is_resumed:
            self._marks = with_mark(self._marks, start.mark)
        self._digest = self._digest_read = START_DIGEST
        self._begins_in_line = False
        self._records: list[tuple[str, bytes]] = []
        """The records to send next."""
        self._is_batch_ready = False
        self._outcome = ""
        self._blocks = self.reader.blocks()
        if self.resumed and entry and state:
            self.name, self._upload_id = state.name, entry.upload_id
            self._digest, self._begins_in_line = state.digest, state.begins_in_line
            self._continues = True
        else:
            self._upload_id = mint_id()
            self._continues = False
            self._records.append((BEGIN, pack(self._begin_record(state))))

    def _begin_record(self, state: UploadState | None) -> FileBegin:
        reader, start = self.reader, self._point
        begin = FileBegin(
            self.name,
            reader.size,
            self._rules.lines,
            self._rules.lines and reader.packed,
            source=self._rules.source,
            mode=stat.S_IMODE(reader.status.st_mode),
            modified=reader.status.st_mtime_ns,
        )
        if start is None:
            return begin
        return msgspec.structs.replace(
            begin,
            offset=start.offset,
            lines_before=start.lines,
            last_block_size=start.last_block_size,
            last_block_digest=start.last_block_digest,
            earlier_name=state.name if state else "",
        )

    @property
    def batch_bytes(self) -> int:
        """Bytes of the records that are ready."""
        return sum(len(body) for _, body in self._records)

    @property
    def is_small_and_whole(self) -> bool:
        """Whether the records that are ready are the whole upload, so that they may travel with those of others."""
        return self.ended and not self._continues and self.batch_bytes <= SMALL_UPLOAD

    @property
    def _offset(self) -> int:
        return self._point.offset if self._point else 0

    @property
    def _lines(self) -> int:
        return self._point.lines if self._point else 0

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
            if missing and self.reader.was_written():
                self.reader.check_unchanged(self._digest_read)
            if self._point is not None:
                self._point = self.reader.with_head(self._point)
        except FilesError as error:
            self.failure = error
            self._end(ABORT, str(error).encode(), self._outcome_of(error))
            return
        if missing:
            self._end(END, pack(FileEnd(self._offset, self._lines, self._digest)), self.reader.identity)

    def _outcome_of(self, error: FilesError) -> str:
        """A damaged file is skipped until it changes. Lines that were sent are not sent again."""
        if isinstance(error, FileDamaged):
            return f"{self.reader.identity} {error}"
        return ENDED_EARLY if self._rules.lines and self._point is not None else "-"

    def _end(self, kind: str, body: bytes, outcome: str) -> None:
        self._records.append((kind, body))
        self.ended, self._outcome = True, outcome

    def _add(self, block: SourceBlock) -> None:
        self._digest = chain_digest(self._digest, block.digest)
        self._digest_read = chain_digest(self._digest_read, block.digest)
        deflated = self._rules.lines and self.reader.packed
        header = BlockHeader(
            self.name,
            block.offset,
            block.first_line - 1,
            self._begins_in_line,
            deflated,
            block.digest,
            block.last_line_continues,
            self._rules.source,
        )
        self._begins_in_line = block.last_line_continues
        self._records.append((DATA, pack_block(header, block.data)))
        head_size, head = (self._point.head_size, self._point.head) if self._point else (0, b"")
        self._point = replace(self.reader.resume_point(block), head_size=head_size, head=head)

    def take_piece(self) -> UploadPiece:
        """The records that are ready, for `ChannelBindings.put`; the next batch may be read before they are stored."""
        state = UploadState(
            self.name,
            self.pending.path,
            self._point,
            self._digest,
            self._begins_in_line,
            self.reader.held_back,
            self._marks,
            self.pending.target,
        )
        piece = UploadPiece(
            self._entry_id,
            self._upload_id,
            self._records,
            encode_state(state),
            expected=None if self._continues else self._expected,
            known=self.pending.known,
            outcome=self._outcome,
            names=self._names,
        )
        self._records = []
        self._names = []
        self._continues, self._is_batch_ready = True, False
        return piece

    def result(self) -> SentFile:
        return SentFile(self.name, self._offset, self._lines, self._digest.hex(), self.resumed)


def abort_piece(rules: SendRules, entry: SourceEntry, reason: str) -> UploadPiece:
    """The record that notifies receivers that the file of an upload in progress will never be whole."""
    state = decode_state(entry.state)
    outcome = ENDED_EARLY if rules.lines and state.resume_point is not None else "-"
    return UploadPiece(entry.id, entry.upload_id, [(ABORT, reason.encode())], entry.state, outcome=outcome)
