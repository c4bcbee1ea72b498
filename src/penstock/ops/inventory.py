"""Checks every key of a running app: is it in a key table, does its owner exist, do the counters agree?

The check reads in slices and changes nothing. Because jobs may move between two reads, a key with a problem is read
a second time, and reported only if it has a problem both times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.core.clock import Clock
from penstock.core.keys import key_pattern
from penstock.core.operations import Operation
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.keys import QueueKeys
from penstock.ops.key_tables import kind_of, owner_of, split_key, table_row
from penstock.ops.probe import ask, primaries, scan_keys

KEYS_PER_ROUND_TRIP = 500


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """A key that is not as its table requires, or a counter that disagrees with what it counts."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The result of checking an app's keys. `complete` is False if there were more keys than the limit."""

    keys: int
    complete: bool
    problems: list[KeyProblem]


def take_inventory(prefix: str, most: int | None = None) -> Operation[Inventory]:
    """Check the keys of the app with this prefix, about `most` of them on each server.

    One round trip for each 1000 keys of the server, one for each 500 of the app, and one for each queue.
    """
    keys, complete, problems = 0, True, list[KeyProblem]()
    for node in (yield from primaries()):
        found, all_of_them = yield from scan_keys(node, key_pattern(prefix), most)
        keys, complete = keys + len(found), complete and all_of_them
        suspicious = yield from _check(node, found)
        problems += (yield from _check(node, suspicious)).values()
        for queue in _queues(found):
            problems += yield from _wrong_counts(prefix, queue)
    return Inventory(keys, complete, sorted(problems, key=lambda problem: problem.key))


def _queues(keys: Iterable[bytes]) -> Iterator[str]:
    for key in sorted(keys):
        name = split_key(_text(key))
        if name is not None and name.rest == "meta" and kind_of(name.instance) == "queue":
            yield name.instance


def _check(node: Node, keys: Iterable[bytes]) -> Operation[dict[bytes, KeyProblem]]:
    problems = {}
    remaining = iter(keys)
    while batch := list(islice(remaining, KEYS_PER_ROUND_TRIP)):
        questions = [question for key in batch for question in _questions(key)]
        replies = iter((yield from ask(node, *questions)))
        for key, type_, ttl, owner_exists in zip(batch, replies, replies, replies, strict=True):
            if type_ in {b"none", None}:  # deleted since the scan, or this user may not read it
                continue
            if problem := _problem(key, type_.decode(), ttl, owner_exists not in {None, 0}):
                problems[key] = KeyProblem(key.decode(errors="backslashreplace"), problem)
    return problems


def _questions(key: bytes) -> tuple[Command, ...]:
    """The commands for a key's type, its time to live, and whether its owner exists."""
    name = split_key(_text(key))
    tag, _, rest = key.partition(b"}:")
    owner = owner_of(name.instance, name.rest) if name else None
    if owner is not None and owner.member:
        exists: Command = ("ZSCORE", tag + b"}:" + _bytes(owner.key), _bytes(owner.member))
    else:
        exists = ("EXISTS", tag + b"}:" + _bytes(owner.key if owner else "") if rest else key)
    return ("TYPE", key), ("PTTL", key), exists


def _problem(key: bytes, type_: str, ttl: int, owner_exists: bool) -> str:
    """A phrase that says what is wrong with a key; "" if nothing is."""
    name = split_key(_text(key))
    row = table_row(name.instance, name.rest) if name else None
    if name is None or row is None:
        return "Penstock has no key of this name"
    expected, _, deleted_by = row
    if expected not in {type_.upper(), "any"}:
        return f"a {type_}, not a {expected.lower()}"
    if deleted_by == "TTL":
        return "has no TTL" if ttl == -1 else ""
    if deleted_by != "the user" and not owner_exists:
        owner = owner_of(name.instance, name.rest)
        kind = kind_of(name.instance)
        missing = f"{owner.member!r} is not in {owner.key}" if owner.member else f"the {kind} has no {owner.key}"
        return f"left behind: {missing}"
    return ""


def _wrong_counts(prefix: str, queue: str) -> Operation[list[KeyProblem]]:
    """The queue's counters that disagree with the sizes of what they count. One script reads both."""
    keys = QueueKeys(prefix, queue)
    counts = yield QueueBindings(keys, Clock()).entries_and_counters()
    return [
        KeyProblem(f"{keys.base}{name}", f"has {actual} entries, but the counters say {counted}")
        for name, (actual, counted) in counts.items()
        if actual != counted
    ]


def _text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
