"""Turns paths into sources: regular files, each with the name by which receivers know it."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Configuration
from penstock.core.keys import check_name
from penstock.errors import ConfigurationError, FilesError
from penstock.files.regular_file import AnyPath, inode_of, open_regular_file, printable, reason_of

HIDDEN_PREFIX = ".penstock-"
"""The folders in which receivers keep partial files begin with this, and no file is saved under a name that does."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file to send.

    name    relative, with `/` between its parts; receivers know the file by it
    opened  a descriptor of the file, if it is open and may have lost its name; it is not closed
    shrunk  it has become shorter since the last look at it, so that it begins again even with the text it had
    """

    path: Path
    name: str
    opened: int | None = None
    shrunk: bool = False


def find_sources(
    paths: AnyPath | Iterable[AnyPath], *, skip_faulty: bool = False, skip_missing: bool = False
) -> list[Source]:
    """The files to send, in the order given. A folder means its regular files in the order of their names, including
    hidden ones.

    Folders inside a folder are left out. A file that has several names in a folder, by hard links or symbolic ones, is
    sent once. The name of a source is the file's own name. If several files have the same name, the names begin with as
    many parent folders as it takes to distinguish them.

    Raises one FilesError that names every path that cannot be sent, because it is missing, cannot be read, is not a
    regular file, is given twice, or has a name that is not UTF-8. With `skip_faulty` such paths are left out instead;
    with `skip_missing` only missing ones are.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given and not skip_faulty:
        raise FilesError("nothing was sent: name at least one file or folder")
    by_inode: dict[str, Path] = {}
    faults: list[str] = []
    for path in given:
        with _collecting(faults, path, skip_missing):
            for file in _files_at(path):
                with _collecting(faults, file, skip_missing):
                    _add(by_inode, file)
    sources = [Source(file, name) for file, name in _named(by_inode.values())]
    faults += [
        f"{printable(source.path)}: its name is not UTF-8, rename it" for source in sources if not _is_text(source.name)
    ]
    if skip_faulty:
        return [source for source in sources if _is_text(source.name)]
    if faults:
        raise FilesError("\n  ".join(["nothing was sent, because of", *faults]))
    return sources


def source_name(given: str | None) -> str:
    """The name of the host that has the files: the given one, the setting `source`, or this machine's name. Raises
    ConfigurationError for a name that cannot be a folder, because receivers may save the files in one of that name."""
    name = check_name("source", given or Configuration().text("source") or socket.gethostname())
    if name in {".", ".."} or name.startswith(HIDDEN_PREFIX):
        raise ConfigurationError(
            f"source={name!r}: receivers may save the files in a folder of this name; use the host's name, like web-1"
        )
    return name


@contextmanager
def _collecting(faults: list[str], path: AnyPath, skip_missing: bool) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if not skip_missing:
            faults.append(f"{printable(path)}: {reason_of(error)}")
    except (OSError, ValueError) as error:
        faults.append(f"{printable(path)}: {reason_of(error)}")


def _files_at(path: AnyPath) -> list[Path]:
    if path == "":
        raise ValueError("an empty path")  # Path("") would be the working directory
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    first: dict[str, Path] = {}
    for file in sorted(files, key=Path.is_symlink):  # a link after the file itself
        first.setdefault(inode_of(file.stat()), file)
    return sorted(first.values())


def _add(by_inode: dict[str, Path], file: Path) -> None:
    with open_regular_file(file) as opened:
        inode = inode_of(os.fstat(opened.fileno()))
    if other := by_inode.get(inode):
        raise ValueError("given twice" if other == file else f"the same file as {printable(other)}")
    by_inode[inode] = file


def _named(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each file with its name: as few of the last parts of its path as distinguish it from all other files."""
    parts = {file: _parts(file) for file in files}
    ends = Counter(path[-n:] for path in parts.values() for n in range(1, len(path) + 1))
    for file, path in parts.items():
        depth = next((n for n in range(1, len(path)) if ends[path[-n:]] == 1), len(path))
        yield file, "/".join(path[-depth:])


def _parts(file: Path) -> tuple[str, ...]:
    """The parts of its absolute path. Links keep their names; but in a path with `..` linked folders are resolved,
    because a `..` behind a link leads to the parent of the folder that it points to."""
    path = file.absolute()
    return (path.parent.resolve() / path.name if ".." in path.parts else path).parts[1:]


def _is_text(name: str) -> bool:
    """Python represents bytes of a file name that are not UTF-8 as lone surrogates."""
    return name.encode(errors="ignore").decode() == name
