"""`penstock directory …`: the names of groups, imported, looked up and changed by hand."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.types import ExistingFile

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, AsJson, Limit, Where, Yes, agree
from penstock.completion.directory import Directory
from penstock.completion.entry import Entry, NameLike
from penstock.errors import ConfigurationError
from penstock.ops.wording import many, printable
from penstock.terminal.names_file import RejectedLine, read_names
from penstock.terminal.tables import Kind, show, show_json, show_table

LOT = 20_000
"""Lines between two looks at the progress bar; each lot is checked, then sent 500 names a round trip."""

SHOWN = 10
"""Rejected lines that are told one by one."""

Switch = Annotated[bool | None, Parameter(negative=(), show_default=False)]
All = Annotated[bool, Parameter(name="--all", negative=(), show_default=False)]


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every directory with its number of names.

    Reads all the server's keys once, in slices: some seconds on one with many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.directories()
    if as_json:
        return show_json(found)
    if not found:
        return show("No directory here.")
    columns: dict[str, Kind] = {"directory": "name", "names": "number"}
    return show_table(columns, [(one.name, f"{one.names:,}") for one in found])


def import_(
    name: str,
    file: ExistingFile,
    /,
    *,
    rejects: Path | None = None,
    words: Switch = None,
    ignore_accents: Switch = None,
    shards: int | None = None,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Add the names of a file to a directory. May be broken off and run again: what is there already stays as it is.

    A line is a name, or a name, a tab and its id, or these, a tab and a weight; UTF-8. Exit code 1 if a line was
    rejected; the others are in then.

    Parameters
    ----------
    name
        The directory, as in guild:9.
    file
        A name a line.
    rejects
        Where lines that are no names go, each behind its number and the reason, with tabs between; FILE.rejects
        unless given.
    words
        Find names by the start of every word. As the next two, for a new directory only.
    ignore_accents
        Do not compare accents at all.
    shards
        Spread the names over so many slots of a cluster.
    as_json
        Print the result as one JSON object.
    """
    kept = rejects or file.with_name(f"{file.name}.rejects")
    accents = None if ignore_accents is None else not ignore_accents
    with where.open() as inspector, _Rejects(kept) as rejected, _progress(file, quiet=as_json) as advance:
        directory = inspector.directory(name, words=words, accents=accents, shards=shards)
        before, began = directory.count(), time.monotonic()
        read = _import(directory, file, rejected, advance)
        names, seconds = directory.count(), time.monotonic() - began
    if as_json:
        where_kept = str(kept) if rejected.count else None
        show_json(Imported(name, read, names - before, names, rejected.count, where_kept, round(seconds, 3)))
    else:
        show(f"{many(read, 'name')} read, {names - before:,} new; {name} has {many(names, 'name')}.")
        if rejected.count:
            print(f"penstock: {many(rejected.count, 'line')} rejected, kept in {kept}", file=sys.stderr)
    return Exit.FAILED if rejected.count else Exit.OK


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a file: names read from it, how many of them are new, how many there are now, lines rejected."""

    directory: str
    read: int
    new: int
    names: int
    rejected: int
    rejects: str | None
    seconds: float


def _import(directory: Directory, file: Path, rejected: _Rejects, advance: Callable[[int], None]) -> int:
    read, lot = 0, list[NameLike]()
    with file.open("rb") as source:
        for found in read_names(source):
            if isinstance(found, RejectedLine):
                rejected.add(found)
                continue
            lot.append(found)
            read += 1
            if len(lot) == LOT:
                directory.add_many(lot)
                lot.clear()
                advance(source.tell())
    directory.add_many(lot)
    return read


class _Rejects:
    """The file of rejected lines, made with the first of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()
        self._write: Callable[[bytes], Any] | None = None
        self.count = 0

    def add(self, reject: RejectedLine) -> None:
        if self._write is None:
            try:
                self._write = self._stack.enter_context(self._path.open("wb")).write
            except OSError as error:
                raise ConfigurationError(f"--rejects {self._path}: cannot be written: {error.strerror}") from None
        self.count += 1
        self._write(b"%d\t%b\t%b\n" % (reject.number, printable(reject.reason).encode(), reject.line))
        if self.count <= SHOWN:
            print(f"penstock: line {reject.number}: {printable(reject.reason)}", file=sys.stderr)

    def __enter__(self) -> _Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def _progress(file: Path, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(printable(file.name), total=file.stat().st_size)
        yield lambda done: bar.update(task, completed=done)


def add(name: str, text: str, /, *, id: str | None = None, weight: float | None = None, where: Where = HERE) -> None:
    """Add one name to a directory, or give an id that is there this name.

    Parameters
    ----------
    name
        The directory.
    text
        The name to add.
    id
        Its id; the name itself unless given.
    weight
        For `top`.
    """
    with where.open() as inspector:
        inspector.directory(name).add(text, id, weight=weight)
    show(f"{text} is in {name}.")


def rename(name: str, id: str, text: str, /, *, where: Where = HERE) -> int:
    """Give the name of an id. Exit code 1 if there is no such id.

    Parameters
    ----------
    name
        The directory.
    id
        The id, which stays.
    text
        The new name.
    """
    with where.open() as inspector:
        known = inspector.directory(name).rename(id, text)
    return _told(known, f"{id} is {text} now.", f"no id {id} in {name}")


def rm(
    name: str,
    /,
    *ids: str,
    everything: All = False,
    yes: Yes = False,
    where: Where = HERE,
) -> int:
    """Take names out of a directory, by their ids. Exit code 1 if one was not there.

    Parameters
    ----------
    name
        The directory.
    ids
        Ids; for names without one, the names.
    everything
        Take all names out.
    yes
        With --all: do it without asking.
    """
    if everything == bool(ids):
        raise ConfigurationError("name the ids to take out, or say --all")
    with where.open() as inspector:
        directory = inspector.directory(name)
        if everything:
            agree(f"This takes all {many(directory.count(), 'name')} out of {name}, at {inspector.location}.", yes=yes)
            gone = directory.clear()
        else:
            gone = directory.remove(*ids)
    show(f"Took {many(gone, 'name')} out of {name}.")
    return Exit.OK if everything or gone == len(set(ids)) else Exit.FAILED


def complete(
    name: str,
    prefix: str = "",
    /,
    *,
    limit: Limit = 10,
    after: str | None = None,
    typos: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List the names that begin so, in order.

    Parameters
    ----------
    name
        The directory.
    prefix
        What somebody types; without it, all names.
    limit
        At most so many.
    after
        The `cursor` of a page's last entry, as --json prints it: go on there.
    typos
        Names that begin with one slip in it as well.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        entries = inspector.directory(name).complete(prefix, limit, after=after, typos=typos)
    _list(entries, as_json=as_json)


def top(name: str, prefix: str = "", /, *, limit: Limit = 10, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the names that begin so, the heaviest first.

    Parameters
    ----------
    name
        The directory.
    prefix
        What somebody types; without it, all names.
    limit
        At most so many.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        entries = inspector.directory(name).top(prefix, limit)
    _list(entries, as_json=as_json)


def get(name: str, id: str, /, *, where: Where = HERE, as_json: AsJson = False) -> int:
    """Show the name of an id. Exit code 1 if there is no such id.

    Parameters
    ----------
    name
        The directory.
    id
        The id.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        entry = inspector.directory(name).get(id)
    if as_json:
        show_json(None if entry is None else {"name": entry.name, "id": entry.id})
        return Exit.FAILED if entry is None else Exit.OK
    return _told(entry is not None, entry.name if entry else "", f"no id {id} in {name}")


def count(name: str, prefix: str = "", /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Count the names of a directory, or those that begin so.

    Parameters
    ----------
    name
        The directory.
    prefix
        What somebody types.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.directory(name).count(prefix)
    if as_json:
        show_json({"directory": name, "prefix": prefix, "count": found})
    else:
        show(f"{found:,}")


def _list(entries: list[Entry], *, as_json: bool) -> None:
    if as_json:
        show_json([{"name": entry.name, "id": entry.id, "cursor": entry.cursor} for entry in entries])
    elif not entries:
        show("No name begins so.")
    else:
        columns: dict[str, Kind] = {"name": "name", "id": "name"}
        show_table(columns, [(entry.name, entry.id) for entry in entries])


def _told(done: bool, said: str, otherwise: str) -> int:
    if done:
        show(said)
        return Exit.OK
    print(f"penstock: {printable(otherwise)}", file=sys.stderr)
    return Exit.FAILED
