"""The part of `penstock dead …` that acts on dead batches: lines that the function of an aggregate could not count.

Those of an aggregate are named `counts:CHANNEL:RECEIVER`, and one of them `counts:CHANNEL:RECEIVER:ID`. No queue has
such a name, because the name of a queue has no colon.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.dead_kinds import DeadKind, Words
from penstock.cli.exits import Exit
from penstock.cli.where import Where
from penstock.counting.dead_batches import DeadBatch, DeadBatches
from penstock.errors import ConfigurationError, PenstockError
from penstock.ops.inspect import Inspector
from penstock.ops.wording import ago, many
from penstock.terminal.tables import headings, show, show_facts, show_json, show_table

PREFIX = "counts:"

FIRST = 10
"""Lines of a batch that `dead show` prints."""


def _of(inspector: Inspector, name: str) -> DeadBatches:
    channel, _, receiver = name.removeprefix(PREFIX).rpartition(":")
    if not channel:
        raise ConfigurationError(f"{name}: name the dead batches of an aggregate as counts:CHANNEL:RECEIVER")
    inspector.files.channel(channel)
    return inspector.files.dead_batches(channel, receiver)


def _split(id: str) -> tuple[str, str]:
    """The name of the aggregate, and the id of the batch."""
    name, _, number = id.rpartition(":")
    if not number.isdigit():
        raise ConfigurationError(f"{id}: name a dead batch as it was printed, counts:CHANNEL:RECEIVER:ID")
    return name, number


def _lines_of(batch: DeadBatch) -> str:
    return f"{batch.first:,} to {batch.first + batch.lines - 1:,}"


def list_page(name: str, limit: int, offset: int, where: Where, *, as_json: bool) -> None:
    with where.open() as inspector:
        found, now = _of(inspector, name).list()[::-1], inspector.now()
    page = found[offset : offset + limit]
    if as_json:
        return show_json({"total": len(found), "offset": offset, "batches": page})
    if not page:
        return show(f"No dead batches in {name}." if not found else f"{name} has only {len(found):,}.")
    rows = [
        (
            f"{name}:{one.id}",
            ago(one.died, now),
            one.file,
            _lines_of(one),
            f"{one.attempts}",
            "retried by the next run" if one.is_retried else one.error,
        )
        for one in page
    ]
    show_table(
        headings("batch:name", "died", "file:name", "lines", "attempts", "error:text"),
        rows,
    )
    if len(found) > len(page):
        show(f"{offset + 1:,} to {offset + len(page):,} of {len(found):,}; --limit and --offset select others.")


def show_one(id: str, where: Where, *, as_json: bool) -> None:
    name, number = _split(id)
    with where.open() as inspector:
        dead, now = _of(inspector, name), inspector.now()
        batch = next((batch for batch in dead.list() if batch.id == number), None)
        lines = [line.decode(errors="replace") for line in dead.lines(number)]
    if batch is None:
        raise PenstockError(f"{id} is not a dead batch")
    if as_json:
        return show_json({"batch": batch, "lines": lines})
    show_facts(
        {
            "batch": id,
            "died": ago(batch.died, now),
            "file": f"{batch.file} of {batch.source}" if batch.source else batch.file,
            "lines": _lines_of(batch),
            "attempts": f"{batch.attempts}",
            "state": "the next run of the aggregate tries it again" if batch.is_retried else "dead",
            "error": batch.error,
        }
    )
    show("", *(repr(line)[1:-1] for line in lines[:FIRST]))
    if len(lines) > FIRST:
        show(f"and {many(len(lines) - FIRST, 'more line', 'more lines')}; --json prints all of them")


KIND = DeadKind("dead batch", "dead batches", _of, _split, lambda dead: [batch.id for batch in dead.list()])


def retry(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("has the next run count {}", "will be retried", "a dead batch")
    return KIND.act(words, lambda dead: dead.retry, ids, all_of, where, yes=yes)


def rm(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("deletes {}, so that their lines are never counted", "removed", "a dead batch")
    return KIND.act(words, lambda dead: dead.remove, ids, all_of, where, yes=yes, ask=True)
