"""Files on their way to the disk: what is there of them, until they are whole and the server knows."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import BinaryIO

from penstock.errors import FileDamaged, FilesError
from penstock.files.blocks import Header
from penstock.files.intake import Place

_OPEN = 16


@cache
def boot() -> str:
    """Which start of this host it is: what was written before a power loss need not be there. Only Linux tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "any"


class Folder:
    """Files that are not whole yet, in a folder of their own: made when the first is written, gone with the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, BinaryIO] = {}
        self._leaving: list[tuple[int, str]] = []

    def part(self, file: str) -> Path:
        return self.path / f"{file}.{boot()}.part"

    def write(self, file: str, head: Header, data: bytes) -> None:
        out = self._open.get(file)
        if out is None:
            if len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            out = self._open[file] = self._opened(file, head)
        out.seek(head.offset)
        out.write(data)
        out.flush()

    def _opened(self, file: str, head: Header) -> BinaryIO:
        """Blocks that come again are written once more, in their place."""
        path = self.part(file)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            out = path.open("r+b")
            if out.seek(0, os.SEEK_END) >= head.offset:
                return out
            out.close()
        if head.offset:
            raise FileDamaged(
                f"{head.name}: its first {head.offset:,} bytes are not in {self.path}. They were received elsewhere, "
                "or before this host was started: go on there, or send it again"
            )
        return path.open("w+b")

    def copy(self, path: Path, file: str) -> None:
        """Begin with what is there."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(path, self.part(file))

    def open(self, file: str, place: Place) -> BinaryIO:
        """What was received of it."""
        self._close(file)
        try:
            found = self.part(file).open("r+b")
        except FileNotFoundError:
            if place.offset:
                raise FileDamaged(
                    f"{place.name}: it is not in {self.path}; was it received elsewhere, or before this host started?"
                ) from None
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.part(file).open("w+b")
        found.truncate(place.offset)
        return found

    def publish(self, file: str, path: Path) -> None:
        """In one step; the part stays, for whoever is started before the server knows writes the last blocks again."""
        whole = self.part(file).with_suffix(".whole")
        whole.unlink(missing_ok=True)
        os.link(self.part(file), whole)
        try:
            os.replace(whole, path)
        except OSError:
            whole.unlink()
            raise

    def leave(self, number: int, file: str) -> None:
        """It is needed until the server has noted this number: whoever is started before that asks for it again."""
        self._leaving.append((number, file))

    def settled(self, number: int) -> None:
        while self._leaving and self._leaving[0][0] <= number:
            file = self._leaving.pop(0)[1]
            self._close(file)
            self.part(file).unlink(missing_ok=True)
        self._go()

    def clear(self, keep: Iterable[str]) -> None:
        """Remove what a process left behind that died before it could."""
        self._leaving.clear()
        self.close()
        if self.path.is_symlink():
            raise FilesError(f"{self.path} is a link, and not what was made here: remove it")
        kept = {self.part(file).name for file in keep}
        for found in self.path.glob("*"):
            if found.name not in kept:
                found.unlink(missing_ok=True)
        self._go()

    def _go(self) -> None:
        with contextlib.suppress(OSError):  # not empty, or never made
            self.path.rmdir()

    def close(self) -> None:
        for file in [*self._open]:
            self._close(file)

    __del__ = close
    """Who breaks out of a loop need not close anything."""

    def _close(self, file: str) -> None:
        if (out := self._open.pop(file, None)) is not None:
            out.close()
