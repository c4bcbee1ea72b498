"""Saves the files of a channel in a folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from penstock.core.operations import Driver, Operation, RunInThread
from penstock.core.renewal import Renewer
from penstock.errors import FileDamaged, FileNotSaved, FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.dead_files import FileFailure
from penstock.files.download import Checkpoint, Download
from penstock.files.earlier_text import begins_with, is_all_of, is_same_log, keep, names_of_kept
from penstock.files.exclusive_stream import ExclusiveStream
from penstock.files.partial_files import PartialFiles, folder_of_receiver
from penstock.files.records import BlockHeader, ChannelRecord, FileBegin
from penstock.files.rotation import unpacked_path
from penstock.files.source import HIDDEN_PREFIX

log = logging.getLogger("penstock")

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_OF_THE_HOST = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
"""Errors that the next file would meet as well: the receiver stops, and later resumes with the same file."""

MOST_FOLDERS = 100
"""The most folders in the name of a file."""


class Saved(NamedTuple):
    """A file that was saved, whole and checked.

    digest           what `file_digest` returns for the file that was sent, if it was sent as bytes
    source           the host that has the file
    replaced_source  "", or the other host whose file had this path until now
    replaced         another file had this path until now: one with other bytes, of the same host or of another
    kept_as          where other text that had this path until now is kept, or None
    """

    path: Path
    name: str
    size: int
    digest: str
    source: str = ""
    replaced_source: str = ""
    replaced: bool = False
    kept_as: Path | None = None


@dataclass(frozen=True, slots=True)
class ReceiveProgress:
    """The progress of a `save`. `done`: bytes of the file that were received; `size`: its size, or 0 for the text of a
    packed file, whose size is not known; `received`: bytes of all files so far."""

    name: str
    source: str
    done: int
    size: int
    received: int


def check_layout(layout: str) -> None:
    try:
        path = layout.format(name="n", source="s")
    except (KeyError, IndexError, ValueError, AttributeError):
        path = ""
    if "n" not in path or path.startswith("/") or "{name}" not in layout:
        raise ValueError(f"layout={layout!r}: a relative path that contains {{name}}, such as '{{source}}/{{name}}'")


class SavingStream(ExclusiveStream[Saved]):
    """Saves each file atomically under its name, once it is whole and checked."""

    def __init__(
        self,
        channel: ChannelBindings,
        driver: Driver,
        renewer: Renewer,
        receiver: str,
        wait: float | None,
        folder: Path,
        *,
        layout: str = "{name}",
        progress: Callable[[ReceiveProgress], object] | None = None,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._report_to = progress
        self._received = 0
        self._whole: deque[_WholeFile] = deque()
        """Files that are whole, and that are written to disk and named together."""
        self._begun: dict[str, int] = {}
        """Number of the first record of each upload that began with the records that were pulled last."""
        self._continued: dict[str, tuple[FileBegin, Path]] = {}
        """For the growth of a log: its first record, and the path of the text of the log that was saved before."""
        self._partial_files = PartialFiles(folder / folder_of_receiver(channel, receiver))
        super().__init__(channel, driver, renewer, receiver, wait)

    def _on_resume(self) -> None:
        for one in self._whole:
            if one.out is not None:
                one.out.close()
        self._whole.clear()
        self._begun.clear()
        self._continued.clear()
        self._partial_files.close()

    def _on_new_owner(self) -> None:
        self._partial_files.remove_others(keep=self._downloads)

    def _retry_dead_files(self) -> Operation[None]:
        kept = yield RunInThread(self._partial_files.kept)
        if not kept:
            return
        found = {dead.id: (dead, failure) for dead, failure in (yield self._channel.list_dead_files(self._receiver))}
        for id in kept:
            dead, failure = found.get(id, (None, None))
            saved = None
            if dead is not None and dead.is_retried and failure.download is not None:
                saved = yield RunInThread(partial(self._save_kept, id, failure.download))
                if saved is None:
                    yield from self._note_failures()
                    continue
                yield self._channel.remove_dead_files(self._receiver, [id])
                self._ready.append((saved, self._reached))
            if dead is None or saved is not None:
                yield RunInThread(partial(self._partial_files.remove_kept, id))

    def _save_kept(self, upload_id: str, download: Download) -> Saved | None:
        """Give a file that was kept its name. Returns None if it cannot have it."""
        try:
            path = self._path(download)
            self._partial_files.restore(upload_id)
            return self._publish(_WholeFile(upload_id, download, path, None, self._reached, is_moved=True))
        except FilesError as error:
            log.warning("%s", error)
            if not self._failures:
                self._failures.append((upload_id, FileFailure(download.name, download.source, f"{error}")))
            return None

    def _on_settled(self, number: int) -> None:
        self._begun.clear()
        self._partial_files.settled(number)

    def _on_begin(self, record: ChannelRecord, begin: FileBegin) -> None:
        """If only the growth of a log is sent, begin with the text of the log that was saved before."""
        upload_id = record.upload_id
        self._begun[upload_id] = record.number
        download = self._downloads[upload_id]
        self._path(download)  # refuses a name that would leave the folder
        if begin.offset:
            paths = [
                path
                for name in dict.fromkeys([begin.name, begin.earlier_name or begin.name])
                for path in self._possible_paths(replace(download, name=name))
            ]
            unnamed = {self._partial_files.path_of(one.upload_id): one.path for one in self._whole if one.path in paths}
            found = next((one for one in (*reversed(unnamed), *paths) if is_same_log(one, begin)), None)
            if found is None:
                raise FileDamaged(
                    f"{begin.name}: its first {begin.offset:,} bytes were sent before, and are not in {paths[0]}"
                )
            try:
                self._partial_files.begin_with(found, upload_id)
            except OSError as error:
                raise self._error_of(error, upload_id, begin.name) from error
            self._continued[upload_id] = begin, unnamed.get(found, found)

    def _error_of(self, error: OSError, upload_id: str, name: str) -> Exception:
        """The error to raise for a partial file that cannot be written. If the disk is full, the partial file is
        removed, and FileNotSaved lets the receiver continue with the next file."""
        freed = self._partial_files.discard(upload_id) if error.errno in _NO_SPACE else 0
        if freed or error.errno == errno.EFBIG:
            return FileNotSaved(f"{name} cannot be saved in {self._folder}: {error.strerror}; have it sent again")
        return error

    def _possible_paths(self, download: Download) -> list[Path]:
        """Where a file of this name may have been saved."""
        path = self._path(download)
        return [path, *([self._path_beside_plain(download)] if download.unpacked else []), *names_of_kept(path)]

    def _on_block(self, record: ChannelRecord, header: BlockHeader, data: bytes | memoryview) -> Iterable[Saved]:
        try:
            self._partial_files.write(record.upload_id, header, data)
        except OSError as error:
            raise self._error_of(error, record.upload_id, header.name) from error
        self._received += len(data)
        if self._report_to is not None:
            download = self._downloads[record.upload_id]
            size = 0 if download.unpacked else download.size
            self._report_to(
                ReceiveProgress(download.name, download.source, header.offset + len(data), size, self._received)
            )
        return ()

    def _on_end(self, record: ChannelRecord, download: Download) -> Iterable[Saved]:
        out = self._partial_files.open(record.upload_id, download)
        # Its three records were pulled together, so that no checkpoint lies between them.
        is_moved = record.number == self._begun.pop(record.upload_id, -1) + 2
        if not is_moved:
            self._partial_files.remove_later(record.number, record.upload_id)
        try:
            with contextlib.suppress(PermissionError):  # not every disk has permissions
                os.fchmod(out.fileno(), download.mode & 0o777)
                if download.modified:
                    os.utime(out.fileno(), ns=(download.modified, download.modified))
            _note_source(out.fileno(), download.source)
            path = self._path(download)
        except BaseException:
            out.close()
            raise
        checkpoint = self._checkpoint(record.number)
        self._whole.append(_WholeFile(record.upload_id, download, path, out, checkpoint, is_moved))
        return ()

    def _unfinished(self) -> int:
        return len(self._whole)

    def _finish_waiting(self) -> Iterator[tuple[Saved | FilesError, Checkpoint]]:
        """Write the files that are whole to disk together, and put each under its name. With small files,
        most of the time would pass in waiting for the disk once for each file."""
        _sync_files([one.out for one in self._whole if one.out is not None and not one.out.closed])
        published: list[tuple[Saved | FilesError, Checkpoint]] = []
        folders: set[Path] = set()
        error: FilesError | None = None
        while self._whole and error is None:
            one = self._whole.popleft()
            try:
                item: Saved | FilesError = self._publish(one)
                folders.add(one.path.parent)
            except FilesError as failure:
                item = error = failure.with_traceback(None)  # which has this frame: the stream would stay alive
            published.append((item, one.checkpoint))
        self._sync_folders(folders)
        yield from published

    def _publish(self, one: _WholeFile) -> Saved:
        path, download = one.path, one.download
        try:
            kept_as = None
            if download.lines:
                path, kept_as = self._path_of_text(one)
            replaced, other_source = self._replaced(path, download)
            (self._partial_files.move if one.is_moved else self._partial_files.publish)(one.upload_id, path)
        except OSError as error:
            if error.errno in _OF_THE_HOST:
                raise
            reason = error.strerror
        else:
            self._remove_old_name(one.upload_id, path)
            digest = download.digest.hex()
            return Saved(path, download.name, download.offset, digest, download.source, other_source, replaced, kept_as)
        if one.is_moved:
            self._partial_files.remove_later(one.checkpoint.number, one.upload_id)
        kept = self._partial_files.keep(one.upload_id)
        why = f"{download.name} cannot be saved as {path}: {reason}; it is kept as {kept}"
        where = f"{socket.gethostname()}:{kept.absolute()}"
        self._failures.append((one.upload_id, FileFailure(download.name, download.source, why, where, download)))
        raise FileNotSaved(why)

    def _remove_old_name(self, upload_id: str, path: Path) -> None:
        """Remove the file with the old name of a log that was renamed."""
        begin, earlier = self._continued.pop(upload_id, (None, path))
        if begin is not None and earlier != path and is_all_of(earlier, begin):
            earlier.unlink()

    def _path_of_text(self, one: _WholeFile) -> tuple[Path, Path | None]:
        """Where to save text, so that it replaces nothing but its own beginning; and the path where other text that
        had this path is kept, or None."""
        text, path = self._partial_files.path_of(one.upload_id), one.path
        begin, _ = self._continued.get(one.upload_id, (None, path))
        if (begin is not None and is_all_of(path, begin)) or begins_with(text, path):
            return path, None
        if one.download.unpacked:
            path = self._path_beside_plain(one.download)
            if begins_with(text, path):
                return path, None
        kept_as = keep(path)
        log.warning(
            "%s of %s is not the log that was saved before: the text that %s had is kept as %s",
            path,
            one.download.source,
            path,
            kept_as,
        )
        return path, kept_as

    def _path_beside_plain(self, download: Download) -> Path:
        """Where the text of a packed file is saved if another log has the name of its text."""
        return self._path(replace(download, name=f"{download.name}.text", unpacked=False))

    def _replaced(self, path: Path, download: Download) -> tuple[bool, str]:
        """Whether another file of bytes has this path, and the other host that it is from, or ""."""
        try:
            status = path.stat()
        except OSError:
            return False, ""
        replaced = not download.lines and (status.st_size, status.st_mtime_ns) != (download.offset, download.modified)
        other = _source_of(path)
        if not replaced or other in {"", download.source}:
            return replaced, ""
        log.warning("%s of %s replaces that of %s: layout='{source}/{name}' keeps both", path, download.source, other)
        return replaced, other

    def _on_dropped(self, number: int, upload_id: str) -> None:
        self._partial_files.remove_later(number, upload_id)

    def _sync_folders(self, folders: set[Path]) -> None:
        """Write these folders to disk, and the folders above them that may be new, so that the names of their files
        survive a power loss."""
        above = {one for folder in folders for one in folder.parents if one.is_relative_to(self._folder)}
        for folder in sorted(folders | above, reverse=True):
            with contextlib.suppress(PermissionError):  # files may be made in a folder that must not be read
                opened = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)

    def _path(self, download: Download) -> Path:
        name = unpacked_path(download.name) if download.unpacked else download.name
        name = self._layout.format(name=name, source=download.source or "unknown")
        parts = name.split("/")
        is_bad = not name or "\0" in name or any(part in {"", ".", ".."} for part in parts)
        if len(parts) > MOST_FOLDERS:
            raise FileDamaged(f"{name[:100]}… cannot be saved: its name has more than {MOST_FOLDERS} folders")
        if is_bad or parts[0].startswith(HIDDEN_PREFIX):
            raise FileDamaged(f"{name!r} cannot be saved: a file of this name would be outside the folder")
        return self._folder.joinpath(*parts)


class _WholeFile(NamedTuple):
    """A file that was received whole.

    path      where it is to be saved
    out       its partial file, if it must be written to disk
    is_moved  whether the partial file is moved to this path, because the next process would receive every block again
    """

    upload_id: str
    download: Download
    path: Path
    out: BinaryIO | None
    checkpoint: Checkpoint
    is_moved: bool


_SYNCED_TOGETHER = 16
"""How many files are written to disk at the same time: the disk then writes most of them together."""


def _sync_files(files: Sequence[BinaryIO]) -> None:
    """Write these files to disk, and close them."""
    try:
        if len(files) > 1:
            # Imported here: it registers hooks for a fork, which fail if the first fork of a program imports it.
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(_SYNCED_TOGETHER, len(files)), "penstock-sync") as threads:
                for _ in threads.map(lambda file: os.fsync(file.fileno()), files):
                    pass  # raises what a thread has raised
        else:
            for file in files:
                os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()


_SOURCE_ATTRIBUTE = "user.penstock.source"


def _note_source(file: int, source: str) -> None:
    """Store the host that the file came from in an attribute of the file, if the system and the disk have them."""
    with contextlib.suppress(OSError, AttributeError):
        os.setxattr(file, _SOURCE_ATTRIBUTE, source.encode())


def _source_of(path: Path) -> str:
    """The host that a saved file came from, or "" if that is not known."""
    try:
        return os.getxattr(path, _SOURCE_ATTRIBUTE).decode()
    except (OSError, AttributeError, UnicodeDecodeError):
        return ""
