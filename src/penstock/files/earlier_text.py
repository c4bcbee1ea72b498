"""Text that a folder has already, and that a file which is saved there must not replace.

A saved log grows, and its text is replaced by longer text that begins with it. Other text that comes under the same
name belongs to another log, and what was there is all that the receiver has of the earlier one. So that is kept, and
its name gets `~1`, `~2`, … at its end.
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
    """The names of what is kept of earlier texts of this path, and then the next free one."""
    for number in itertools.count(1):
        kept = path.with_name(f"{path.name}~{number}")
        yield kept
        if not os.path.lexists(kept):
            return


def keep(path: Path) -> Path:
    """Give what has this path another name too. Returns that name, also where a process that died has given it."""
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
    """Whether a file begins with all that is at the other path; also if no file is there."""
    try:
        status = earlier.stat()
        if not stat.S_ISREG(status.st_mode):
            return True  # to be refused when the file is given its name
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
    """Whether a file begins with what was sent of a log before: the last block of that is compared."""
    if not 0 < begin.last_block_size <= min(begin.offset, BLOCK_SIZE):
        return False
    try:
        with path.open("rb") as file:
            file.seek(begin.offset - begin.last_block_size)
            return hashlib.sha256(file.read(begin.last_block_size)).digest() == begin.last_block_digest
    except OSError:
        return False


def is_all_of(path: Path, begin: FileBegin) -> bool:
    """Whether a file is exactly what was sent of a log before."""
    try:
        return path.stat().st_size == begin.offset and is_same_log(path, begin)
    except OSError:
        return False
