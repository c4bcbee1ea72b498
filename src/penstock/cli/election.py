"""`penstock election …`: elections with their leaders and candidates."""

from __future__ import annotations

from penstock.cli.owners import owner_age, owner_name
from penstock.cli.where import HERE, AsJson, Where
from penstock.locks.answers import ElectionInfo, Leader
from penstock.ops.wording import age
from penstock.terminal.tables import Kind, show, show_facts, show_json, show_list, show_table

_COLUMNS: dict[str, Kind] = {
    "election": "name", "leader": "name", "for": "number", "lease": "number", "candidates": "number", "value": "text",
}  # fmt: skip


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the elections that had a leader within the last hour, with host, process and age of the leader.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        elections = inspector.elections()
    show_list(elections, _COLUMNS, map(_row, elections), none="There are no elections.", as_json=as_json)


def show_one(name: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one election: its leader, its last term, and the candidates in the order in which they will be elected.

    Parameters
    ----------
    name
        The election.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        election = inspector.election(name)
    if as_json:
        return show_json(election)
    leader = election.leader
    facts: dict[str, object] = {"election": election.name, "leader": _name(leader), "term": election.term}
    if leader is not None:
        facts |= {"for": age(leader.age), "lease": f"{age(leader.left)} left", "value": leader.value or "(none)"}
    show_facts(facts | {"candidates": f"{election.waiting:,}"})
    if election.candidates:
        show("")
        lines = [(owner_name(one), owner_age(one)) for one in election.candidates]
        show_table({"candidate": "name", "waits for": "number"}, lines)
    return None


def _row(one: ElectionInfo) -> tuple[str, ...]:
    leader, waiting = one.leader, f"{one.waiting:,}"
    if leader is None:
        return one.name, _name(None), "", "", waiting, ""
    return one.name, _name(leader), age(leader.age), age(leader.left), waiting, leader.value


def _name(leader: Leader | None) -> str:
    return "nobody" if leader is None else f"{leader.host}:{leader.pid}"
