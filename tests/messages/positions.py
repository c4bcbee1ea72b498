"""Positions of messages in tests, which name messages by their numbers."""

from collections.abc import Iterable
from typing import Any

from penstock.messages.message import number_of
from tests.conftest import Do


def numbers_of(ids: Iterable[str]) -> list[int]:
    return [number_of(id) for id in ids]


async def ack(do: Do, reader: Any, number: int) -> None:
    """Acknowledge up to this number, which the reader has not acknowledged yet."""
    mail = await do(reader.pull, 1000)
    await do(reader.ack, next(message for message in mail if message.number == number))
