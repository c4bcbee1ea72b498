"""`penstock directory …`: import, look up and change the names of a directory."""

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
from penstock.cli.where import HERE, AsJson, Limit, Where, Yes, confirm
from penstock.completion.directory import Directory, SearchOrder
from penstock.completion.entry import Entry, NameLike
from penstock.errors import ConfigurationError
from penstock.ops.wording import many, terminal_safe
from penstock.terminal.names_file import RejectedLine, read_names
from penstock.terminal.tables import headings, show, show_json, show_list, show_table

BATCH = 20_000
"""Names per update of the progress bar. A batch is checked as a whole, then sent with 100 names per round trip."""

SHOWN = 10
"""Rejected lines that are printed one by one."""

Pairs = Annotated[list[str] | None, Parameter(name="--equivalent", negative=(), show_default=False)]
Switch = Annotated[bool | None, Parameter(negative=(), show_default=False)]
Order = Annotated[SearchOrder, Parameter(show_default=False)]
All = Annotated[bool, Parameter(name="--all", negative=(), show_default=False)]


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every directory with its number of names.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.directories.all()
    columns = headings("directory:name", "names")
    lines = [(one.name, f"{one.names:,}") for one in found]
    show_list(found, columns, lines, none="There are no directories.", as_json=as_json)


def import_(
    name: str,
    file: ExistingFile,
    /,
    *,
    rejects: Path | None = None,
    words: Switch = None,
    ignore_accents: Switch = None,
    equivalents: Pairs = None,
    pinyin: Switch = None,
    ignore_apostrophes: Switch = None,
    initials: Switch = None,
    shards: int | None = None,
    where: Where = HERE,
    as_json: AsJson = False,
) -> int:
    """Add the names of a file to a directory. May be interrupted and run again.

    A line of the UTF-8 file is a name, optionally followed by its id, its weight and its payload, separated by tabs.
    Exit code 1 if a line was rejected; the other lines are added.

    Parameters
    ----------
    name
        The directory, for example guild:9.
    file
        One name per line.
    rejects
        The file for rejected lines, FILE.rejects by default. Its lines are number, reason and the rejected line,
        separated by tabs.
    words
        Find names by the start of every word. This option and those that follow apply to a new directory only.
    ignore_accents
        Ignore accents.
    equivalents
        Replace a letter, as in --equivalent ü=ue, so that both spellings find each other. May be repeated.
    pinyin
        Find Chinese names by their pinyin and its initials. Needs penstock[pinyin].
    ignore_apostrophes
        Ignore apostrophes.
    initials
        Find Korean names by the first consonants of their syllables.
    shards
        Spread the names over this many slots of a cluster.
    as_json
        Print the result as one JSON object.
    """
    rejects_path = rejects or file.with_name(f"{file.name}.rejects")
    accents = None if ignore_accents is None else not ignore_accents
    apostrophes = None if ignore_apostrophes is None else not ignore_apostrophes
    with (
        where.open(creates=True) as inspector,
        _Rejects(rejects_path) as rejected,
        _progress(file, quiet=as_json) as advance,
    ):
        table = _table(equivalents) if equivalents else None
        directory = inspector.directories.open(
            name,
            words=words,
            accents=accents,
            equivalents=table,
            pinyin=pinyin,
            apostrophes=apostrophes,
            initials=initials,
            shards=shards,
        )
        before, began = directory.count(), time.monotonic()
        read = _import(directory, file, rejected, advance)
        names, seconds = directory.count(), time.monotonic() - began
    if as_json:
        written_to = str(rejects_path) if rejected.count else None
        show_json(ImportResult(name, read, names - before, names, rejected.count, written_to, round(seconds, 3)))
    else:
        show(f"{many(read, 'name')} read, {names - before:,} new; {name} has {many(names, 'name')}.")
        if rejected.count:
            print(f"penstock: {many(rejected.count, 'line')} rejected, written to {rejects_path}", file=sys.stderr)
    return Exit.FAILED if rejected.count else Exit.OK


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import: names read, new names, names in the directory now, rejected lines."""

    directory: str
    read: int
    new: int
    names: int
    rejected: int
    rejects: str | None
    seconds: float


def _table(pairs: list[str]) -> dict[str, str]:
    """The equivalents of `--equivalent` options."""
    table = {}
    for pair in pairs:
        letter, separator, replacement = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--equivalent {pair}: write LETTER=LETTERS, for example ü=ue")
        table[letter] = replacement
    return table


def _import(directory: Directory, file: Path, rejected: _Rejects, advance: Callable[[int], None]) -> int:
    read, batch = 0, list[NameLike]()
    with file.open("rb") as source:
        for found in read_names(source):
            if isinstance(found, RejectedLine):
                rejected.add(found)
                continue
            batch.append(found)
            read += 1
            if len(batch) == BATCH:
                directory.add_many(batch)
                batch.clear()
                advance(source.tell())
    directory.add_many(batch)
    return read


class _Rejects:
    """Writes the file of rejected lines, which is created with the first of them."""

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
        self._write(b"%d\t%b\t%b\n" % (reject.number, terminal_safe(reject.reason).encode(), reject.line))
        if self.count <= SHOWN:
            print(f"penstock: line {reject.number}: {terminal_safe(reject.reason)}", file=sys.stderr)

    def __enter__(self) -> _Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def _progress(file: Path, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(terminal_safe(file.name), total=file.stat().st_size)
        yield lambda done: bar.update(task, completed=done)


def add(
    name: str,
    text: str,
    /,
    *,
    id: str | None = None,
    weight: float | None = None,
    payload: str | None = None,
    where: Where = HERE,
) -> None:
    """Add one name to a directory, or give this name to an existing id.

    Parameters
    ----------
    name
        The directory.
    text
        The name to add.
    id
        Its id. The default is the name itself.
    weight
        The weight for `top`.
    payload
        A text of at most 1 KiB that belongs to the id.
    """
    with where.open(creates=True) as inspector:
        inspector.directories.open(name).add(text, id, weight=weight, payload=payload)
    show(f"{text} is in {name}.")


def rename(name: str, id: str, text: str, /, *, where: Where = HERE) -> int:
    """Change the name of an id. Exit code 1 if the id does not exist.

    Parameters
    ----------
    name
        The directory.
    id
        The id, which does not change.
    text
        The new name.
    """
    with where.open() as inspector:
        known = inspector.directories.open(name).rename(id, text)
    return _report(known, f"{id} is now {text}.", f"no id {id} in {name}")


def bump(name: str, id: str, by: float = 1, /, *, where: Where = HERE) -> int:
    """Add to the weight of an id. Exit code 1 if the id does not exist.

    Parameters
    ----------
    name
        The directory.
    id
        The id.
    by
        How much to add.
    """
    with where.open() as inspector:
        weight = inspector.directories.open(name).bump(id, by)
    return _report(weight is not None, f"{id} has the weight {weight or 0:g}.", f"no id {id} in {name}")


def rm(
    name: str,
    /,
    *ids: str,
    everything: All = False,
    yes: Yes = False,
    where: Where = HERE,
) -> int:
    """Remove names from a directory by id. Exit code 1 if one does not exist.

    Parameters
    ----------
    name
        The directory.
    ids
        Ids. The id of a name without one is the name itself.
    everything
        Remove all names.
    yes
        With --all: do not ask.
    """
    if everything == bool(ids):
        raise ConfigurationError("name the ids to remove, or use --all")
    with where.open() as inspector:
        directory = inspector.directories.open(name)
        if everything:
            confirm(
                f"This removes all {many(directory.count(), 'name')} from {name}, at {inspector.location}.", yes=yes
            )
            gone = directory.clear()
        else:
            gone = directory.remove(*ids)
    show(f"Removed {many(gone, 'name')} from {name}.")
    return Exit.OK if everything or gone == len(set(ids)) else Exit.FAILED


def complete(
    name: str,
    prefix: str = "",
    /,
    *,
    limit: Limit = 10,
    by: Order = "name",
    after: str | None = None,
    typos: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List the names that begin with a prefix, in order.

    Parameters
    ----------
    name
        The directory.
    prefix
        The prefix. The default is empty: all names.
    limit
        How many to list, up to 1000.
    by
        The order. By weight, names without one follow in the order of names.
    after
        Continue after this entry: the `cursor` of the last entry of a page, as --json prints it.
    typos
        Include names whose beginning differs by one typo: a letter added, missing or replaced, or two swapped.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        entries = inspector.directories.open(name).complete(prefix, limit, by=by, after=after, typos=typos)
    _list(entries, as_json=as_json)


def top(name: str, prefix: str = "", /, *, limit: Limit = 10, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the names that begin with a prefix, heaviest first. Names without a weight follow in order.

    Parameters
    ----------
    name
        The directory.
    prefix
        The prefix. The default is empty: all names.
    limit
        How many to list, up to 1000.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        entries = inspector.directories.open(name).top(prefix, limit)
    _list(entries, as_json=as_json)


def get(name: str, id: str, /, *, where: Where = HERE, as_json: AsJson = False) -> int:
    """Show the name of an id. Exit code 1 if the id does not exist.

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
        entry = inspector.directories.open(name).get(id)
    if as_json:
        show_json(None if entry is None else _as_json(entry))
        return Exit.FAILED if entry is None else Exit.OK
    return _report(entry is not None, entry.name if entry else "", f"no id {id} in {name}")


def count(name: str, prefix: str = "", /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Count the names of a directory, or those that begin with a prefix.

    Parameters
    ----------
    name
        The directory.
    prefix
        The prefix.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.directories.open(name).count(prefix)
    if as_json:
        show_json({"directory": name, "prefix": prefix, "count": found})
    else:
        show(f"{found:,}")


def _list(entries: list[Entry], *, as_json: bool) -> None:
    if as_json:
        show_json([{**_as_json(entry), "cursor": entry.cursor} for entry in entries])
    elif not entries:
        show("No name has this prefix.")
    else:
        columns = headings("name:name", "id:name")
        rows: list[tuple[str, ...]] = [(entry.name, entry.id) for entry in entries]
        if any(entry.weight for entry in entries):
            columns["weight"] = "number"
            rows = [(*row, f"{entry.weight:,g}") for row, entry in zip(rows, entries, strict=True)]
        show_table(columns, rows)


def _as_json(entry: Entry) -> dict[str, Any]:
    payload = None if entry.payload is None else entry.payload.decode(errors="replace")
    return {"name": entry.name, "id": entry.id, "weight": entry.weight, "payload": payload}


def _report(done: bool, success: str, failure: str) -> int:
    if done:
        show(success)
        return Exit.OK
    print(f"penstock: {terminal_safe(failure)}", file=sys.stderr)
    return Exit.FAILED
