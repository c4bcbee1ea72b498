"""`penstock barrier …`: barriers, and the parties that wait."""

from __future__ import annotations

from penstock.cli.owners import owner_name
from penstock.cli.where import HERE, AsJson, Where
from penstock.locks.answers import BarrierInfo
from penstock.ops.wording import age
from penstock.terminal.tables import Kind, show, show_facts, show_json, show_list, show_table

_COLUMNS: dict[str, Kind] = {"barrier": "name", "waiting": "number", "of": "number", "meeting": "number"}


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the barriers: how many parties wait, of how many, and the number of the present meeting.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        barriers = inspector.barriers()
    show_list(barriers, _COLUMNS, map(_row, barriers), none="There are no barriers.", as_json=as_json)


def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one barrier, with the parties that wait.

    Parameters
    ----------
    name
        The barrier.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        barrier = inspector.barrier(name)
    if as_json:
        return show_json(barrier)
    waiting = f"{barrier.waiting:,} of {barrier.parties:,} parties"
    show_facts({"barrier": barrier.name, "waiting": waiting, "meeting": barrier.generation})
    if barrier.waiters:
        show("")
        lines = [(owner_name(one), _silent(one.left)) for one in barrier.waiters]
        show_table({"party": "name", "counts as silent": "number"}, lines)
    return None


def _silent(left: float | None) -> str:
    return f"in {age(left)}" if left is not None and left > 0 else "now"


def _row(one: BarrierInfo) -> tuple[str, ...]:
    return one.name, f"{one.waiting:,}", f"{one.parties:,}", str(one.generation)
