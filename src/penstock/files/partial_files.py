"""Keeps files on the local disk while they are received, until they are whole and their last record is settled."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import BinaryIO

from penstock.errors import FileDamaged, FilesError
from penstock.files.bindings import ChannelBindings
from penstock.files.download import Download
from penstock.files.records import BlockHeader
from penstock.files.source import HIDDEN_PREFIX

_MAX_OPEN = 16

_DEAD = ".dead"
"""The suffix of whole files that could not get their own name."""


def folder_of_receiver(channel: ChannelBindings, receiver: str) -> str:
    """The name of a folder that no other receiver of any channel uses."""
    digest = hashlib.sha256(f"{channel.keys.base}{receiver}".encode()).hexdigest()
    return f"{HIDDEN_PREFIX}{receiver}-{digest[:8]}"


def temporary_folder() -> Path:
    """A folder that only this user can read, and that the next process on this host finds again."""
    ours = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)
    if ours.is_symlink() or ours.stat().st_uid != os.getuid():
        raise FilesError(f"{ours} belongs to another user: choose another folder with spool=")
    return ours


@cache
def boot_id() -> str:
    """Identifies the current boot of this host. A partial file of an earlier boot is not resumed, because bytes of it
    may be missing after a power loss. Linux has such an id; on other systems this is constant."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "any"


class PartialFiles:
    """The partial files of one receiver, in a folder that exists only while there are some.

    A file is identified by the id of its upload, so that it is found again after a crash.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._to_remove: list[tuple[int, str]] = []

    def path_of(self, upload_id: str) -> Path:
        return self.folder / f"{upload_id}.{boot_id()}.part"

    def write(self, upload_id: str, header: BlockHeader, data: bytes | memoryview) -> None:
        out = self._open.get(upload_id)
        if out is None:
            if len(self._open) >= _MAX_OPEN:
                self._close(next(iter(self._open)))
            out = self._open[upload_id] = self._open_at(upload_id, header)
        out.seek(header.offset)
        out.write(data)
        out.flush()

    def _open_at(self, upload_id: str, header: BlockHeader) -> BinaryIO:
        """Open the partial file to write this block. A block that is received twice is written twice, at its offset."""
        path = self.path_of(upload_id)
        if header.offset == 0:
            return self._create(path)
        with contextlib.suppress(FileNotFoundError):
            out = path.open("r+b")
            if out.seek(0, os.SEEK_END) >= header.offset:
                return out
            out.close()
        raise FileDamaged(
            f"{header.name}: its first {header.offset:,} bytes are not in {self.folder}. They were received elsewhere, "
            "or before this host was started: receive it there, or send it again"
        )

    def _create(self, path: Path) -> BinaryIO:
        """Open a partial file for its first block. An existing one is not truncated: it may have its name already."""
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        return os.fdopen(opened, "r+b")

    def begin_with(self, path: Path, upload_id: str) -> None:
        """Begin a partial file with a copy of the file at this path."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(path, self.path_of(upload_id))

    def open(self, upload_id: str, download: Download) -> BinaryIO:
        """Open the received beginning of a file, without bytes that an earlier process may have written beyond it."""
        opened = self._open.pop(upload_id, None)
        try:
            if opened is None:
                opened = self.path_of(upload_id).open("r+b")
        except FileNotFoundError:
            if download.offset:
                raise FileDamaged(
                    f"{download.name}: the bytes received so far are not in {self.folder}. They were received "
                    "elsewhere, or before this host was started: receive it there, or send it anew"
                ) from None
            opened = self._create(self.path_of(upload_id))
        if opened.seek(0, os.SEEK_END) > download.offset:
            opened.truncate(download.offset)
        opened.seek(0)
        return opened

    def publish(self, upload_id: str, path: Path) -> None:
        """Put the whole file at this path atomically. The partial file stays: if this process dies before the file's
        last record is settled, the next one receives the last blocks again and writes them there."""
        whole = self.path_of(upload_id).with_suffix(".whole")
        whole.unlink(missing_ok=True)
        os.link(self.path_of(upload_id), whole)
        try:
            _replace(whole, path)
        except OSError:
            whole.unlink()
            raise

    def move(self, upload_id: str, path: Path) -> None:
        """Like `publish`, but leaves no partial file behind. For a file whose blocks the next process would all receive
        again."""
        _replace(self.path_of(upload_id), path)

    def discard(self, upload_id: str) -> int:
        """Remove a partial file, which cannot become whole on this disk. Returns how many bytes it had."""
        self._close(upload_id)
        path = self.path_of(upload_id)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    # --- dead files ---

    def _path_of_dead(self, upload_id: str) -> Path:
        return self.folder / f"{upload_id}{_DEAD}"

    def keep(self, upload_id: str) -> Path:
        """Keep a whole file that could not get its name, even after its last record is settled. Returns its path."""
        kept = self._path_of_dead(upload_id)
        with contextlib.suppress(FileExistsError):
            os.link(self.path_of(upload_id), kept)
        return kept

    def restore(self, upload_id: str) -> None:
        """Turn a file that was kept into a partial file again, to give it its name."""
        with contextlib.suppress(FileExistsError):
            os.link(self._path_of_dead(upload_id), self.path_of(upload_id))

    def kept(self) -> list[str]:
        """The ids of the uploads whose files are kept."""
        return [path.name.removesuffix(_DEAD) for path in self.folder.glob(f"*{_DEAD}")]

    def remove_kept(self, upload_id: str) -> None:
        self._path_of_dead(upload_id).unlink(missing_ok=True)
        self._remove_empty_folder()

    def remove_later(self, number: int, upload_id: str) -> None:
        """Remove a partial file as soon as record `number` is settled. Until then it is needed: if this process dies,
        the next one receives the last blocks again."""
        self._to_remove.append((number, upload_id))

    def settled(self, number: int) -> None:
        """Everything up to this record is settled: remove the files that waited for it."""
        while self._to_remove and self._to_remove[0][0] <= number:
            upload_id = self._to_remove.pop(0)[1]
            self._close(upload_id)
            self.path_of(upload_id).unlink(missing_ok=True)
        self._remove_empty_folder()

    def remove_others(self, keep: Iterable[str]) -> None:
        """Remove partial files that a dead process has left, except for these."""
        self._to_remove.clear()
        self.close()
        if self.folder.is_symlink():
            raise FilesError(f"{self.folder} is a symbolic link, which Penstock did not make: remove it")
        kept = {self.path_of(upload_id).name for upload_id in keep}
        for found in self.folder.glob("*"):
            if found.name not in kept and not found.name.endswith(_DEAD):
                found.unlink(missing_ok=True)
        self._remove_empty_folder()

    def _remove_empty_folder(self) -> None:
        with contextlib.suppress(OSError):  # it is not empty, or was never made
            self.folder.rmdir()

    def close(self) -> None:
        for upload_id in [*self._open]:
            self._close(upload_id)

    __del__ = close
    """Closes its files if the caller abandons the loop."""

    def _close(self, upload_id: str) -> None:
        if (out := self._open.pop(upload_id, None)) is not None:
            out.close()


def _replace(file: Path, path: Path) -> None:
    """Put a file at this path, in a folder that is made if it is missing."""
    try:
        os.replace(file, path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, path)
