"""Batches that the function of an aggregate cannot count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock
from penstock.counting import aggregate as counting
from penstock.counting.tally import Tally
from penstock.errors import CountsRefused
from penstock.files.batches import LineBatch
from penstock.files.channel import Channel
from penstock.files.lines import LONGEST
from tests.conftest import Do
from tests.counting.counted_lines import written


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
async def channel(app: Penstock, do: Do) -> AsyncIterator[Channel]:
    made = app.files("access")
    yield made
    await do(made.delete)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "RETRY_PAUSE", 0.0)


class Function:
    """Counts the first letters of lines. Raises for a batch with a line "bad" until it is `mended`."""

    def __init__(self) -> None:
        self.mended = False
        self.failures = 0

    def __call__(self, batch: LineBatch) -> Tally:
        if b"bad" in batch and not self.mended:
            self.failures += 1
            raise LookupError("no such thing")
        return Tally({"letters": Counter(line[:1].decode() for line in batch)})


LINES = [b"%c %d" % (97 + n % 3, n) for n in range(400)]
LINES[200] = b"bad"


def truth(lines: list[bytes]) -> dict[str, int]:
    return dict(Counter(line[:1].decode() for line in lines))


@pytest.mark.parametrize("share", [False, True])
async def test_a_batch_that_cannot_be_counted_is_kept_and_the_rest_is_counted(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None, share: bool
):
    await do(channel.send_lines, written(tmp_path, LINES), receivers=["letters"], source="web-1", close=True)
    function = Function()
    aggregate = app.aggregate("access", receiver="letters", max_attempts=3)(function)
    totals = await do(aggregate.run, share=share)
    (dead,) = await do(aggregate.dead.list)
    assert function.failures == dead.attempts == 3
    assert (dead.source, dead.error, dead.is_retried) == ("web-1", "LookupError: no such thing", False)
    kept = await do(aggregate.dead.lines, dead.id)
    assert [*kept] == LINES[dead.first - 1 : dead.first - 1 + dead.lines]
    assert b"bad" in kept
    assert (totals.lines, totals.dead) == (400 - dead.lines, dead.lines)
    others = [line for line in LINES if line not in set(kept)]
    assert await do(aggregate.table, "letters") == truth(others)

    assert await do(aggregate.dead.retry, dead.id, "77") == 1
    assert (await do(aggregate.dead.list))[0].is_retried
    totals = await do(aggregate.run, share=share)  # it fails once more
    (again,) = await do(aggregate.dead.list)
    assert (again.attempts, again.is_retried, again.died) == (4, False, dead.died)
    assert totals.dead == dead.lines

    function.mended = True
    await do(aggregate.dead.retry, dead.id)
    totals = await do(aggregate.run, share=share)
    assert (totals.lines, totals.dead) == (400, 0)
    assert await do(aggregate.table, "letters") == truth(LINES)
    assert await do(aggregate.dead.list) == []
    assert await do(aggregate.dead.retry, dead.id) == 0


async def test_a_retried_batch_is_counted_once_by_several_processes(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None
):
    await do(channel.send_lines, written(tmp_path, LINES), receivers=["letters"], close=True)
    function = Function()
    aggregate = app.aggregate("access", receiver="letters", max_attempts=1)(function)
    await do(aggregate.run)
    (dead,) = await do(aggregate.dead.list)
    await do(aggregate.dead.retry, dead.id)
    function.mended = True
    await asyncio.gather(*(do(aggregate.run) for _ in range(3)))
    assert (await do(aggregate.totals)).lines == 400
    assert await do(aggregate.table, "letters") == truth(LINES)


async def test_lines_of_a_removed_batch_are_never_counted(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None
):
    await do(channel.send_lines, written(tmp_path, LINES), receivers=["letters"], close=True)
    aggregate = app.aggregate("access", receiver="letters", max_attempts=1)(Function())
    await do(aggregate.run)
    (dead,) = await do(aggregate.dead.list)
    assert await do(aggregate.dead.remove, dead.id, "x") == 1
    totals = await do(aggregate.run)
    assert (totals.lines, totals.dead) == (400 - dead.lines, 0)
    assert [*await do(aggregate.dead.lines, dead.id)] == []


async def test_cut_lines_of_a_dead_batch_stay_rejected(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    lines = [b"a", b"x" * (LONGEST + 1), b"bad", b"c"]
    await do(channel.send, written(tmp_path, lines), receivers=["letters"], close=True)
    function = Function()
    aggregate = app.aggregate("access", receiver="letters", max_attempts=1)(function)
    totals = await do(aggregate.run)
    function.mended = True
    assert totals.lines + totals.dead == 4
    assert totals.rejected == 1
    for dead in await do(aggregate.dead.list):
        await do(aggregate.dead.retry, dead.id)
    totals = await do(aggregate.run)
    assert (totals.lines, totals.rejected, totals.dead) == (4, 1, 0)
    assert [row.line for row in await do(aggregate.rejected)] == [2]


async def test_the_number_of_dead_batches_is_bounded_and_nothing_is_lost(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None
):
    lines = [b"bad"] * 100_000  # 400 blocks of a kilobyte
    await do(channel.send_lines, written(tmp_path, lines), receivers=["letters"], close=True)
    function = Function()
    aggregate = app.aggregate("access", receiver="letters", max_attempts=1)(function)
    with pytest.raises(CountsRefused, match=r"has 256 dead batches already.*penstock dead ls counts:access:letters"):
        await do(aggregate.run)
    dead = await do(aggregate.dead.list)
    assert len(dead) == 256
    await do(aggregate.dead.retry, *(batch.id for batch in dead))
    function.mended = True
    totals = await do(aggregate.run)
    assert (totals.lines, totals.dead) == (100_000, 0)


async def test_a_block_whose_processes_die_becomes_a_dead_batch(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(counting, "MAX_DELIVERIES", 2)
    await do(channel.send_lines, written(tmp_path, LINES), receivers=["letters"], close=True)
    function = Function()
    function.mended = True
    aggregate = app.aggregate("access", receiver="letters", max_attempts=5)(function)
    for _ in range(2):
        stream: Any = aggregate.receiver.blocks(share=True, lease=0.05)
        await do(stream.fetch)
        stream._stop_renewing()  # as if its process died
        await asyncio.sleep(0.1)
    totals = await do(aggregate.run, share=True)
    (dead,) = await do(aggregate.dead.list)
    assert dead.error == "delivered 2 times, and never counted"
    assert (totals.lines, totals.dead) == (0, 400)


@pytest.mark.parametrize("attempts", [0, 101])
async def test_attempts_out_of_range_are_refused(app: Penstock, attempts: int):
    with pytest.raises(ConfigurationError, match="1 to 100"):
        app.aggregate("access", receiver="letters", max_attempts=attempts)(Function())
