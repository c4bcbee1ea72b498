"""Sends files to a channel: finds out what is left to send, and keeps the window full.

For each file it notes in the server how far it is, in the step that puts a lot of blocks there. Whoever is started
again after a crash goes on behind the last of them; the one that was thought dead and is not is refused from then on.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import msgspec

from penstock.core.ids import mint_id, mint_token
from penstock.core.operations import Operation, RoundTrip, RunInThread
from penstock.errors import ChannelError, FileChanged, FileDamaged, FilesError, SentElsewhere
from penstock.files.bindings import KNOWN_AT_ONCE, ChannelBindings, Entry, Put
from penstock.files.blocks import ABORT, BEGIN, DATA, END, START, Ending, Header, Manifest, pack, pack_block
from penstock.files.source import Block, Mark, Reading, Source, chain, identity_of, place_of
from penstock.messages.bindings import default_on
from penstock.messages.log import ask_until

LOT = 4
"""Blocks in one round trip: a megabyte."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a `send` is, told after each lot and while it waits for space.

    name, done, size  the file, bytes of it that were read, and its size; of gzip the packed ones
    sent, total       bytes of all files that were to be sent
    held, slowest     bytes in the channel that some receiver has not had, and the receiver that is furthest behind
    waiting           there is no space: the slowest decides
    """

    name: str
    done: int
    size: int
    sent: int
    total: int
    held: int
    slowest: str
    waiting: bool


@dataclass(frozen=True, slots=True)
class SentFile:
    """`resumed`: an earlier `send` had begun it. `lines`: of a file that was sent as lines."""

    name: str
    size: int
    lines: int
    digest: str
    resumed: bool


@dataclass(slots=True)
class Sent:
    """What a `send` did. `skipped`: names of files that were sent before, unchanged since."""

    files: list[SentFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


class Noted(msgspec.Struct, frozen=True):
    """How far a file is, as it is kept in the server. `digest`: of all blocks so far; `inside`: the next one begins in
    the middle of a line that is longer than a block."""

    name: str
    mark: Mark | None
    digest: bytes
    inside: bool = False


@dataclass(slots=True)
class Job:
    """A file that is to be sent. `key`: it on its way is known by its path; `place`: when it was sent, by host, device
    and inode, so that a log is known after it was renamed. `begun`, `sent`: what is known."""

    source: Source
    key: str
    place: str
    size: int
    end: str
    begun: Entry | None = None
    sent: Entry | None = None


class Sender:
    """One call of `send` or `send_lines`. `host`: tells the files of several hosts apart."""

    def __init__(
        self,
        log: ChannelBindings,
        *,
        lines: bool,
        again: bool,
        host: str | None,
        tell: Callable[[Progress], object] | None,
    ) -> None:
        self.log = log
        self.lines = lines
        self.again = again
        self.host = host or socket.gethostname()
        self.token = mint_token()
        self._tell = tell
        self._sent = Sent()
        self._read = self._total = 0
        self._renamed = set[str]()
        self._failed: list[FilesError] = []

    def run(
        self, given: Sequence[Source], receivers: Sequence[str], limit: int | None, patience: float | None, close: bool
    ) -> Operation[Sent]:
        jobs = yield from self._left_to_send(given)
        if jobs or not (yield from self._is_closed()):
            yield self.log.open(receivers, limit, patience)
        self._total = sum(job.size for job in jobs)
        for job in jobs:
            try:
                yield from self._send(job)
            except ChannelError:
                raise
            except FilesError as error:
                self._failed.append(error)
            self._read += job.size
        if close:
            yield self.log.close()
            self._sent.closed = True
        if self._failed:
            faults = "; ".join(map(str, self._failed))
            raise FilesError(f"{len(self._failed)} of {len(given)} files were not sent whole: {faults}")
        return self._sent

    def _is_closed(self) -> Operation[bool]:
        info = yield default_on(b"GONE", self.log.info(), None)
        return info is not None and info.closed

    # --- what is left to send ---

    def _left_to_send(self, given: Sequence[Source]) -> Operation[list[Job]]:
        jobs: list[Job] = yield RunInThread(lambda: [self._job(source) for source in given])
        left = []
        for at in range(0, len(jobs), KNOWN_AT_ONCE):
            page = jobs[at : at + KNOWN_AT_ONCE]
            keys = [job.key for job in page] + [job.place for job in page]
            entries = yield default_on(b"GONE", self.log.known(keys), [None] * len(keys))
            for job, begun, sent in zip(page, entries[: len(page)], entries[len(page) :], strict=True):
                job.begun, job.sent = begun, sent
                end = sent.end if begun is None and sent is not None and not self.again else ""
                if end == job.end:
                    self._sent.skipped.append(job.source.name)
                elif end.startswith(f"{job.end} "):
                    self._failed.append(FileDamaged(end.removeprefix(f"{job.end} ")))
                else:
                    left.append(job)
        # What was begun first: it may have been renamed since, and be given under its new name as well.
        return sorted(left, key=lambda job: job.begun is None)

    def _job(self, source: Source) -> Job:
        try:
            stat = os.stat(source.path)
        except OSError as error:
            raise FilesError(f"{source.path} cannot be read: {error.strerror}") from error
        kind = "lines" if self.lines else "bytes"
        path = os.fsencode(os.path.abspath(source.path)).decode(errors="backslashreplace")
        key = f"{kind}:{self.host}:{path}"
        place = f"{kind}:{self.host}:{place_of(stat)}"
        return Job(source, key, place, stat.st_size, identity_of(stat, stat.st_size))

    # --- one file ---

    def _send(self, job: Job) -> Operation[None]:
        if job.begun is not None and (yield from self._went_on(job, job.begun)):
            return
        if job.place in self._renamed:
            self._sent.skipped.append(job.source.name)
            return
        yield from self._carry((yield RunInThread(partial(Course.new, self, job))))

    def _went_on(self, job: Job, begun: Entry) -> Operation[bool]:
        """With what another process began; whether that was all of it. It may have been renamed since, and another file
        stands in its place; or be gone."""
        took = yield default_on(b"TAKEN", self.log.take_source(job.key, begun.file, self.token), None)
        if took is None:
            raise SentElsewhere(f"another process sends {job.source.path} now; this one has stopped")
        try:
            course: Course = yield RunInThread(partial(Course.resumed, self, job, took))
        except FilesError as error:
            lost = [(ABORT, str(error).encode())]
            put = self.log.put(job.key, took.file, self.token, lost, fresh=None, mark="", place=job.place, ending="-")
            yield from self._until_taken(lambda: put, partial(self.log.await_space, lost))
            return False
        try:
            yield from self._carry(course)
        except FileChanged:  # the receivers know; what is there now is another file
            return False
        self._renamed.add(course.place)
        return course.place == job.place

    def _carry(self, course: Course) -> Operation[None]:
        with course.reading:
            ended = False  # what is ready of it may be its end, and must be put all the same
            while not ended:
                yield RunInThread(course.read_on)
                yield from self._put(course)
                if course.failure is not None:
                    raise course.failure
                ended = course.ended
        self._sent.files.append(course.as_sent())

    def _put(self, course: Course) -> Operation[None]:
        yield from self._until_taken(lambda: course.step().then(partial(self._told, course)), course.await_space)
        course.settle()

    def _until_taken(
        self, put: Callable[[], RoundTrip[Put]], await_space: Callable[[str, float], RoundTrip[Put]]
    ) -> Operation[None]:
        while (yield put()).full:
            yield from ask_until(
                lambda answer: not answer.full,
                await_space,
                self.log,
                None,
                due=lambda answer: answer.due,
                interval=self.log.settings.sleep,
            )

    def _told(self, course: Course, answer: Put) -> Put:
        if self._tell is not None:
            done, size = course.reading.read, course.reading.size
            self._tell(
                Progress(
                    course.name, done, size, self._read + done, self._total, answer.bytes, answer.slowest, answer.full
                )
            )
        return answer


class Course:
    """One file on its way. `place`: as in Job, of the file that is read."""

    def __init__(
        self, sender: Sender, job: Job, reading: Reading, file: str, noted: Noted, records: list[tuple[str, bytes]]
    ) -> None:
        self.name = noted.name
        self.reading = reading
        self.place = f"{job.key.split(':')[0]}:{sender.host}:{reading.place}"
        self.ended = False
        self.failure: FilesError | None = None
        self._ready = False
        self._inside = noted.inside
        self._sender = sender
        self._key = job.key
        self._file = file
        self._fresh = (job.sent.raw if job.sent else b"") if records else None
        self._resumed = not records
        self._mark = noted.mark
        self._digest = noted.digest
        self._records = records
        self._blocks = reading.blocks()
        self._ending = ""

    @classmethod
    def new(cls, sender: Sender, job: Job) -> Course:
        """From the start; or where it grew since it was sent as lines, from there."""
        start = job.sent and _noted(job.sent.mark).mark
        if start and sender.lines and not sender.again and start.size < job.size:
            grown = cls._from(sender, job, replace(start, size=job.size))
            grown.read_on()
            if not isinstance(grown.failure, FileChanged):
                return grown
            grown.reading.close()  # another file, on the same inode
        return cls._from(sender, job, None)

    @classmethod
    def _from(cls, sender: Sender, job: Job, start: Mark | None) -> Course:
        reading = Reading(job.source, lines=sender.lines, start=start)
        name, lines = job.source.name, sender.lines
        manifest = Manifest(name, reading.size, lines, lines and reading.packed)
        if start:
            manifest = msgspec.structs.replace(
                manifest, offset=start.offset, line=start.lines, length=start.length, last=start.last
            )
        return cls(sender, job, reading, mint_id(), Noted(name, start, START), [(BEGIN, pack(manifest))])

    @classmethod
    def resumed(cls, sender: Sender, job: Job, entry: Entry) -> Course:
        noted = _noted(entry.mark)
        reading = Reading(job.source, lines=sender.lines, start=noted.mark)
        return cls(sender, job, reading, entry.file, noted, [])

    @property
    def done(self) -> int:
        return self._mark.offset if self._mark else 0

    def read_on(self) -> None:
        """Make the next lot of blocks ready. What stops it other than the end of the file is `failure`."""
        if self._ready:
            return
        self._ready = True
        wanted = LOT
        try:
            for block in islice(self._blocks, LOT):
                self._add(block)
                wanted -= 1
        except FilesError as error:
            self.failure = error
            # The same damage is not sent twice, as long as the file is the same.
            known = f"{self.reading.identity} {error}" if isinstance(error, FileDamaged) else "-"
            self._end(ABORT, str(error).encode(), known)
            return
        if wanted:
            lines = self._mark.lines if self._mark else 0
            self._end(END, pack(Ending(self.done, lines, self._digest)), self.reading.identity)

    def _end(self, kind: str, body: bytes, ending: str) -> None:
        self._records.append((kind, body))
        self.ended, self._ending = True, ending

    def _add(self, block: Block) -> None:
        own = hashlib.sha256(block.data).digest()
        self._digest = chain(self._digest, own)
        packed = self._sender.lines and self.reading.packed
        head = Header(self.name, block.offset, block.first_line - 1, self._inside, packed, own, block.more)
        self._inside = block.more
        self._records.append((DATA, pack_block(head, block.data)))
        self._mark = self.reading.mark(block, own)

    def await_space(self, address: str, stay: float) -> RoundTrip[Put]:
        return self._sender.log.await_space(self._records, address, stay)

    def step(self) -> RoundTrip[Put]:
        noted = msgspec.json.encode(Noted(self.name, self._mark, self._digest, self._inside)).decode()
        return self._sender.log.put(
            self._key, self._file, self._sender.token, self._records,
            fresh=self._fresh, mark=noted, place=self.place, ending=self._ending,
        )  # fmt: skip

    def settle(self) -> None:
        """The lot is in the channel."""
        self._records = []
        self._fresh, self._ready = None, False

    def as_sent(self) -> SentFile:
        lines = self._mark.lines if self._mark else 0
        return SentFile(self.name, self.done, lines, self._digest.hex(), self._resumed)


_noted = msgspec.json.Decoder(Noted).decode
