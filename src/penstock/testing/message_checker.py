"""Checks a history of messages against the promises that mailboxes and chats make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.testing.history import Acknowledged, Event, MessageRead, MessageSent, ReaderOpened


@dataclass(slots=True)
class _Position:
    """The position of a reader in a log. `reopened`: it began again in a new process, and has read nothing since."""

    last: int
    acknowledged: int
    reopened: bool = True


def message_violations(events: Iterable[Event], *, read_all: bool = True) -> list[str]:
    """A sentence for each promise about messages that this history breaks; [] if it breaks none.

    The promises:

    - numbers have no gaps, and each number belongs to one message
    - a reader receives each number once and in order. After it is reopened, it may receive a number again that it had
      not acknowledged
    - missed messages are reported

    events    in the order in which they happened to each reader
    read_all  True: at the end of the history every reader has read its whole log
    """
    events = list(events)
    violations = list(_numbering(events))
    messages = {(one.log, one.number) for one in events if isinstance(one, MessageSent | MessageRead)}
    last_numbers: dict[str, int] = {}
    for log, number in messages:
        last_numbers[log] = max(number, last_numbers.get(log, 0))
    readers: dict[tuple[str, str], _Position] = {}
    for event in events:
        violations += _follow(event, readers)
    if read_all:
        violations += [
            f"{reader} of {log} ended at {position.last}, the last message is {last_numbers[log]}"
            for (log, reader), position in readers.items()
            if position.last < last_numbers.get(log, 0)
        ]
    return violations


def _numbering(events: Iterable[Event]) -> Iterator[str]:
    """Numbers and messages correspond one to one, and the numbers have no gaps."""
    keys: dict[tuple[str, int], str] = {}
    numbers: dict[tuple[str, str], int] = {}
    for event in events:
        if isinstance(event, MessageSent | MessageRead):
            if (key := keys.setdefault((event.log, event.number), event.key)) != event.key:
                yield f"number {event.number} of {event.log} is {key} and {event.key}"
            if (number := numbers.setdefault((event.log, event.key), event.number)) != event.number:
                yield f"{event.key} of {event.log} is number {number} and {event.number}"
    for log in {log for log, _ in keys}:
        used = sorted(number for of_log, number in keys if of_log == log)
        if used and used[-1] - used[0] >= len(used):
            yield f"numbers of {log} have gaps: {len(used)} from {used[0]} to {used[-1]}"


def _follow(event: Event, readers: dict[tuple[str, str], _Position]) -> Iterator[str]:
    """Update the position of the event's reader, and yield a sentence for each broken promise."""
    if isinstance(event, ReaderOpened):
        known = readers.get((event.log, event.reader))
        if event.after >= 0 or known is None:
            readers[event.log, event.reader] = _Position(max(event.after, 0), max(event.after, 0))
        else:
            known.reopened = True
    if isinstance(event, Acknowledged):
        position = readers[event.log, event.reader]
        position.acknowledged = max(position.acknowledged, event.number)
    if isinstance(event, MessageRead):
        position = readers[event.log, event.reader]
        yield from _out_of_order(event, position)
        position.last, position.reopened = event.number, False


def _out_of_order(event: MessageRead, position: _Position) -> Iterator[str]:
    reader = f"{event.reader} of {event.log}"
    before = event.number - event.missed - 1
    if event.number <= position.acknowledged:
        yield f"{reader} received {event.number} after {position.acknowledged} was acknowledged"
    elif event.number <= position.last and not position.reopened:
        yield f"{reader} received {event.number} again, after {position.last}"
    elif not position.reopened and before != position.last:
        yield f"{reader} received {event.number} after {position.last}, with {event.missed} reported missing"
    elif position.reopened and before > position.last:
        yield f"{reader} reopened with {event.number} after {position.last}, with {event.missed} reported missing"
