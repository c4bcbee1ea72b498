"""Sends files to a channel: finds out which files are left to send, and sends them one after the other, as fast as the
channel has space."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from penstock.core.ids import mint_token
from penstock.core.operations import Operation, Receive, RunInThread, Send, Sleep
from penstock.errors import FilesError, SentElsewhere
from penstock.files.bindings import MAX_NAMES, ChannelBindings, SourceEntry, UploadPiece
from penstock.files.following import LOOK_INTERVAL, FollowedLogs
from penstock.files.recognition import (
    PendingFile,
    Recogniser,
    SendRules,
    Verdict,
    decode_state,
    encode_state,
    find_renamed,
    pending_file,
)
from penstock.files.records import keep_freed_memory
from penstock.files.regular_file import inode_at, printable
from penstock.files.replies import PutReply
from penstock.files.rotation import log_path
from penstock.files.source import Source
from penstock.files.upload import Progress, SentFile, Upload, abort_piece
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until, wake_rest

log = logging.getLogger("penstock")

MAX_NAMED = 10_000
"""The most files that the result names after following."""

SMALL_FILE = 64 * 1024
"""A file of at most this size travels with others in one round trip."""

BATCH_BYTES = 1024 * 1024
BATCH_FILES = 100
"""Bytes and files in such a round trip: two milliseconds of server time."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that was not sent, because a file with the same content was sent under the name `of`."""

    name: str
    of: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A file whose last `bytes` bytes were not sent, because they are a line without a line end. It may still be
    written."""

    name: str
    bytes: int


@dataclass(slots=True)
class Sent:
    """The result of a `send`.

    files      the files that were sent, in the order in which they were sent
    skipped    names of files that were sent before and have not changed since
    copies     files whose content was sent before, from another file
    held_back  files with an unfinished line at their end, which a later `send` sends
    waiting    names of files that a log rotation seems to be writing or renaming; a later `send` sends them
    closed     the channel was closed
    forgotten  how many earlier files the channel forgot to make room, because it remembers only the last 100,000. If
               such a file is named again, it is sent again
    """

    files: list[SentFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    held_back: list[HeldBack] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    closed: bool = False
    forgotten: int = 0

    @property
    def bytes(self) -> int:
        """The size of the files that were sent, together."""
        return sum(file.size for file in self.files)


def close_channel(channel: ChannelBindings) -> Operation[bool]:
    """Close a channel, and notify those that wait for it. Returns whether it was open."""
    was_open, wake = yield channel.close()
    yield from wake_rest(channel, wake)
    return bool(was_open)


class Sender:
    """One call of `send` or `send_lines`."""

    def __init__(
        self, channel: ChannelBindings, rules: SendRules, report: Callable[[Progress], object] | None = None
    ) -> None:
        keep_freed_memory()
        self._channel = channel
        self._rules = rules
        self._recogniser = Recogniser(rules)
        self._token = mint_token()
        self._report_to = report
        self._sent = Sent()
        self._bytes_read = self._total = 0
        self._failed: list[FilesError] = []
        self._lost: list[tuple[PendingFile, SourceEntry]] = []
        """Uploads in progress whose file is gone, each with the file that has its path now."""
        self._outdated: set[tuple[str, str]] = set()
        """Inodes of followed logs that were truncated, each with the id of an entry of the time before."""

    def run(
        self,
        sources: Sequence[Source],
        receivers: Sequence[str],
        limit: int | None,
        patience: float | None,
        close: bool,
    ) -> Operation[Sent]:
        files = yield from self._find_pending(sources)
        to_send = [file for file in files if file.verdict in {Verdict.SEND, Verdict.LATER}]
        if to_send or not (yield from self._is_closed()):
            yield self._channel.open(receivers, limit, patience)
        yield from self._send_all(files)
        if close:
            yield from close_channel(self._channel)
            self._sent.closed = True
        if self._failed:
            faults = "; ".join(map(str, self._failed))
            raise FilesError(f"{len(self._failed)} of {len(sources)} files were not sent whole: {faults}")
        return self._sent

    def follow(
        self,
        find: Callable[[], list[Source]],
        receivers: Sequence[str],
        limit: int | None,
        patience: float | None,
        close: bool,
        go_on: Callable[[], bool],
    ) -> Operation[Sent]:
        """Send the new content of the files that `find` returns, again and again, until `go_on` returns False. A file
        that cannot be read or is damaged is logged, and the others are sent."""
        is_final, self._rules = self._rules.final, replace(self._rules, final=False, follow=True)
        yield self._channel.open(receivers, limit, patience)
        logs = FollowedLogs(find, self._rules.settle)
        try:
            is_last = False
            while not is_last:
                is_last = not go_on()
                sources = yield RunInThread(logs.changed)
                yield from self._look(sources)
                logs.close_finished()
                if not is_last:
                    yield Sleep(LOOK_INTERVAL)
        finally:
            logs.close()
        if is_final:
            self._rules = replace(self._rules, final=True)
            yield from self._look((yield RunInThread(find)))
        if close:
            yield from close_channel(self._channel)
            self._sent.closed = True
        return self._sent

    def _look(self, sources: Sequence[Source]) -> Operation[None]:
        """Send the new content of these files. The result names each file once, however often it grew."""
        if not sources:
            return
        self._recogniser = Recogniser(self._rules, self._outdated)
        whole, self._sent = self._sent, Sent(forgotten=self._sent.forgotten)
        self._bytes_read = 0
        yield from self._send_all((yield from self._find_pending(sources)))
        latest = {file.name: file for file in (*whole.files, *self._sent.files)}
        copies = {copy.name: copy for copy in (*whole.copies, *self._sent.copies)}
        self._sent.files = [*latest.values()][-MAX_NAMED:]
        self._sent.copies = [*copies.values()][-MAX_NAMED:]
        for error in self._failed:
            log.warning("%s", error)
        self._failed.clear()

    def _is_closed(self) -> Operation[bool]:
        info = yield default_on(b"GONE", self._channel.info(), None)
        return info is not None and info.closed

    # --- which files are left to send ---

    def _find_pending(self, sources: Sequence[Source]) -> Operation[list[PendingFile]]:
        """The files with their verdicts, in the order in which to send them. A damaged file that has not changed since
        it was sent counts as failed."""
        files: list[PendingFile] = yield RunInThread(partial(self._pending_files, sources))
        entries = yield from self._find_entries([self._recogniser.own_names(file) for file in files])
        looks = [_Look(file, found) for file, found in zip(files, entries, strict=True)]
        self._outdated.update(
            (look.file.inode, entry.id) for look in looks if look.file.source.shrunk for entry in look.entries[0]
        )
        undecided: list[_Look] = yield RunInThread(lambda: [look for look in looks if not self._is_decided(look)])
        more = yield from self._find_entries([self._recogniser.shared_names(look.file) for look in undecided])
        for look, found in zip(undecided, more, strict=True):
            look.entries += found
        yield RunInThread(partial(self._decide, undecided))
        earlier: list[PendingFile] = []
        for look in undecided:
            earlier += yield from self._find_earlier(look)
        left = [*earlier, *(look.file for look in looks if not look.failed)]
        # Uploads in progress come first, then logs that were renamed: `save` needs the text saved under the old name.
        return sorted(left, key=lambda file: (not file.is_resumed, not file.was_renamed))

    def _pending_files(self, sources: Sequence[Source]) -> list[PendingFile]:
        files = []
        for source in sources:
            try:
                files.append(pending_file(source))
            except FilesError:
                if not self._rules.follow:  # else it was renamed just now, and is found at the next look
                    raise
        return files

    def _find_entries(self, names: Sequence[Sequence[str]]) -> Operation[list[list[list[SourceEntry]]]]:
        """For each list of names, the entries that each of them leads to. One round trip for each 200 names."""
        flat = [name for some in names for name in some]
        found: list[list[SourceEntry]] = []
        for start in range(0, len(flat), MAX_NAMES):
            page = flat[start : start + MAX_NAMES]
            found += yield default_on(b"GONE", self._channel.find_entries(page), [[]] * len(page))
        rest = iter(found)
        return [[next(rest) for _ in some] for some in names]

    def _is_decided(self, look: _Look) -> bool:
        """Decide without reading the file, or else read its first bytes."""
        with self._noting_failure(look):
            if self._recogniser.decide_by_inode(look.file, look.entries[0]):
                return True
            self._recogniser.read_first_bytes(look.file)
        return look.failed

    def _decide(self, looks: Sequence[_Look]) -> None:
        # A file that has kept its inode comes first, and a log that is being written after those that were rotated.
        for look in sorted(looks, key=lambda look: (not look.file.known, log_path(look.file.path) == look.file.path)):
            with self._noting_failure(look):
                self._recogniser.decide(look.file, (entry for found in look.entries for entry in found))

    @contextmanager
    def _noting_failure(self, look: _Look) -> Iterator[None]:
        try:
            yield
        except FilesError as error:
            self._note_unreadable(look.file, error)
            look.failed = True

    def _find_earlier(self, look: _Look) -> Operation[list[PendingFile]]:
        """The files that had this path when they were sent, and were renamed since: their rest is sent, too, even if
        the caller did not name them. If the file of an upload is gone, its receivers will be notified."""
        earlier = []
        path_entries = look.entries[0 if self._rules.by_path else 1]
        for entry in path_entries:
            if self._recogniser.is_continued(entry) or (entry.outcome and (self._rules.again or not self._rules.lines)):
                continue
            state = decode_state(entry.state)
            found = yield RunInThread(partial(find_renamed, self._rules, look.file, entry, state))
            if found is not None:
                yield RunInThread(partial(self._recogniser.decide, found, [entry]))
                if found.verdict is Verdict.SEND and found.entry is not None:
                    earlier.append(found)
            elif not entry.outcome:
                self._lost.append((look.file, entry))
        return earlier

    def _abort_lost(self) -> Operation[None]:
        while self._lost:
            yield from self._abort(*self._lost.pop())

    def _abort(self, file: PendingFile, entry: SourceEntry) -> Operation[None]:
        """Notify the receivers that the file of this upload will never be whole."""
        owned = yield from self._take_over(file, entry)
        reason = (
            f"{printable(file.path)} changed since its upload began: another file has its name, and the file that was "
            "being sent is not in its folder any more"
        )
        piece = abort_piece(self._rules, owned, reason)
        yield from self._put_when_space([piece])

    def _take_over(self, file: PendingFile, entry: SourceEntry) -> Operation[SourceEntry]:
        owned: SourceEntry | None = yield default_on(b"TAKEN", self._channel.take_over(entry, self._token), None)
        if owned is None:
            raise SentElsewhere(f"another process sends {file.source.path} now; this one has stopped")
        return owned

    # --- the files ---

    def _send_all(self, files: Sequence[PendingFile]) -> Operation[None]:
        """Send the files, then decide about those that may be copies of them."""
        yield from self._abort_lost()
        to_send = [file for file in files if file.verdict is Verdict.SEND]
        self._total = sum(file.size for file in to_send)
        yield from self._send_each(to_send)
        # Now, because a new file may have taken over the inode of a log that was copied.
        for file in files:
            if file.verdict not in {Verdict.SEND, Verdict.LATER}:
                yield from self._skip(file)
        for later in (file for file in files if file.verdict is Verdict.LATER):
            self._recogniser.look_again()
            again = yield from self._find_pending([later.source])
            yield from self._abort_lost()
            for file in again:
                self._total += file.size
                yield from (self._send_each([file]) if file.verdict is Verdict.SEND else self._skip(file))

    def _skip(self, file: PendingFile) -> Operation[None]:
        """Report a file that is not sent, and store its present name."""
        name, state, entry = file.source.name, file.state, file.entry
        if file.verdict is Verdict.HELD:
            if file.size:
                self._sent.held_back.append(HeldBack(name, file.size))
            return
        if file.verdict is Verdict.WAIT or state is None or entry is None:
            self._sent.waiting.append(name)
            return
        point = state.resume_point
        if file.verdict is Verdict.COPY and state.name != name:
            self._sent.copies.append(Copy(name, state.name))
        else:
            self._sent.skipped.append(name)
        if entry.outcome == file.identity and state.held_back:
            self._sent.held_back.append(HeldBack(name, state.held_back))
        if point is None or entry.outcome == file.identity or not self._may_rename(file, entry):
            return
        held_back = 0
        if file.verdict is Verdict.KNOWN and not self._recogniser.is_packed(file):
            held_back = file.size - point.offset
        if held_back:
            self._sent.held_back.append(HeldBack(name, held_back))
        known = replace(point, inode=file.inode)
        new_state = msgspec.structs.replace(
            state, path=file.path, target=file.target, resume_point=known, held_back=held_back
        )
        call = self._channel.rename_entry(entry, encode_state(new_state), file.identity, self._recogniser.names(file))
        # If another process has sent more of it meanwhile, that process has noted the name.
        self._sent.forgotten += yield default_on(b"TAKEN GONE", call, 0)

    def _may_rename(self, file: PendingFile, entry: SourceEntry) -> bool:
        """Whether the entry may get the names of this file: not if it is a copy of a file that still exists."""
        return file.verdict is not Verdict.COPY or not self._recogniser.is_of_another(entry, file)

    def _send_each(self, files: Sequence[PendingFile]) -> Operation[None]:
        left = deque(files)
        while left:
            if left[0].is_resumed:
                yield from self._resume(left.popleft())
                continue
            begun: list[Upload] = []  # filled by the thread: a cancellation drops what that returns
            try:
                yield RunInThread(partial(self._begin_some, left, begun))
                whole = [upload for upload in begun if upload.is_small_and_whole]
                if whole:
                    yield from self._put_when_space([upload.take_piece() for upload in whole], whole[-1])
                    for upload in whole:
                        self._note_sent(upload)
                for upload in begun[len(whole) :]:  # at most one
                    yield from self._transfer(upload)
            finally:
                for upload in begun:
                    upload.reader.close()

    def _resume(self, file: PendingFile) -> Operation[None]:
        """Continue the upload that another process began."""
        assert file.entry is not None
        file.entry = yield from self._take_over(file, file.entry)
        file.state = decode_state(file.entry.state)
        begun: list[Upload] = []  # as in `_send_each`
        try:
            try:
                yield RunInThread(lambda: begun.append(Upload(self._rules, self._recogniser, file)))
            except FilesError as error:
                yield from self._put_when_space([abort_piece(self._rules, file.entry, str(error))])
                self._failed.append(error)
                return
            yield from self._transfer(begun[0])
        finally:
            for upload in begun:
                upload.reader.close()

    def _begin_some(self, left: deque[PendingFile], begun: list[Upload]) -> None:
        """Begin the next uploads: of as many small files as fit into one round trip, or of one file."""
        size = 0
        while left and len(begun) < BATCH_FILES and size < BATCH_BYTES:
            if left[0].is_resumed or (begun and left[0].size > SMALL_FILE):
                break
            file = left.popleft()
            try:
                upload = Upload(self._rules, self._recogniser, file)
                upload.read_batch()
            except FilesError as error:
                self._note_unreadable(file, error)
                continue
            begun.append(upload)
            size += upload.batch_bytes
            if not upload.is_small_and_whole:
                break
            upload.reader.close()

    def _note_unreadable(self, file: PendingFile, error: FilesError) -> None:
        self._bytes_read += file.size
        if file.source.opened is None and inode_at(file.source.path) != file.inode:
            self._sent.waiting.append(file.source.name)  # it was rotated just now: the next send finds it
        else:
            self._failed.append(error)

    def _transfer(self, upload: Upload) -> Operation[None]:
        try:
            yield RunInThread(upload.read_batch)
            while not upload.ended:
                yield from self._put_when_space([upload.take_piece()], upload, upload.read_batch)
            yield from self._put_when_space([upload.take_piece()], upload)
        finally:
            upload.reader.close()
        self._note_sent(upload)

    def _note_sent(self, upload: Upload) -> None:
        self._bytes_read += upload.pending.size
        if upload.failure is not None:
            self._failed.append(upload.failure)
            return
        self._sent.files.append(upload.result())
        if held_back := upload.reader.held_back:
            self._sent.held_back.append(HeldBack(upload.name, held_back))

    def _put_when_space(
        self, pieces: Sequence[UploadPiece], upload: Upload | None = None, meanwhile: Callable[[], None] | None = None
    ) -> Operation[None]:
        """Put the pieces, and wait for space if the channel is full. `upload`: the last one, for the progress.
        `meanwhile`: what to do while the first call is under way, such as to read and hash the next blocks."""
        records = [record for piece in pieces for record in piece.records]
        report = self._report_to and upload and partial(self._report, upload, upload.reader.bytes_read)
        put = self._channel.put(self._token, pieces)
        put = put.then(report) if report else put
        if meanwhile is None:
            reply = yield put
        else:
            sent = yield Send(put)
            yield RunInThread(meanwhile)
            reply = yield Receive(sent)
        while reply.full:
            yield from ask_until(
                lambda reply: not reply.full,
                partial(self._channel.await_space, records),
                self._channel,
                None,
                own_address=True,
                due=lambda reply: reply.due_in,
                interval=self._channel.settings.sleep,
            )
            reply = yield put
        self._sent.forgotten += reply.forgotten

    def _report(self, upload: Upload, done: int, reply: PutReply) -> PutReply:
        """Report the progress; `done`: bytes of the file that were read for this call and those before."""
        assert self._report_to is not None
        self._report_to(
            Progress(
                upload.name,
                done,
                upload.reader.size,
                self._bytes_read + done,
                self._total,
                reply.bytes,
                reply.slowest,
                reply.full,
            )
        )
        return reply


@dataclass(slots=True)
class _Look:
    """A file, and for each of its names the entries that it leads to. `failed`: the file cannot be sent."""

    file: PendingFile
    entries: list[list[SourceEntry]]
    failed: bool = False
