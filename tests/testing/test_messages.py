"""The checker of mailboxes and chats finds each thing that must not be, and only that."""

import pytest

from penstock.testing import message_faults
from penstock.testing.history import Acked, Event, Opened, Read, Sent


def sent(*numbers: int) -> list[Event]:
    return [Sent(log="ops", number=number, key=f"m{number}") for number in numbers]


def opened(after: int = -1) -> Event:
    return Opened(log="ops", reader="ada", after=after)


def got(number: int, missed: int = 0, key: str = "") -> Event:
    return Read(log="ops", reader="ada", number=number, key=key or f"m{number}", missed=missed)


def acked(number: int) -> Event:
    return Acked(log="ops", reader="ada", number=number)


GOOD = [
    [*sent(1, 2, 3), opened(0), got(1), got(2), acked(2), got(3)],
    [*sent(1, 2, 3), opened(0), got(1), acked(1), got(2), opened(), got(2), got(3)],
    [*sent(1, 2, 3), opened(0), got(1), got(2), opened(), got(3)],  # its ack was done, its process died before it knew
    [*sent(1, 2, 3), opened(2), got(3)],
    [*sent(1, 2, 3, 4), opened(0), got(1), got(4, missed=2)],
    [*sent(2, 1), opened(0), got(1), got(2)],
]
BAD = {
    "was given 3 after 1, told of 0": [*sent(1, 2, 3), opened(0), got(1), got(3)],
    "was given 1 again, after 2": [*sent(1, 2), opened(0), got(1), got(2), got(1), got(2)],
    "was given 1 after 1 was acknowledged": [*sent(1, 2), opened(0), got(1), acked(1), opened(), got(1), got(2)],
    "began anew with 3 after 1": [*sent(1, 2, 3), opened(0), got(1), opened(), got(3)],
    "number 1 of ops is m1 and other": [*sent(1), opened(0), got(1, key="other")],
    "m1 of ops is number 1 and 2": [*sent(1), opened(0), got(1), got(2, key="m1")],
    "holes": [*sent(1, 3), opened(0), got(1), got(3, missed=1)],
    "ended at 1, the last message is 2": [*sent(1, 2), opened(0), got(1)],
    "told of 1 missing": [*sent(1, 2, 3), opened(0), got(1), got(2, missed=1), got(3)],
}


@pytest.mark.parametrize("events", GOOD)
def test_what_can_be_has_no_fault(events: list[Event]):
    assert message_faults(events) == []


@pytest.mark.parametrize("complaint", BAD)
def test_what_cannot_be_is_told(complaint: str):
    assert complaint in "\n".join(message_faults(BAD[complaint]))


def test_a_reader_may_still_be_behind_while_the_history_goes_on():
    assert message_faults([*sent(1, 2), opened(0), got(1)], read_all=False) == []
