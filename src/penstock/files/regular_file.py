"""Regular files of the local disk: open one safely, and recognise it again under another name."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

AnyPath = str | os.PathLike[str]

_KINDS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFDIR: "folder"}


def open_regular_file(path: Path) -> FileIO:
    """Raises OSError for anything but a regular file, and does not open it: opening a fifo may block, or wake up the
    program that writes to it."""
    _refuse_special(path.stat())
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    try:
        _refuse_special(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _refuse_special(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"a {_KINDS.get(stat.S_IFMT(status.st_mode), 'device')}, not a regular file")


def inode_of(status: os.stat_result) -> str:
    """Device and inode: they stay the same when the file is renamed."""
    return f"{status.st_dev}:{status.st_ino}"


def inode_at(path: Path) -> str | None:
    """Device and inode of the file at a path, or None if there is no file."""
    try:
        return inode_of(path.stat())
    except OSError:
        return None


def identity_of(status: os.stat_result, size: int) -> str:
    """Changes whenever the content of the file does: device, inode, size and time of change."""
    return f"{inode_of(status)}:{size}:{status.st_mtime_ns}"


def printable(path: AnyPath) -> str:
    """The path as an error message shows it."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def reason_of(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", "") or str(error)
