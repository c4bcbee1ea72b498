"""The part of `penstock dead …` that acts on mailboxes. A mailbox is named `mailbox:NAME`, and a dead letter of it
`mailbox:NAME:ID`. No queue and no job has such a name, because the name of a queue has no colon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.cli.dead_kinds import DeadKind, Words
from penstock.cli.exits import Exit
from penstock.cli.job import value_text
from penstock.cli.where import Where
from penstock.errors import ConfigurationError, PenstockError, SealError
from penstock.messages.dead_messages import DeadMessages
from penstock.messages.message import DeadMessage
from penstock.ops.inspect import Inspector
from penstock.ops.wording import ago
from penstock.sealing import Sealed
from penstock.terminal.tables import cell, headings, show, show_facts, show_json, show_table

PREFIX = "mailbox:"
PAGE = 1000


def _of(inspector: Inspector, name: str) -> DeadMessages:
    return inspector.messages.dead_messages(name.removeprefix(PREFIX))


def _split(id: str) -> tuple[str, str]:
    """The name of the mailbox, and the id of the dead letter."""
    name, _, position = id.rpartition(":")
    if not name.startswith(PREFIX) or name == PREFIX:
        raise ConfigurationError(f"{id}: name a dead letter of a mailbox as it was printed, mailbox:NAME:ID")
    return name, position


def _as_printed(letter: DeadMessage) -> str:
    return f"{PREFIX}{letter.place}:{letter.id}"


def list_page(name: str, limit: int, offset: int, where: Where, *, as_json: bool) -> None:
    with where.open() as inspector:
        dead, now = _of(inspector, name), inspector.now()
        letters, total = dead.list(limit, offset), dead.count()
    if as_json:
        page = [_as_json(letter) for letter in letters]
        return show_json({"total": total, "offset": offset, "letters": page})
    if not letters:
        return show(f"No dead letters in {name}." if not total else f"{name} has only {total:,}.")
    lines = [(_as_printed(one), ago(one.died, now), f"{one.deliveries}", one.reason) for one in letters]
    show_table(headings("message:name", "died", "deliveries", "reason:text"), lines)
    if total > len(letters):
        show(f"{offset + 1:,} to {offset + len(letters):,} of {total:,}; --limit and --offset select others.")


def _as_json(letter: DeadMessage) -> dict[str, object]:
    return {
        "id": _as_printed(letter),
        "died": letter.died,
        "sender": letter.sender,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "body": _body(letter),
    }


def _body(letter: DeadMessage) -> object:
    try:
        return letter.body
    except SealError as error:
        return Sealed(error.key)


def show_one(id: str, where: Where, *, as_json: bool) -> None:
    name, position = _split(id)
    with where.open() as inspector:
        dead, now = _of(inspector, name), inspector.now()
        letter = next((letter for letter in _all(dead) if letter.id == position), None)
    if letter is None:
        raise PenstockError(f"{id} is not a dead letter")
    if as_json:
        return show_json(_as_json(letter))
    show_facts(
        {
            "message": _as_printed(letter),
            "died": ago(letter.died, now),
            "sender": letter.sender or "(none)",
            "deliveries": f"{letter.deliveries}",
            "body": cell(value_text(_body(letter))),
            "reason": letter.reason,
        }
    )


def _all(dead: DeadMessages) -> Iterable[DeadMessage]:
    offset = 0
    while page := dead.list(PAGE, offset):
        yield from page
        offset += len(page)


KIND = DeadKind("dead letter", "dead letters", _of, _split, lambda dead: [letter.id for letter in _all(dead)])


def retry(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("posts {} again", "requeued", "a dead letter")
    return KIND.act(words, lambda dead: dead.requeue, ids, all_of, where, yes=yes)


def rm(ids: Sequence[str], all_of: str | None, where: Where, *, yes: bool) -> Exit:
    words = Words("deletes {} for good", "removed", "a dead letter")
    return KIND.act(words, lambda dead: dead.remove, ids, all_of, where, yes=yes, ask=True)
