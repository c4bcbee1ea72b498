"""An aggregate counts the lines of a channel, in one process or in several that share them."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import BadCall, ConfigurationError, Penstock
from penstock.counting import Count, Sum, Uniques, unsettled
from penstock.counting.tally import Tally
from penstock.errors import BlocksMissed, FilesError
from penstock.files import source_reader
from penstock.files.batches import LineBatch
from penstock.files.bindings import ChannelBindings
from penstock.files.channel import Channel
from penstock.files.count_bindings import Totals
from penstock.files.settlement import CountPiece
from penstock.files.upload import Progress
from tests.conftest import Do, Time, until
from tests.counting.counted_lines import (
    MODES,
    by_day,
    some_lines,
    truth,
    written,
)


@pytest.fixture
async def channel(app: Penstock, do: Do) -> AsyncIterator[Channel]:
    made = app.files("access")
    yield made
    await do(made.delete)


@pytest.mark.parametrize("mode", MODES)
async def test_each_line_is_counted_or_rejected(app: Penstock, channel: Channel, do: Do, tmp_path: Path, mode: str):
    lines = some_lines(5000)
    path = written(tmp_path, lines, packed=mode.endswith("gz"))
    send = channel.send_lines if "lines" in mode else channel.send
    await do(send, path, receivers=["by_day"], source="web-7", close=True)
    aggregate = app.aggregate("access")(by_day)
    totals = await do(aggregate.run)
    assert totals == Totals(5000, 4998, 2, ("days",))
    assert await do(aggregate.totals) == totals
    days = truth(lines)[2]
    assert await do(aggregate.table, "days") == days
    assert list((await do(aggregate.table, "days")).values()) == sorted(days.values(), reverse=True)
    assert await do(aggregate.top, "days", 2) == dict(Counter(days).most_common(2))
    assert await do(aggregate.top, "days", 10, offset=8) == dict(Counter(days).most_common()[8:])
    assert await do(aggregate.count, "days", "2026-03-04", "never") == {"2026-03-04": days["2026-03-04"], "never": 0}
    assert await do(aggregate.rejected) == [(path.name, 1667, "no blank"), (path.name, 4999, "no blank")]
    assert [one.source for one in await do(aggregate.rejected)] == ["web-7"] * 2
    assert await do(aggregate.rejected, 1, offset=1) == [(path.name, 4999, "no blank")]
    assert aggregate(LineBatch(lines[:3])) == by_day(lines[:3])


async def test_counts_can_be_read_during_a_run_and_reset(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"words": Counter(map(bytes.decode, lines))})
    assert await do(aggregate.totals) == Totals(0, 0, 0, ())
    assert (await do(aggregate.top, "words"), await do(aggregate.rejected)) == ({}, [])
    await do(channel.send_lines, written(tmp_path, [b"a", b"b", b"a"]), receivers=["agg"])
    assert await do(aggregate.run, wait=0) == Totals(3, 3, 0, ("words",))
    await do(channel.send_lines, written(tmp_path, [b"b", b"b"], "2.log"))
    assert await do(aggregate.top, "words") == {"a": 2, "b": 1}
    assert await do(aggregate.run, wait=0.01) == Totals(5, 5, 0, ("words",))
    assert await do(aggregate.top, "words") == {"b": 3, "a": 2}
    await do(aggregate.reset)
    assert await do(aggregate.totals) == Totals(0, 0, 0, ())
    assert await do(aggregate.table, "words") == {}
    await do(channel.send_lines, written(tmp_path, [b"c"], "3.log"), close=True)
    assert await do(aggregate.run) == Totals(1, 1, 0, ("words",))


async def test_two_receivers_each_count_everything(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    lines = some_lines(3000)
    await do(channel.send_lines, written(tmp_path, lines), receivers=["a", "b"], close=True)
    both = [app.aggregate("access", receiver=name)(by_day) for name in "ab"]
    await asyncio.gather(*(do(one.run) for one in both))
    for one in both:
        assert await do(one.table, "days") == truth(lines)[2]


async def test_a_coroutine_function_is_refused_where_it_is_written(app: Penstock):
    async def counts(lines: Sequence[bytes]) -> Tally:
        return by_day(lines)

    with pytest.raises(ConfigurationError, match=r"write it with def, and await its run\.aio\(\)"):
        app.aggregate("access")(counts)  # type: ignore[arg-type]


async def test_an_error_in_the_function_ends_the_run_and_the_next_run_continues(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None
):
    lines = some_lines(600)
    await do(channel.send_lines, written(tmp_path, lines), receivers=["agg"], close=True)
    left = [5]

    def failing(batch: Sequence[bytes]) -> Tally:
        left[0] -= 1
        if not left[0]:
            raise ZeroDivisionError("a bug")
        return by_day(batch)

    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        await do(app.aggregate("access", receiver="agg")(failing).run)
    (note,) = caught.value.__notes__
    assert re.match(r"raised by failing for lines \d+ to \d+ of access\.log\. The next run gets them again", note), note
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    before = await do(aggregate.totals)
    assert 0 < before.lines < 600
    await do(aggregate.run)
    assert await do(aggregate.table, "days") == truth(lines)[2]
    assert (await do(aggregate.totals)).lines == 600


@pytest.mark.parametrize(
    "take_out",
    [
        lambda batch: batch.pop(),
        lambda batch: batch.clear(),
        lambda batch: batch.__delitem__(0),
        lambda batch: batch.__setitem__(0, b"other"),
        lambda batch: setattr(batch, "first", 7),
    ],
)
async def test_a_function_cannot_take_lines_out_of_its_batch(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, take_out: Callable[[Any], object]
):
    await do(channel.send_lines, written(tmp_path, [b"x", b"y", b"z"]), receivers=["agg"], close=True)

    def spoiling(lines: LineBatch) -> dict[str, dict[str, int]]:
        take_out(lines)
        return {"t": {"k": len(lines)}}

    with pytest.raises((AttributeError, TypeError)):
        await do(app.aggregate("access", receiver="agg")(spoiling).run)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"t": {"k": len(lines)}})
    assert (await do(aggregate.run)).lines == 3
    assert await do(aggregate.table, "t") == {"k": 3}


def test_a_batch_is_a_constant_sequence():
    batch = LineBatch([b"x", b"y"], "a.log", 7)
    assert (list(batch), batch.file, batch.first, len(batch)) == ([b"x", b"y"], "a.log", 7, 2)
    copied = pickle.loads(pickle.dumps(batch))
    assert (copied, copied.file, copied.first) == (batch, "a.log", 7)
    assert (LineBatch().file, LineBatch().first, *LineBatch()) == ("", 1)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "None is neither"),
        (["a"], r"\['a'\] is neither"),
        ({"t": 1}, "'t': 1 is not the name of a table with its counts"),
        ({1: {}}, "1: {} is not the name of a table with its counts"),
        ({"t": {b"a": 1}}, "b'a': 1 in table 't' is not a text with its count"),
        ({"t": {"a": 1.5}}, "'a': 1.5 in table 't'"),
        ({"t": {"a": True}}, "'a': True in table 't'"),
        ({"t": {"a": 2**53}}, "9007199254740992 in table 't'"),
        ({"t": {"half \ud800": 1}}, "in table 't' is not a text with its count"),
        (Tally({}, {3: "why"}), "3: 'why' is not the index of one of 3 lines"),
        (Tally({}, {-1: "why"}), "-1: 'why' is not the index of one of 3 lines"),
        (Tally({}, {0: None}), "0: None is not the index of one of 3 lines"),  # type: ignore[dict-item]
        (Tally({}, ["why"]), "is neither"),  # type: ignore[arg-type]
    ],
)
async def test_a_result_that_is_not_counts_raises_and_nothing_is_counted(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, answer: Any, fault: str
):
    await do(channel.send_lines, written(tmp_path, [b"x", b"y", b"z"]), receivers=["agg"], close=True)

    def odd(lines: Sequence[bytes]) -> Any:
        return answer

    with pytest.raises(BadCall, match=fault) as caught:
        await do(app.aggregate("access", receiver="agg")(odd).run)
    assert str(caught.value).startswith("odd must return counts")
    assert (await do(app.aggregate("access", receiver="agg")(by_day).run)).lines == 3


@pytest.mark.parametrize("kind", [Count(), Sum(), Uniques()], ids=lambda kind: type(kind).__name__)
async def test_tables_whose_names_have_colons_are_apart(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, kind: Count
):
    await do(channel.send_lines, written(tmp_path, [b"x"]), receivers=["agg"], close=True)
    one, other = ({"v"}, {"v", "w"}) if isinstance(kind, Uniques) else (1, 2)
    counted = {"daily": {"country:x": one}, "daily:country": {"x": other}, "daily:country:2026-11-01": {"DE": one}}
    aggregate = app.aggregate("access", receiver="agg", tables=dict.fromkeys(counted, kind))(lambda lines: counted)
    await do(aggregate.run)
    assert await do(aggregate.table, "daily") == {"country:x": 1}
    assert await do(aggregate.table, "daily:country") == {"x": 2}
    assert await do(aggregate.count, "daily:country:2026-11-01", "DE") == {"DE": 1}
    assert set((await do(aggregate.totals)).tables) == set(counted)


async def test_the_name_of_a_table_must_fit_into_a_key(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    await do(channel.send_lines, written(tmp_path, [b"x"]), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"no/slash": {"a": 1}})
    with pytest.raises(ConfigurationError, match="table name 'no/slash'"):
        await do(aggregate.run)
    with pytest.raises(ConfigurationError, match="table name 'a b'"):
        await do(aggregate.top, "a b")
    with pytest.raises(ValueError, match=r"top\(n=0"):
        await do(aggregate.top, "days", 0)
    with pytest.raises(ValueError, match="of 0 keys"):
        await do(aggregate.count, "days")
    with pytest.raises(ValueError, match="1 to 1,000"):
        await do(aggregate.rejected, 1001)
    assert (await do(aggregate.totals)).lines == 0


@pytest.mark.parametrize("share", [False, True])
async def test_a_line_that_is_too_long_is_rejected_once_and_no_other_is_lost(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, share: bool
):
    lines = [b"2026-03-01 a", b"x" * 1_100_000, b"2026-03-01 b", b"2026-03-01 c", b"y" * 3 * source_reader.BLOCK_SIZE]
    path = tmp_path / "long.log"
    path.write_bytes(b"\n".join(lines))
    await do(channel.send_lines, path, receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    assert await do(aggregate.run, share=share) == Totals(5, 3, 2, ("days",))
    rows = sorted(await do(aggregate.rejected))
    assert [row[:2] for row in rows] == [("long.log", 2), ("long.log", 5)]
    assert rows[0][2].startswith("longer than")


async def test_the_last_line_counts_if_a_full_last_block_has_no_line_end(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 24)
    (tmp_path / "full.log").write_bytes(b"2026-03-01 a\n2026-03-01b")
    await do(channel.send_lines, tmp_path / "full.log", receivers=["agg"], close=True)
    assert (await do(app.aggregate("access", receiver="agg")(by_day).run, share=True)).lines == 2


async def test_a_damaged_file_is_noted_and_the_others_are_counted(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path
):
    lines = some_lines(2000)
    packed = written(tmp_path, lines, "b.log", packed=True).read_bytes()
    (tmp_path / "b.log.gz").write_bytes(packed[: len(packed) // 2])
    for name in ("a.log", "c.log"):
        written(tmp_path, lines, name)
    await do(channel.send, tmp_path, receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    totals = await do(aggregate.run)
    assert totals.lines == totals.counted + totals.rejected
    assert 4000 <= totals.lines < 6000
    assert await do(aggregate.count, "days", "2026-03-01") != {"2026-03-01": 0}
    (note,) = [row for row in await do(aggregate.rejected) if row[1] == 0]
    assert "b.log.gz is damaged: it ends at byte" in note[2]


async def test_files_that_were_sent_as_bytes_cannot_be_shared(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    await do(channel.send, written(tmp_path, [b"x y"]), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    with pytest.raises(FilesError, match=r"with share=True, send files with send_lines"):
        await do(aggregate.run, share=True)
    assert (await do(aggregate.totals)).lines == 0


def behind(channel: Channel, receiver: str) -> int:
    info = channel._driver.blocking.run(channel.bindings.info())
    return next(one.behind for one in info.receivers if one.name == receiver)


async def test_missed_blocks_raise_once_and_are_noted(
    app: Penstock, channel: Channel, clock: Time, do: Do, tmp_path: Path
):
    lines = some_lines(60_000)
    await do(channel.open, ["agg", "late"], limit=2 << 20, patience=0.5)
    late, other = (app.aggregate("access", receiver=name)(by_day) for name in ("late", "agg"))
    await do(channel.send_lines, written(tmp_path, some_lines(100, seed=2), "a.log"))
    assert (await do(late.run, wait=0)).lines == 100
    counting, reports = asyncio.create_task(do(other.run)), list[Progress]()
    path = written(tmp_path, lines, "b.log")
    sending = asyncio.create_task(do(channel.send_lines, path, progress=reports.append))
    await until(lambda: reports and reports[-1].waiting)
    await until(lambda: not behind(channel, "agg"))  # else it would be passed over, too
    clock.advance(60)
    await sending
    with pytest.raises(BlocksMissed, match="was away for too long"):
        await do(late.run)
    await do(channel.close)
    totals = await do(late.run)
    assert 100 <= totals.lines < 60_100
    assert totals.lines == totals.counted + totals.rejected
    assert [row[1] for row in await do(late.rejected) if "was away" in row[2]] == [0]
    assert (await counting).lines == 60_100


async def test_many_keys_are_settled_in_several_round_trips(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    lines = [b"%d" % n for n in range(60_000)]
    await do(channel.send, written(tmp_path, lines, packed=True), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"words": Counter(map(bytes.decode, lines))})
    assert await do(aggregate.run) == Totals(60_000, 60_000, 0, ("words",))
    found = await do(aggregate.table, "words")
    assert len(found) == 60_000
    assert set(found.values()) == {1}


@pytest.mark.parametrize("share", [False, True])
async def test_no_round_trip_settles_many_more_keys_than_a_block_has(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, share: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 700)
    monkeypatch.setattr(unsettled, "MAX_KEYS", 50)
    monkeypatch.setattr("penstock.files.shared_stream.CLAIMED_RECORDS", 16)
    lines = [b"%06d" % n for n in range(2000)]  # a hundred in each block
    await do(channel.send_lines, written(tmp_path, lines), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"words": Counter(map(bytes.decode, lines))})
    settled: list[int] = []
    take = unsettled.UnsettledCounts.take

    def noted(counts: unsettled.UnsettledCounts) -> list[CountPiece]:
        settled.append(counts.keys)
        return take(counts)

    monkeypatch.setattr(unsettled.UnsettledCounts, "take", noted)
    assert (await do(aggregate.run)).lines == 2000
    assert max(settled) <= 150
    assert set((await do(aggregate.table, "words")).values()) == {1}


async def test_a_thousand_rejected_lines_are_kept(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    await do(channel.send_lines, written(tmp_path, [b"bad"] * 2500), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    assert await do(aggregate.run) == Totals(2500, 0, 2500, ("days",))
    rows = await do(aggregate.rejected, 1000)
    assert [row[1] for row in rows] == list(range(1, 1001))


@pytest.mark.parametrize("share", [False, True])
async def test_no_call_adds_more_than_a_bounded_number_of_keys(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, share: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 30_000)
    most, decode = [0], msgspec.msgpack.Decoder().decode

    def counting_keys(name: str) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            packed = [more.get("counts", b""), *(counts for _, counts in more.get("settled", ()))]
            packed += args[4:5] if name == "deposit" else []
            tables = [decode(one)[2] for one in packed if one and one[:1] != b"@"]
            most.append(sum(len(values) for table in tables for *_, values in table.values()))
            return calls[name](*args, **more)

        return made

    calls = {name: getattr(ChannelBindings, name) for name in ("receive", "share", "deposit")}
    for name in calls:
        monkeypatch.setattr(ChannelBindings, name, counting_keys(name))
    lines = [b"%04d" % n for n in range(10_000)]  # 6,000 in the first block
    await do(channel.send_lines, written(tmp_path, lines), receivers=["agg"])
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"words": Counter(map(bytes.decode, lines))})
    await do(aggregate.run, share=share, wait=0)
    assert 300 < max(most) <= 800
    assert set((await do(aggregate.table, "words")).values()) == {1}
    assert (await do(aggregate.totals)).lines == 10_000
