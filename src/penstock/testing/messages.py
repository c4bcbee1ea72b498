"""Can this history be true of mailboxes and chats where nothing is missed?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.testing.history import Acked, Event, Opened, Read, Sent


@dataclass(slots=True)
class _Reader:
    """How far a reader is. `fresh`: its process began anew and has read nothing yet."""

    last: int
    acked: int
    fresh: bool = True


def message_faults(events: Iterable[Event], *, read_all: bool = True) -> list[str]:
    """One sentence for each thing that cannot be: [] is the good answer.

    `events` stand in the order in which they happened to each reader. Numbers are dense and each is one message. A
    reader is given each number once and in order; a second time only after it began anew, and only what was not
    acknowledged. What is missing was told. `read_all`: the history ends with every reader at the end of its log.
    """
    events = list(events)
    faults = list(_numbers(events))
    keys = {(one.log, one.number): one.key for one in events if isinstance(one, Sent | Read)}
    tops: dict[str, int] = {}
    for log, number in keys:
        tops[log] = max(number, tops.get(log, 0))
    readers: dict[tuple[str, str], _Reader] = {}
    for event in events:
        faults += _judged(event, readers)
    if read_all:
        faults += [
            f"{reader} of {log} ended at {one.last}, the last message is {tops[log]}"
            for (log, reader), one in readers.items()
            if one.last < tops.get(log, 0)
        ]
    return faults


def _numbers(events: Iterable[Event]) -> Iterator[str]:
    """Each number is one message, and each message one number."""
    known: dict[tuple[str, int], str] = {}
    taken: dict[tuple[str, str], int] = {}
    for event in events:
        if isinstance(event, Sent | Read):
            if (key := known.setdefault((event.log, event.number), event.key)) != event.key:
                yield f"number {event.number} of {event.log} is {key} and {event.key}"
            if (number := taken.setdefault((event.log, event.key), event.number)) != event.number:
                yield f"{event.key} of {event.log} is number {number} and {event.number}"
    for log in {log for log, _ in known}:
        numbers = sorted(number for place, number in known if place == log)
        if numbers and numbers[-1] - numbers[0] >= len(numbers):
            yield f"numbers of {log} have holes: {len(numbers)} from {numbers[0]} to {numbers[-1]}"


def _judged(event: Event, readers: dict[tuple[str, str], _Reader]) -> Iterator[str]:
    if isinstance(event, Opened):
        known = readers.get((event.log, event.reader))
        if event.after >= 0 or known is None:
            readers[event.log, event.reader] = _Reader(max(event.after, 0), max(event.after, 0))
        else:
            known.fresh = True
    if isinstance(event, Acked):
        reader = readers[event.log, event.reader]
        reader.acked = max(reader.acked, event.number)
    if isinstance(event, Read):
        reader = readers[event.log, event.reader]
        yield from _given(event, reader)
        reader.last, reader.fresh = event.number, False


def _given(event: Read, reader: _Reader) -> Iterator[str]:
    who = f"{event.reader} of {event.log}"
    if event.number <= reader.acked:
        yield f"{who} was given {event.number} after {reader.acked} was acknowledged"
    elif event.number <= reader.last and not reader.fresh:
        yield f"{who} was given {event.number} again, after {reader.last}"
    elif not reader.fresh and event.number - event.missed - 1 != reader.last:
        yield f"{who} was given {event.number} after {reader.last}, told of {event.missed} missing"
    elif reader.fresh and event.number - event.missed - 1 > reader.last:
        yield f"{who} began anew with {event.number} after {reader.last}, told of {event.missed} missing"
