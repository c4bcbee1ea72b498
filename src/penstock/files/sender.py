"""Sends files to a channel: finds out which files are left to send, and sends them one after the other, as fast as the
channel has space."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.core.ids import mint_token
from penstock.core.operations import Operation, RoundTrip, RunInThread
from penstock.errors import ChannelError, FileChanged, FileDamaged, FilesError, SentElsewhere
from penstock.files.bindings import MAX_SOURCES, ChannelBindings, PutReply, SourceEntry
from penstock.files.records import ABORT
from penstock.files.regular_file import identity_of, inode_of
from penstock.files.source import Source
from penstock.files.upload import PendingFile, SentFile, Upload, UploadContext
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until, wake_rest


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a `send` is, reported after each batch of blocks, and while it waits for space.

    name, done, size  a file, the bytes of it that were read, and its size; for gzip, packed bytes
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


@dataclass(slots=True)
class Sent:
    """The result of a `send`. `skipped`: names of files that were sent before and have not changed since."""

    files: list[SentFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def close_channel(channel: ChannelBindings) -> Operation[bool]:
    """Close a channel, and notify those that wait for it. Returns whether it was open."""
    was_open, wake = yield channel.close()
    yield from wake_rest(channel, wake)
    return bool(was_open)


class Sender:
    """One call of `send` or `send_lines`. `host` distinguishes the files of several hosts; None: this host's name."""

    def __init__(
        self, channel: ChannelBindings, *, lines: bool, again: bool, host: str | None,
        report: Callable[[Progress], object] | None,
    ) -> None:  # fmt: skip
        self._channel = channel
        self._context = UploadContext(channel, mint_token(), host or socket.gethostname(), lines, again)
        self._report_to = report
        self._sent = Sent()
        self._bytes_read = self._total = 0
        self._resumed_inodes = set[str]()
        """Files whose upload was resumed, perhaps under a new name: they are not sent a second time."""
        self._failed: list[FilesError] = []

    def run(
        self, sources: Sequence[Source], receivers: Sequence[str], limit: int | None, patience: float | None,
        close: bool,
    ) -> Operation[Sent]:  # fmt: skip
        pending = yield from self._find_pending(sources)
        if pending or not (yield from self._is_closed()):
            yield self._channel.open(receivers, limit, patience)
        self._total = sum(file.size for file in pending)
        for file in pending:
            try:
                yield from self._send(file)
            except ChannelError:
                raise
            except FilesError as error:
                self._failed.append(error)
            self._bytes_read += file.size
        if close:
            yield from close_channel(self._channel)
            self._sent.closed = True
        if self._failed:
            faults = "; ".join(map(str, self._failed))
            raise FilesError(f"{len(self._failed)} of {len(sources)} files were not sent whole: {faults}")
        return self._sent

    def _is_closed(self) -> Operation[bool]:
        info = yield default_on(b"GONE", self._channel.info(), None)
        return info is not None and info.closed

    # --- which files are left to send ---

    def _find_pending(self, sources: Sequence[Source]) -> Operation[list[PendingFile]]:
        files: list[PendingFile] = yield RunInThread(lambda: [self._pending_file(source) for source in sources])
        pending = []
        for start in range(0, len(files), MAX_SOURCES):
            page = files[start : start + MAX_SOURCES]
            keys = [file.path_key for file in page] + [file.inode_key for file in page]
            entries = yield default_on(b"GONE", self._channel.source_entries(keys), [None] * len(keys))
            for file, in_progress, sent in zip(page, entries[: len(page)], entries[len(page) :], strict=True):
                file.in_progress, file.sent = in_progress, sent
                outcome = sent.outcome if in_progress is None and sent is not None and not self._context.again else ""
                if outcome == file.identity:
                    self._sent.skipped.append(file.source.name)
                elif outcome.startswith(f"{file.identity} "):
                    self._failed.append(FileDamaged(outcome.removeprefix(f"{file.identity} ")))
                else:
                    pending.append(file)
        # Uploads in progress first: their file may have been renamed, and be given under its new name as well.
        return sorted(pending, key=lambda file: file.in_progress is None)

    def _pending_file(self, source: Source) -> PendingFile:
        try:
            status = os.stat(source.path)
        except OSError as error:
            raise FilesError(f"{source.path} cannot be read: {error.strerror}") from error
        path = os.fsencode(os.path.abspath(source.path)).decode(errors="backslashreplace")
        return PendingFile(
            source, self._context.path_key(path), self._context.inode_key(inode_of(status)), status.st_size,
            identity_of(status, status.st_size),
        )  # fmt: skip

    # --- one file ---

    def _send(self, file: PendingFile) -> Operation[None]:
        if file.in_progress is not None and (yield from self._resume(file, file.in_progress)):
            return
        if file.inode_key in self._resumed_inodes:
            self._sent.skipped.append(file.source.name)
            return
        yield from self._transfer((yield RunInThread(partial(Upload.begin, self._context, file))))

    def _resume(self, file: PendingFile, in_progress: SourceEntry) -> Operation[bool]:
        """Resume the upload that another process began at this path. Returns whether this has sent the pending file:
        that upload may be of another file, which had the path before."""
        call = self._channel.take_over(file.path_key, in_progress.upload_id, self._context.token)
        entry = yield default_on(b"TAKEN", call, None)
        if entry is None:
            raise SentElsewhere(f"another process sends {file.source.path} now; this one has stopped")
        try:
            upload: Upload = yield RunInThread(partial(Upload.resume, self._context, file, entry))
        except FilesError as error:
            yield from self._abort(file, entry, error)
            return False
        try:
            yield from self._transfer(upload)
        except FileChanged:  # the receivers were notified; another file has the path now
            return False
        self._resumed_inodes.add(upload.inode_key)
        return upload.inode_key == file.inode_key

    def _abort(self, file: PendingFile, entry: SourceEntry, error: FilesError) -> Operation[None]:
        """Notify the receivers that the file of this upload will never be whole."""
        records = [(ABORT, str(error).encode())]
        put = self._channel.put(
            file.path_key, entry.upload_id, self._context.token, records, expected=None, state="",
            inode_key=file.inode_key, outcome="-",
        )  # fmt: skip
        yield from self._put_when_space(lambda: put, partial(self._channel.await_space, records))

    def _transfer(self, upload: Upload) -> Operation[None]:
        with upload.reader:
            while True:
                yield RunInThread(upload.read_batch)
                yield from self._put_when_space(
                    lambda: upload.put().then(partial(self._report, upload)), upload.await_space
                )
                upload.batch_sent()
                if upload.failure is not None:
                    raise upload.failure
                if upload.ended:
                    break
        self._sent.files.append(upload.result())

    def _put_when_space(
        self, put: Callable[[], RoundTrip[PutReply]], await_space: Callable[[str, float], RoundTrip[PutReply]]
    ) -> Operation[None]:
        while (yield put()).full:
            yield from ask_until(
                lambda reply: not reply.full, await_space, self._channel, None, own_address=True,
                due=lambda reply: reply.due_in, interval=self._channel.settings.sleep,
            )  # fmt: skip

    def _report(self, upload: Upload, reply: PutReply) -> PutReply:
        if self._report_to is not None:
            done, size = upload.reader.bytes_read, upload.reader.size
            self._report_to(
                Progress(
                    upload.name, done, size, self._bytes_read + done, self._total, reply.bytes, reply.slowest,
                    reply.full,
                )
            )  # fmt: skip
        return reply
