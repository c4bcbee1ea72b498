"""`penstock latch …`: latches, and how much is left to be counted down."""

from __future__ import annotations

from penstock.cli.where import HERE, AsJson, Where
from penstock.locks.answers import LatchInfo
from penstock.ops.wording import age
from penstock.terminal.tables import Kind, show_facts, show_json, show_list

_COLUMNS: dict[str, Kind] = {
    "latch": "name", "left": "number", "of": "number", "waiting": "number", "forgotten in": "number",
}  # fmt: skip


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the latches: how much is left to be counted down, and how many faces of processes wait.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        latches = inspector.latches()
    show_list(latches, _COLUMNS, map(_row, latches), none="There are no latches.", as_json=as_json)


def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one latch.

    Parameters
    ----------
    name
        The latch.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        latch = inspector.latch(name)
    if as_json:
        return show_json(latch)
    state = f"closed: {latch.left:,} of {latch.count:,} left" if latch.left else f"open, all {latch.count:,} counted"
    show_facts(
        {
            "latch": latch.name,
            "state": state,
            "waiting": f"{latch.waiting:,}",
            "forgotten in": f"{age(latch.ttl)}, unless it is used",
        }
    )
    return None


def _row(one: LatchInfo) -> tuple[str, ...]:
    return one.name, f"{one.left:,}" if one.left else "open", f"{one.count:,}", f"{one.waiting:,}", age(one.ttl)
