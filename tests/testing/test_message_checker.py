"""The checker of mailboxes and chats finds each broken promise, and nothing else."""

import pytest

from penstock.testing import message_violations
from penstock.testing.history import Acknowledged, Event, MessageRead, MessageSent, ReaderOpened


def sent(*numbers: int) -> list[Event]:
    return [MessageSent(log="ops", number=number, key=f"m{number}") for number in numbers]


def opened(after: int = -1) -> Event:
    return ReaderOpened(log="ops", reader="ada", after=after)


def received(number: int, missed: int = 0, key: str = "") -> Event:
    return MessageRead(log="ops", reader="ada", number=number, key=key or f"m{number}", missed=missed)


def acked(number: int) -> Event:
    return Acknowledged(log="ops", reader="ada", number=number)


GOOD = [
    [*sent(1, 2, 3), opened(0), received(1), received(2), acked(2), received(3)],
    [*sent(1, 2, 3), opened(0), received(1), acked(1), received(2), opened(), received(2), received(3)],
    [
        *sent(1, 2, 3),
        opened(0),
        received(1),
        received(2),
        opened(),
        received(3),
    ],  # the process died before it learned that its acknowledgement was accepted
    [*sent(1, 2, 3), opened(2), received(3)],
    [*sent(1, 2, 3, 4), opened(0), received(1), received(4, missed=2)],
    [*sent(2, 1), opened(0), received(1), received(2)],
]
BAD = {
    "received 3 after 1, with 0 reported missing": [*sent(1, 2, 3), opened(0), received(1), received(3)],
    "received 1 again, after 2": [*sent(1, 2), opened(0), received(1), received(2), received(1), received(2)],
    "received 1 after 1 was acknowledged": [
        *sent(1, 2),
        opened(0),
        received(1),
        acked(1),
        opened(),
        received(1),
        received(2),
    ],
    "reopened with 3 after 1": [*sent(1, 2, 3), opened(0), received(1), opened(), received(3)],
    "number 1 of ops is m1 and other": [*sent(1), opened(0), received(1, key="other")],
    "m1 of ops is number 1 and 2": [*sent(1), opened(0), received(1), received(2, key="m1")],
    "gaps": [*sent(1, 3), opened(0), received(1), received(3, missed=1)],
    "ended at 1, the last message is 2": [*sent(1, 2), opened(0), received(1)],
    "with 1 reported missing": [*sent(1, 2, 3), opened(0), received(1), received(2, missed=1), received(3)],
}


@pytest.mark.parametrize("events", GOOD)
def test_a_possible_history_has_no_violations(events: list[Event]):
    assert message_violations(events) == []


@pytest.mark.parametrize("message", BAD)
def test_a_broken_promise_is_found(message: str):
    assert message in "\n".join(message_violations(BAD[message]))


def test_a_reader_may_be_behind_if_the_history_is_not_over():
    assert message_violations([*sent(1, 2), opened(0), received(1)], read_all=False) == []
