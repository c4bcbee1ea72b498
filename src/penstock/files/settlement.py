"""Settlements of counts: with one call if they have few keys, else in pieces, which are added one by one.

The server runs one script at a time, so a script must not add thousands of keys. Counts of many keys are deposited in
pieces first. One call then commits the deposit and the cursor, both or neither, and further calls add the pieces. If
the process dies before that, the next process that settles or reads the counts adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from penstock.core.ids import mint_id
from penstock.core.operations import Operation, RoundTrip, Sleep
from penstock.files.count_bindings import CountBindings, DeadBatchReply
from penstock.files.replies import ReceiveReply, ShareReply

BUSY_PAUSE = 0.02
"""Seconds after which to settle again, while another settlement deposits its pieces."""


class CountPiece(NamedTuple):
    """Packed counts for `counts.lua`, and how many keys they add."""

    packed: bytes
    keys: int


T = TypeVar("T")
R = TypeVar("R", ReceiveReply, ShareReply, DeadBatchReply)


def settle(
    channel: CountBindings, receiver: str, pieces: Sequence[CountPiece], call: Callable[[bytes], RoundTrip[R]]
) -> Operation[R]:
    """Make the call that settles these counts, again and again while they cannot be added. Its argument is the counts,
    or refers to their deposit. One round trip, and two for each piece if there are several."""
    while True:
        counts, id = b"".join(piece.packed for piece in pieces[:1]), ""
        if len(pieces) > 1:
            counts, id = yield from _deposit(channel, receiver, pieces)
        reply: R = yield call(counts)
        if id:
            yield from add_pieces(channel, receiver, id)
        if not (yield from may_settle_again(channel, receiver, reply.status)):
            return reply


def may_settle_again(channel: CountBindings, receiver: str, status: str) -> Operation[bool]:
    """Whether a settlement with this reply must be repeated, because the counts of another one had to be added first.
    Returns once it may be repeated."""
    if status == "PENDING":
        yield from add_pieces(channel, receiver)
    elif status == "BUSY":
        yield Sleep(BUSY_PAUSE)
    return status in {"PENDING", "BUSY", "LOST"}


def _deposit(channel: CountBindings, receiver: str, pieces: Sequence[CountPiece]) -> Operation[tuple[bytes, str]]:
    """Deposit the pieces. Returns the text that refers to them in a settlement, and the id of the deposit."""
    while True:
        id = mint_id()
        for index, piece in enumerate(pieces):
            status: str = yield channel.deposit(receiver, id, index, piece.packed)
            if (yield from may_settle_again(channel, receiver, status)):
                break
        else:
            return f"@{id} {len(pieces)}".encode(), id


def add_pieces(channel: CountBindings, receiver: str, id: str = "") -> Operation[None]:
    """Add the pieces that a settlement has committed. A deposit with this id that was not committed is removed."""
    while (yield channel.add_piece(receiver, id)):
        pass


def when_added(channel: CountBindings, receiver: str, ask: RoundTrip[T | None]) -> Operation[T]:
    """The answer of a call that reads counts; None means that pieces must be added first. One round trip, and two for
    each of those."""
    while (answer := (yield ask)) is None:
        yield from add_pieces(channel, receiver)
    found: T = answer
    return found
