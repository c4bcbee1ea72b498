"""Protects text that a folder has already from a file that is saved there.

When a log has grown, the receiver replaces its saved text by longer text that begins with it. If other text arrives
under the same name, it belongs to another log, and the saved text is all that the receiver has of the earlier log. So
the receiver keeps the saved text under the same name with `~1`, `~2`, … at its end.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.files.records import FileBegin
from penstock.files.source_reader import BLOCK_SIZE

_CHUNK = 256 * 1024


def names_of_kept(path: Path) -> Iterator[Path]:
    """The names of the earlier texts that are kept for this path, then the next free name."""
    for number in itertools.count(1):
        kept = path.with_name(f"{path.name}~{number}")
        yield kept
        if not os.path.lexists(kept):
            return


def keep(path: Path) -> Path:
    """Give the file at this path a second name, unless a process that died has done so, and return that name."""
    for kept in names_of_kept(path):
        if not os.path.lexists(kept):
            try:
                os.link(path, kept, follow_symlinks=False)
            except OSError:  # not every disk has links
                os.rename(path, kept)
            return kept
        if os.path.samestat(kept.lstat(), path.lstat()):
            return kept
    raise AssertionError("there is always a next name")


def begins_with(text: Path, earlier: Path) -> bool:
    """Whether a file begins with the whole content of the other file. True if there is no other file."""
    try:
        status = earlier.stat()
        if not stat.S_ISREG(status.st_mode):
            return True  # giving the file this name will fail
        with text.open("rb") as new, earlier.open("rb") as old:
            if status.st_size > os.fstat(new.fileno()).st_size:
                return False
            while data := old.read(_CHUNK):
                if new.read(len(data)) != data:
                    return False
    except FileNotFoundError:
        pass
    return True


def is_same_log(path: Path, begin: FileBegin) -> bool:
    """Whether a file begins with the text of a log that was sent before. Compares the last block of that text."""
    if not 0 < begin.last_block_size <= min(begin.offset, BLOCK_SIZE):
        return False
    try:
        with path.open("rb") as file:
            file.seek(begin.offset - begin.last_block_size)
            return hashlib.sha256(file.read(begin.last_block_size)).digest() == begin.last_block_digest
    except OSError:
        return False


def is_all_of(path: Path, begin: FileBegin) -> bool:
    """Whether a file is exactly the text of a log that was sent before."""
    try:
        return path.stat().st_size == begin.offset and is_same_log(path, begin)
    except OSError:
        return False
