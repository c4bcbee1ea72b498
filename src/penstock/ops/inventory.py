"""Whether every key of an app at work may be there: by the tables of `store/keys.py`, by its owner, by the counts.

It only reads, in slices, and never deletes. On a server at work jobs move between two looks, so what seems wrong is
looked at a second time, and told only if it was wrong both times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.core.clock import Clock
from penstock.core.keys import pattern
from penstock.core.operations import Operation
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.keys import QueueKeys
from penstock.ops.key_tables import kind_of, owner, parts, row
from penstock.ops.probe import ask, keys_like, primaries

LOT = 500
"""Keys that are looked at in one round trip."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One key, or the books of one queue, that should not be so."""

    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was found. `complete` False: there were more keys than were to be looked at."""

    keys: int
    complete: bool
    faults: list[Fault]


def inventory(prefix: str, most: int | None = None) -> Operation[Inventory]:
    """Look at the keys of the app of this prefix, about `most` of them on each server.

    A round trip for each 1000 keys of the server, one for each 500 of the app, and one for each queue.
    """
    keys, complete, faults = 0, True, list[Fault]()
    for node in (yield from primaries()):
        found, all_of_them = yield from keys_like(node, pattern(prefix), most)
        keys, complete = keys + len(found), complete and all_of_them
        faults += yield from _twice(node, found)
        for queue in _queues(found):
            faults += yield from _books(prefix, queue)
    return Inventory(keys, complete, sorted(faults, key=lambda fault: fault.key))


def _queues(keys: Iterable[bytes]) -> Iterator[str]:
    for key in sorted(keys):
        found = parts(_text(key))
        if found is not None and found[2] == "meta" and kind_of(found[1]) == "queue":
            yield found[1]


def _twice(node: Node, keys: Iterable[bytes]) -> Operation[list[Fault]]:
    suspects = yield from _look(node, keys)
    return list((yield from _look(node, suspects)).values())


def _look(node: Node, keys: Iterable[bytes]) -> Operation[dict[bytes, Fault]]:
    faults = {}
    rest = iter(keys)
    while lot := list(islice(rest, LOT)):
        replies = iter((yield from ask(node, *(question for key in lot for question in _questions(key)))))
        for key, kind, ttl, owner_is_there in zip(lot, replies, replies, replies, strict=True):
            if kind not in {b"none", None}:  # it has just gone, or may not be looked at
                what = _wrong(key, kind.decode(), ttl, owner_is_there not in {None, 0})
                if what:
                    faults[key] = Fault(key.decode(errors="backslashreplace"), what)
    return faults


def _questions(key: bytes) -> tuple[Command, ...]:
    """Its type, its time to live, and whether its owner is there."""
    found = parts(_text(key))
    tag, _, rest = key.partition(b"}:")
    where, member = owner(found[2]) if found else ("", "")
    there: Command = ("ZSCORE", tag + b"}:" + _bytes(where), _bytes(member))
    if not member:
        there = ("EXISTS", tag + b"}:" + _bytes(where) if rest else key)
    return ("TYPE", key), ("PTTL", key), there


def _wrong(key: bytes, kind: str, ttl: int, owner_is_there: bool) -> str:
    """What is wrong with a key; "" if nothing is."""
    found = parts(_text(key))
    listed = row(found[1], found[2]) if found else None
    if found is None or listed is None:
        return "no key of ours has such a name"
    wanted, _, owned_by = listed
    if wanted not in {kind.upper(), "any"}:
        return f"a {kind}, not a {wanted.lower()}"
    if owned_by == "TTL":
        return "has no TTL" if ttl == -1 else ""
    if owned_by != "the user" and not owner_is_there:
        where, member = owner(found[2])
        return f"stayed behind: {member!r} is not in {where}" if member else "stayed behind: the queue has no meta"
    return ""


def _books(prefix: str, queue: str) -> Operation[list[Fault]]:
    """The counts that are kept, against the sizes of what they count; the two are read in one step."""
    keys = QueueKeys(prefix, queue)
    counted = yield QueueBindings(keys, Clock()).counted_and_kept()
    return [
        Fault(f"{keys.base}{name}", f"{there} in there, {kept} by the counts")
        for name, (there, kept) in counted.items()
        if there != kept
    ]


def _text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
