"""Recognises files that were sent before by their content, whatever they are called now, without a server.

A channel remembers in an entry how much of a file was sent, with the digest of the file's first bytes and of everything
up to that point. A file *continues* an entry if its own content begins with exactly these bytes. So a log is recognised
after it was renamed, copied, packed, or moved to another disk.

Below 4 KiB content alone does not decide, because short logs may be equal: the inode must agree as well, or the folder
and the name without its rotation suffix. The same holds for all files that are sent as bytes: two equal photos with
different names are two files.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import SourceEntry
from penstock.files.marks import Mark, with_mark
from penstock.files.regular_file import identity_of, inode_at, inode_of, reason_of
from penstock.files.rotation import is_rotated, log_path, unpacked_path
from penstock.files.source import Source
from penstock.files.source_reader import CURRENT_SIZE, Continuation, ResumePoint, SourceReader

ALIKE_SIZE = 4096
"""First bytes by which a file is looked for. A shorter file is recognised only together with its inode or its name."""


class UploadState(msgspec.Struct, frozen=True):
    """The progress of an upload, as the server stores it.

    name            by which receivers know the file
    path            of the file when it was sent
    target          where that path led through links, or "" if it had none
    resume_point    where the next block begins, and the content before it; None before the first block
    digest          of all blocks of this upload so far
    begins_in_line  the next block begins in the middle of a line that is longer than a block
    held_back       bytes of an unfinished line at the end, which were not sent
    marks           ends of the uploads before this one, in their order
    """

    name: str
    path: str
    resume_point: ResumePoint | None
    digest: bytes
    begins_in_line: bool = False
    held_back: int = 0
    marks: tuple[Mark, ...] = ()
    target: str = ""

    @property
    def log_paths(self) -> set[str]:
        """The path of the log that was sent, and where it led."""
        return {log_path(path) for path in (self.path, self.target) if path}


decode_state = msgspec.json.Decoder(UploadState).decode


def encode_state(state: UploadState) -> str:
    return msgspec.json.encode(state).decode()


@dataclass(frozen=True, slots=True)
class SendRules:
    """The rules by which one `send` decides whether a file is known, and whether it is finished.

    source   the host that has the files
    lines    lines are sent, not exact bytes
    again    files that were sent before are sent once more
    by_path  a file is known by its path alone, and not by its content
    follow   the files are looked at again and again, so that an empty log is not sent before it has a line
    settle   seconds after which a renamed file that nobody has written to is finished
    final    every file is finished: text after its last line end is a line, too
    """

    source: str
    lines: bool
    again: bool = False
    by_path: bool = False
    settle: float = 60.0
    final: bool = True
    follow: bool = False


class Verdict(enum.Enum):
    """How a `send` treats a file."""

    SEND = enum.auto()
    """It is new, or has more than was sent."""
    KNOWN = enum.auto()
    """It was sent, and has nothing new that could be sent."""
    COPY = enum.auto()
    """Another file with the same content was sent."""
    HELD = enum.auto()
    """It is new, and contains only an unfinished line."""
    WAIT = enum.auto()
    """It is a copy of a known file, and is still being written."""
    LATER = enum.auto()
    """It may be a copy of a file that is about to be sent: decide once that file has been sent."""


@dataclass(slots=True)
class PendingFile:
    """A file that is to be sent, unless it is known.

    path      absolute
    target    where the path leads through links, or "" if it has none
    identity  changes with the content of the file
    modified  when it was last written, in seconds since 1970
    appeared  when it was last written, renamed or made; a copy may have the `modified` of its original
    alike     digest of the first 4 KiB, "" if it has less
    known     id of the entry that the first of its names leads to, or ""
    entry     the entry that the file continues, or None; and
    state     its state
    """

    source: Source
    path: str
    target: str
    size: int
    inode: str
    identity: str
    modified: float
    appeared: float
    alike: str = ""
    known: str = ""
    entry: SourceEntry | None = None
    state: UploadState | None = None
    verdict: Verdict = Verdict.SEND

    @property
    def is_resumed(self) -> bool:
        """Whether another process has begun the upload that is to be continued."""
        return self.entry is not None and not self.entry.outcome

    @property
    def start(self) -> ResumePoint | None:
        """Where to continue in this file; None for its beginning."""
        point = self.state.resume_point if self.state else None
        if point is None or (self.is_resumed and point.inode == self.inode):
            return point
        return replace(point, inode=self.inode, file_size=CURRENT_SIZE)

    @property
    def was_renamed(self) -> bool:
        """Whether it continues a file that had another path when it was sent."""
        return self.state is not None and self.state.path != self.path

    @property
    def is_packed_copy(self) -> bool:
        """Whether the file has the name of a packed copy, and the original is still in the same folder."""
        original = unpacked_path(self.path)
        return original != self.path and os.path.exists(original)


def pending_file(source: Source) -> PendingFile:
    """Raises FilesError if the file is gone."""
    try:
        status = os.stat(source.path) if source.opened is None else os.fstat(source.opened)
    except OSError as error:
        raise FilesError(f"{source.path} cannot be read: {reason_of(error)}") from error
    path, target = _text(os.path.abspath(source.path)), _text(os.path.realpath(source.path))
    target = "" if target == path else target
    size = status.st_size
    appeared = max(status.st_mtime, status.st_ctime)
    return PendingFile(
        source, path, target, size, inode_of(status), identity_of(status, size), status.st_mtime, appeared
    )


def _text(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


class Recogniser:
    """Finds out for the files of one `send` which entries they continue. Its methods read files."""

    def __init__(self, rules: SendRules, outdated: Container[tuple[str, str]] = ()) -> None:
        """`outdated`: inodes, each with the id of an entry that its file does not continue any more."""
        self._rules = rules
        self._outdated = outdated
        self._kind = f"{'lines' if rules.lines else 'bytes'}:{rules.source}:"
        self._continued: dict[str, str] = {}
        """Id of an entry -> inode of the file that continues it."""
        self._new: set[str] = set()
        """First bytes of the new files."""
        self._defers = True

    # --- names that lead to entries ---

    def names(self, file: PendingFile) -> list[str]:
        """All names that lead to the file's entry. The first one belongs to this file alone."""
        path = f"p:{self._kind}{file.path}"
        if self._rules.by_path:
            return [path]
        *_, alike = self.shared_names(file)
        return [f"i:{self._kind}{file.inode}", path, alike]

    def shared_names(self, file: PendingFile) -> list[str]:
        """The names that other files may share. The last one names the first bytes, or for a short file the log."""
        if self._rules.by_path:
            return []
        short = f"n:{self._kind}{log_path(file.path)}"
        return [short, f"h:{self._kind}{file.alike}"] if file.alike else [short]

    def own_names(self, file: PendingFile) -> list[str]:
        """The names that do not depend on the content; also the path that a rotated log had before."""
        names = self.names(file)[:2]
        if not self._rules.by_path and (log := log_path(file.path)) != file.path:
            names.append(f"p:{self._kind}{log}")
        return names

    # --- verdicts ---

    def decide_by_inode(self, file: PendingFile, entries: list[SourceEntry]) -> bool:
        """Decide without reading the file, if its inode leads to an entry and it has not changed since. Raises
        FileDamaged for a file that was sent up to its damage."""
        if entries:
            file.known = entries[0].id
        for entry in entries:
            is_outdated = (file.inode, entry.id) in self._outdated
            if self._rules.again or is_outdated or not entry.outcome.startswith(file.identity):
                continue
            state = decode_state(entry.state)
            if damage := entry.outcome.removeprefix(file.identity):
                raise FileDamaged(damage.lstrip())
            if not (state.held_back and self.is_finished(file, state)):
                self._settle(file, entry, state, Verdict.KNOWN)
                return True
        return False

    def read_first_bytes(self, file: PendingFile) -> None:
        if not self._rules.by_path:
            with self._reader(file) as reader:
                head = reader.first_bytes(ALIKE_SIZE)
            file.alike = sha256(head).hexdigest()[:32] if len(head) == ALIKE_SIZE else ""

    def decide(self, file: PendingFile, entries: Iterable[SourceEntry]) -> None:
        """Decide by the content. `entries`: all entries that the names of the file lead to."""
        found = {
            entry.id: (entry, decode_state(entry.state))
            for entry in entries
            if not (entry.outcome and self._rules.again) and (file.inode, entry.id) not in self._outdated
        }
        latest_first = sorted(found.values(), key=lambda one: _offset(one[1]), reverse=True)
        with self._reader(file) as reader:
            for entry, state in latest_first:
                how = self._continues(file, reader, entry, state)
                if how is not Continuation.NO and self._is_being_packed(file, reader):
                    file.verdict = Verdict.WAIT
                    return
                if how is not Continuation.NO:
                    self._continue(file, entry, state, how)
                    return
            for entry, state in latest_first:
                if self._is_older_copy(file, reader, state):
                    self._settle(file, entry, state, Verdict.COPY)
                    return
            if self._is_being_copied(file, reader, [state for _, state in latest_first]):
                file.verdict = Verdict.WAIT
            elif self._defers and self._rules.lines and (file.alike in self._new or file.is_packed_copy):
                file.verdict = Verdict.LATER
            else:
                self._new |= {file.alike} - {""}
                empty = next((one for one in found.values() if one[0].id == file.known and not _offset(one[1])), None)
                if empty and empty[0].outcome:  # the file was sent when it was empty
                    file.entry, file.state = empty
                if (file.size or self._rules.follow) and not self._has_whole_lines(file, file.entry, file.state):
                    file.verdict = Verdict.HELD

    def look_again(self) -> None:
        """All new files were sent: decide now about files that may be copies of them."""
        self._defers = False
        self._new.clear()

    def is_continued(self, entry: SourceEntry) -> bool:
        """Whether one of the files continues this entry."""
        return entry.id in self._continued

    def is_of_another(self, entry: SourceEntry, file: PendingFile) -> bool:
        """Whether another file continues this entry."""
        return self._continued.get(entry.id, file.inode) != file.inode

    def is_packed(self, file: PendingFile) -> bool:
        with self._reader(file) as reader:
            return reader.packed

    def is_finished(self, file: PendingFile, state: UploadState | None) -> bool:
        """Whether the file is finished, so that a last line without a line end is a line."""
        if self._rules.final:
            return True
        if unpacked_path(file.path) != file.path:
            # While a log is followed, its original is still open, and a program may write the rest of a line to it.
            return not (self._rules.follow and self._is_new_copy(file))
        has_lost_its_name = file.source.opened is not None
        is_renamed = has_lost_its_name or (state is not None and state.path != file.path) or is_rotated(file.path)
        return is_renamed and not self._is_young(file)

    def _is_young(self, file: PendingFile) -> bool:
        return time.time() - file.modified < self._rules.settle

    def _is_new_copy(self, file: PendingFile) -> bool:
        return time.time() - file.appeared < self._rules.settle

    def _reader(self, file: PendingFile, **more: object) -> SourceReader:
        return SourceReader(file.source, lines=self._rules.lines, **more)  # type: ignore[arg-type]

    def _continues(
        self, file: PendingFile, reader: SourceReader, entry: SourceEntry, state: UploadState
    ) -> Continuation:
        point = state.resume_point
        if point is None or not self._may_continue(file, entry, state, point):
            return Continuation.NO
        how = reader.continues(point, trust_inode=True)
        is_whole = how is Continuation.TO_THE_END and point.offset == file.size
        if not self._rules.lines and entry.outcome and not is_whole:
            return Continuation.NO  # a file of bytes is sent as a whole
        return how

    def _may_continue(self, file: PendingFile, entry: SourceEntry, state: UploadState, point: ResumePoint) -> bool:
        """Whether the file may be that of the entry, if the content agrees."""
        if self._rules.by_path:
            return state.path == file.path
        if entry.id == file.known:
            return True
        if file.known and point.inode == file.inode:
            return False  # since that entry, the file was truncated, and sent under the entry that its inode leads to
        if log_path(file.path) not in state.log_paths:
            # Two equal files of bytes are two files; of two equal logs, one is a copy.
            return self._rules.lines and point.head_size >= ALIKE_SIZE
        if point.head_size >= ALIKE_SIZE or file.source.opened is not None:
            return True  # an open log was sent by this process, so one of the entries is its own
        # Two short logs may be equal. If the file of the entry still exists, this is another file, unless it was
        # made from that file just now.
        is_packed_copy = file.is_packed_copy and unpacked_path(file.path) == state.path
        return is_packed_copy or not (entry.id in self._continued or self._is_there(state, point))

    def _is_there(self, state: UploadState, point: ResumePoint) -> bool:
        """Whether the file that was sent is still at its path, with the content that was sent."""
        path = Path(state.path)
        if inode_at(path) != point.inode:
            return False
        try:
            with SourceReader(Source(path, ""), lines=self._rules.lines) as reader:
                return reader.continues(point, trust_inode=True) is not Continuation.NO
        except FilesError:
            return False

    def _continue(self, file: PendingFile, entry: SourceEntry, state: UploadState, how: Continuation) -> None:
        has_more = how is Continuation.WITH_MORE
        is_copy = self._continued.setdefault(entry.id, file.inode) != file.inode
        if is_copy and (self._defers or not has_more):
            self._settle(file, entry, state, Verdict.LATER if has_more else Verdict.COPY)
        elif not entry.outcome or (has_more and self._has_whole_lines(file, entry, state)):
            self._settle(file, entry, state, Verdict.SEND)
        else:
            point = state.resume_point
            is_same = point is not None and point.inode == file.inode
            self._settle(file, entry, state, Verdict.KNOWN if is_same else Verdict.COPY)

    def _is_being_packed(self, file: PendingFile, reader: SourceReader) -> bool:
        is_settled = self._rules.final or self._rules.again or not self._is_new_copy(file)
        return self._rules.lines and reader.packed and not is_settled and not reader.is_sound()

    def _has_whole_lines(self, file: PendingFile, entry: SourceEntry | None, state: UploadState | None) -> bool:
        """Whether there is something to send behind the resume point: more than an unfinished line."""
        if not self._rules.lines or self.is_finished(file, state):
            return True
        file.entry, file.state = entry, state
        with self._reader(file, start=file.start, hold_back=True) as reader:
            return reader.has_whole_line(_offset(state) if state else 0)

    def _settle(self, file: PendingFile, entry: SourceEntry, state: UploadState, verdict: Verdict) -> None:
        file.entry, file.state, file.verdict = entry, state, verdict
        if verdict is not Verdict.COPY:
            self._continued.setdefault(entry.id, file.inode)

    def _is_older_copy(self, file: PendingFile, reader: SourceReader, state: UploadState) -> bool:
        """Whether this is a copy of a log that a rotation made, and adds no lines to those that were sent."""
        point = state.resume_point
        if point is None or not self._rules.lines or self._rules.by_path or self._rules.again:
            return False
        log = log_path(file.path)
        if state.path == file.path or log_path(state.path) != log or log == unpacked_path(file.path):
            return False
        return reader.begins_as(with_mark(state.marks, point.mark)) and not reader.has_bytes_at(point.offset)

    def _is_being_copied(self, file: PendingFile, reader: SourceReader, states: list[UploadState]) -> bool:
        """Whether a rotation seems to write this copy of a known log at the moment: it was modified a short time ago,
        the log is still at its path, and the copy is shorter than the sent text of the log or begins with that text."""
        if self._rules.final or self._rules.again or not self._rules.lines or not self._is_new_copy(file):
            return False
        if file.is_packed_copy or reader.packed:
            is_rotated_log = log_path(file.path) != unpacked_path(file.path)
            is_alike = any(_offset(state) >= ALIKE_SIZE and file.alike for state in states)
            return (file.is_packed_copy or is_rotated_log or is_alike) and self._is_being_packed(file, reader)
        return any(
            point.inode != file.inode
            and state.path == log_path(file.path) != file.path
            and inode_at(Path(state.path)) == point.inode
            and (file.size < point.offset or reader.continues(point, trust_inode=False) is not Continuation.NO)
            for state in states
            if (point := state.resume_point) is not None
        )


def _offset(state: UploadState) -> int:
    return state.resume_point.offset if state.resume_point else 0


def find_renamed(rules: SendRules, file: PendingFile, entry: SourceEntry, state: UploadState) -> PendingFile | None:
    """The file of an entry that had the path of this file, under the name that it has now. It is searched for in the
    folder of the path and, if the path is a link, in those of the targets that the link has now and had then."""
    point = state.resume_point
    if point is None:
        return None
    here = file.source.path.parent
    folders = dict.fromkeys([here, *(Path(one).parent for one in (file.target, state.target) if one)])
    paths = [path for folder in folders for path in _files_in(folder) if inode_at(path) != file.inode]
    by_inode = [path for path in paths if inode_at(path) == point.inode]
    logs = {log_path(one) for one in (file.path, file.target, state.target) if one}
    by_name = [] if rules.by_path else [path for path in paths if log_path(os.path.abspath(path)) in logs]
    for path in [*by_inode, *by_name]:
        name = path.name if path.parent == here else _name_behind_link(file, path, state)
        *parents, _ = file.source.name.split("/")
        try:
            found = pending_file(Source(path, "/".join([*parents, name])))
            with SourceReader(found.source, lines=rules.lines) as reader:
                how = reader.continues(point, trust_inode=True)
        except FilesError:
            continue
        if how is not Continuation.NO:
            found.known = entry.id if found.inode == point.inode else ""
            return found
    return None


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # the target of a link may be gone
        return []


def _name_behind_link(file: PendingFile, path: Path, state: UploadState) -> str:
    """A name for a log that was rotated behind a link: that of the link, followed by the suffix that the rotation
    added to the name of its target. Many links may lead to files of the same name."""
    link = file.source.path.name
    targets = [os.path.basename(one) for one in (file.target, state.target) if one]
    added = next((path.name.removeprefix(one) for one in targets if path.name.startswith(one)), "")
    return link + (added or f".{path.name}")
