"""The part of `penstock dead …` that acts on dead files: those that a receiver of a channel could not save.

Those of a receiver are named `files:CHANNEL:RECEIVER`, and one of them `files:CHANNEL:RECEIVER:ID`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.dead_kinds import DeadKind, Words
from penstock.cli.exits import Exit
from penstock.cli.where import Where
from penstock.errors import ConfigurationError, PenstockError
from penstock.files.dead_files import DeadFiles
from penstock.ops.inspect import Inspector
from penstock.ops.wording import ago
from penstock.terminal.tables import show, show_facts, show_json, show_table

PREFIX = "files:"


def _of(inspector: Inspector, name: str) -> DeadFiles:
    channel, _, receiver = name.removeprefix(PREFIX).rpartition(":")
    if not channel:
        raise ConfigurationError(f"{name}: name the dead files of a receiver as files:CHANNEL:RECEIVER")
    inspector.files.channel(channel)
    return inspector.files.open(channel).receiver(receiver).dead


def _split(id: str) -> tuple[str, str]:
    """The name of the receiver, and the id of the file."""
    name, _, upload = id.rpartition(":")
    if name.count(":") < 2:
        raise ConfigurationError(f"{id}: name a dead file as it was printed, files:CHANNEL:RECEIVER:ID")
    return name, upload


def list_page(name: str, limit: int, offset: int, where: Where, *, as_json: bool) -> None:
    with where.open() as inspector:
        found, now = _of(inspector, name).list()[::-1], inspector.now()
    page = found[offset : offset + limit]
    if as_json:
        return show_json({"total": len(found), "offset": offset, "files": page})
    if not page:
        return show(f"No dead files in {name}." if not found else f"{name} has only {len(found):,}.")
    rows = [
        (
            f"{name}:{one.id}",
            ago(one.died, now),
            one.name,
            "retried by the next receive" if one.is_retried else one.error,
        )
        for one in page
    ]
    show_table({"id": "name", "died": "number", "file": "name", "error": "text"}, rows)
    if len(found) > len(page):
        show(f"{offset + 1:,} to {offset + len(page):,} of {len(found):,}; --limit and --offset select others.")


def show_one(id: str, where: Where, *, as_json: bool) -> None:
    name, upload = _split(id)
    with where.open() as inspector:
        dead, now = _of(inspector, name).list(), inspector.now()
    one = next((one for one in dead if one.id == upload), None)
    if one is None:
        raise PenstockError(f"{id} is not a dead file")
    if as_json:
        return show_json(one)
    show_facts(
        {
            "id": id,
            "died": ago(one.died, now),
            "file": f"{one.name} of {one.source}" if one.source else one.name or "(unreadable)",
            "kept": one.kept or "no: have it sent again",
            "state": "the next receive into its folder tries it again" if one.is_retried else "dead",
            "error": one.error,
        }
    )


KIND = DeadKind("dead file", "dead files", _of, _split, lambda dead: [one.id for one in dead.list()])


def retry(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("has the next receive save {}", "will be retried", "a dead file whose bytes are kept")
    return KIND.act(words, lambda dead: dead.retry, ids, all_of, where, yes=yes)


def rm(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("deletes {}, with the bytes that are kept", "removed", "a dead file")
    return KIND.act(words, lambda dead: dead.remove, ids, all_of, where, yes=yes, ask=True)
