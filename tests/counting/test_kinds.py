"""Tables of an aggregate that hold more than counts: exact sums, extremes, first and last values, uniques, windows."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import BadCall, ConfigurationError, Penstock
from penstock.counting import Count, First, Last, Max, Min, Sum, TimeWindow, Uniques
from penstock.counting import aggregate as counting
from penstock.errors import ChannelError, CountsRefused
from penstock.files.channel import Channel
from tests.conftest import Do, Time
from tests.counting.counted_lines import alone, written


@pytest.fixture
async def channel(app: Penstock, do: Do) -> AsyncIterator[Channel]:
    made = app.files("sales")
    yield made
    await do(made.delete)


def numbered(n: int) -> list[bytes]:
    return [b"%d" % number for number in range(n)]


TABLES: Mapping[str, Any] = {
    "revenue": Sum(places=2),
    "bytes": Sum(),
    "low": Min(),
    "high": Max(places=1),
    "first": First(),
    "last": Last(),
    "visitors": Uniques(),
    "minutes": TimeWindow(60, keep=1000),
    "by_minute": TimeWindow(60, keep=1000, of=Sum(places=1)),
}


def sales(lines: Sequence[bytes]) -> dict[str, Any]:
    """Lines are numbers from 0; their keys are `even` and `odd`."""
    numbers = [int(line) for line in lines]
    tables: dict[str, Any] = {"count": {}, "visitors": {}, "minutes": {}, "by_minute": {}}
    for name, value, better in (
        ("low", lambda n: n - 7, min),
        ("high", lambda n: Decimal(n) / 2, max),
        ("first", lambda n: (n, f"line {n}"), min),
        ("last", lambda n: (n, f"line {n}"), max),
    ):
        tables[name] = {}
        for n in numbers:
            key = ("even", "odd")[n % 2]
            tables[name][key] = better(tables[name].get(key, value(n)), value(n))
    for n in numbers:
        key = ("even", "odd")[n % 2]
        tables["count"][key] = tables["count"].get(key, 0) + 1
        tables["visitors"].setdefault(key, set()).add(f"visitor {n % 500}")
        minute = tables["minutes"].setdefault(n / 10, {})
        minute[key] = minute.get(key, 0) + 1
        tables["by_minute"].setdefault(n / 10, {})["all"] = Decimal("0.1")
    tables["revenue"] = {"all": sum((Decimal(n) / 100 for n in numbers), Decimal(0))}
    tables["bytes"] = {"all": len(numbers) * 2**52}
    return tables


@pytest.mark.parametrize(("share", "in_parts"), [(False, False), (True, False), (True, True)], indirect=["in_parts"])
async def test_every_kind_is_exact_whatever_the_batches(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None, share: bool, in_parts: bool
):
    n = 900
    await do(channel.send_lines, written(tmp_path, numbered(n)), receivers=["sales"], close=True)
    aggregates = [app.aggregate("sales", receiver="sales", tables=TABLES)(sales) for _ in range(2)]
    await asyncio.gather(*(do(one.run, share=share) for one in aggregates[: 1 + share]))
    one = aggregates[0]
    assert (await do(one.totals)).lines == n
    assert await do(one.table, "count") == {"even": n // 2, "odd": n // 2}
    assert await do(one.table, "revenue") == {"all": Decimal(n * (n - 1) // 2) / 100}
    assert await do(one.table, "bytes") == {"all": n * 2**52}
    assert await do(one.table, "low") == {"even": -7, "odd": -6}
    assert await do(one.table, "high") == {"even": Decimal(449), "odd": Decimal("449.5")}
    assert await do(one.table, "first") == {"even": "line 0", "odd": "line 1"}
    assert await do(one.table, "last") == {"even": f"line {n - 2}", "odd": f"line {n - 1}"}
    assert await do(one.count, "last", "odd", "none") == {"odd": f"line {n - 1}", "none": None}
    assert await do(one.count, "low", "none") == {"none": None}
    assert await do(one.count, "revenue", "none") == {"none": 0}
    for visitors in (await do(one.table, "visitors"), await do(one.count, "visitors", "even", "odd")):
        assert visitors == {"even": pytest.approx(250, rel=0.05), "odd": pytest.approx(250, rel=0.05)}
    assert await do(one.windows, "minutes") == [0, 60]
    assert await do(one.table, "minutes", window=59.9) == {"even": 300, "odd": 300}
    assert await do(one.top, "minutes", 1, window=60) in ({"even": 150}, {"odd": 150})
    assert await do(one.table, "by_minute", window=0) == {"all": Decimal("60.0")}
    assert (await do(one.totals)).tables == tuple(sorted({*TABLES, "count"} - {"minutes", "by_minute"}))
    await do(one.reset)
    assert await do(one.table, "revenue") == await do(one.table, "visitors") == {}


async def test_a_window_is_forgotten_when_nothing_was_added_to_it(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, clock: Time
):
    aggregate = app.aggregate("sales", receiver="agg", tables={"minutes": TimeWindow(60, keep=100)})(
        lambda lines: {"minutes": {int(line): {"key": 1} for line in lines}}
    )
    await do(channel.send_lines, written(tmp_path, [b"0", b"61"], "1"), receivers=["agg"])
    await do(aggregate.run, wait=0)
    assert await do(aggregate.windows, "minutes") == [0, 60]
    clock.advance(80)
    await do(channel.send_lines, written(tmp_path, [b"62"], "2"))
    await do(aggregate.run, wait=0)
    clock.advance(40)
    await do(channel.send_lines, written(tmp_path, [b"125"], "3"))
    await do(aggregate.run, wait=0)
    assert await do(aggregate.windows, "minutes") == [60, 120]
    assert await do(aggregate.table, "minutes", window=60) == {"key": 2}


@pytest.mark.parametrize(("share", "in_parts"), [(False, False), (True, False), (False, True)], indirect=["in_parts"])
async def test_an_overflow_is_refused_and_nothing_is_counted(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, share: bool, in_parts: bool
):
    huge = 2**53 - 1
    await do(channel.send_lines, written(tmp_path, [b"x"], "1"), receivers=["agg"])
    first = app.aggregate("sales", receiver="agg")(lambda lines: {"t": {"a": huge, "b": 1}})
    await do(first.run, wait=0, share=share)
    await do(channel.send_lines, written(tmp_path, [b"y", b"z"], "2"))
    second = app.aggregate("sales", receiver="agg")(lambda lines: {"t": {"a": len(lines), "b": 5}})
    for _ in range(2):
        with pytest.raises(CountsRefused, match=r"table 't' of 'agg' would overflow for 'a'.*Nothing was counted"):
            await do(second.run, wait=2 * share, share=share, lease=0.2 if share else None)
        assert await do(first.table, "t") == {"a": huge, "b": 1}
        assert (await do(first.totals)).lines == 1
    third = app.aggregate("sales", receiver="agg")(lambda lines: {"t": {"a": -10, "b": 5}})
    await do(third.run, wait=2, share=share)
    assert await do(first.table, "t") == {"a": huge - 10, "b": 6}  # exact above the limit of the table as a whole
    assert (await do(first.totals)).lines == 3


@pytest.mark.parametrize("in_parts", [False, True], indirect=True)
async def test_the_limits_of_sums_and_uniques_are_refused(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, in_parts: bool
):
    await do(channel.send_lines, written(tmp_path, [b"x"], "1"), receivers=["agg"])

    async def run(tables: dict[str, Any], declared: dict[str, Any]) -> None:
        aggregate = app.aggregate("sales", receiver="agg", tables=declared)(lambda lines: tables)
        await do(aggregate.run, wait=0)

    with pytest.raises(CountsRefused, match="more than 1,000 keys of Uniques"):
        await run({"u": {str(n): ["x"] for n in range(1001)}}, {"u": Uniques()})
    await run({"s": {"k": 2**62 - 1}, "u": {str(n): ["x"] for n in range(1000)}}, {"s": Sum(), "u": Uniques()})
    await do(channel.send_lines, written(tmp_path, [b"y"], "2"))
    with pytest.raises(CountsRefused, match="table 's' of 'agg' would overflow"):
        await run({"s": {"k": 2**60}}, {"s": Sum()})
    with pytest.raises(CountsRefused, match="more than 1,000 keys of Uniques"):
        await run({"u": {"another": ["x"]}}, {"u": Uniques()})
    for declared in ({}, {"s": Max()}, {"s": Sum(places=1)}):
        with pytest.raises(CountsRefused, match="table 's' of 'agg' has the kind 'sum 0' already"):
            await run({"s": {"k": 1}}, declared)
    await run({"u": {"7": [f"text {n}" for n in range(5000)]}}, {"u": Uniques()})
    aggregate = app.aggregate("sales", receiver="agg", tables={"u": Uniques(), "s": Sum()})(lambda lines: {})
    assert await do(aggregate.table, "s") == {"k": 2**62 - 1}
    assert (await do(aggregate.table, "u"))["7"] == pytest.approx(5001, rel=0.03)
    assert len(await do(aggregate.table, "u")) == 1000
    with pytest.raises(ValueError, match="is not sorted"):
        await do(aggregate.top, "u")


@alone
@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (Sum(), 1.5, "neither an int nor a Decimal"),
        (Sum(), True, "neither an int nor a Decimal"),
        (Sum(2), Decimal("0.001"), "more than the 2 decimal places"),
        (Sum(2), Decimal("NaN"), "out of range"),
        (Sum(2), 2**62 // 100 + 1, "out of range"),
        (Min(), 2**53, "out of range"),
        (Max(3), Decimal(10**14), "out of range"),
        (Last(), "x", "is not \\(order, text\\)"),
        (First(), (1, b"x"), "is not \\(order, text\\)"),
        (Uniques(), "abc", "is not a set of texts"),
        (Uniques(), {1}, "is not a set of texts"),
        (TimeWindow(60, 60), 1, "is not seconds since 1970 with their counts"),
        (TimeWindow(60, 60, Sum(1)), {0: {"k": 1.0}}, "neither an int nor a Decimal"),
    ],
)
async def test_a_value_of_another_kind_is_refused(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, kind: Any, value: Any, fault: str
):
    rows = (
        value
        if isinstance(kind, TimeWindow) and isinstance(value, dict)
        else {0 if isinstance(kind, TimeWindow) else "k": value}
    )
    await do(channel.send_lines, written(tmp_path, [b"x"]), receivers=["agg"], close=True)
    aggregate = app.aggregate("sales", receiver="agg", tables={"t": kind})(lambda lines: {"t": rows})
    with pytest.raises(BadCall, match=fault):
        await do(aggregate.run)
    assert (await do(aggregate.totals)).lines == 0


@alone
@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"t": 3}, "table 't': declare Count"),
        ({"t": Sum}, "table 't': declare Count"),
        ({"t": Sum(13)}, "with 0 to 12 places"),
        ({"t": TimeWindow(0, 60)}, "seconds, 1 or more"),
        ({"t": TimeWindow(60, 60, Uniques())}, "cannot be Uniques"),
        ({"a b": Sum()}, "table name 'a b'"),
    ],
)
async def test_a_kind_that_cannot_be_stored_is_refused_where_it_is_declared(app: Penstock, tables: Any, fault: str):
    with pytest.raises(ConfigurationError, match=fault):
        app.aggregate("sales", tables=tables)(sales)


@alone
async def test_a_window_is_named_for_its_table_only(app: Penstock, do: Do):
    aggregate = app.aggregate("sales", tables=TABLES)(sales)
    with pytest.raises(ValueError, match="'minutes' is declared as TimeWindow"):
        await do(aggregate.table, "minutes")
    with pytest.raises(ValueError, match="'count' is not declared as TimeWindow"):
        await do(aggregate.top, "count", window=3)


# --- snapshots ---


async def test_a_snapshot_is_exported(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    await do(channel.send_lines, written(tmp_path, numbered(100)), receivers=["sales"], close=True)
    aggregate = app.aggregate("sales", receiver="sales", tables=TABLES)(sales)
    await do(aggregate.run)
    snapshot = await do(aggregate.snapshot)
    assert snapshot.totals.lines == 100
    assert {"revenue", "count", "minutes@0"} <= set(snapshot.tables)
    snapshot.to_csv(tmp_path / "all.csv")
    rows = list(csv.reader((tmp_path / "all.csv").read_text().splitlines()))
    assert rows[0] == ["table", "key", "value"]
    assert ["revenue", "all", "49.50"] in rows
    assert ["last", "odd", "line 99"] in rows
    for table, type_ in (("count", "int64"), ("revenue", "decimal128(4, 2)"), ("last", "string")):
        arrow = snapshot.to_arrow(table)
        assert str(arrow.schema.field("value").type) == type_
        assert dict(zip(*arrow.to_pydict().values(), strict=True)) == snapshot.tables[table]
    snapshot.to_parquet("revenue", tmp_path / "revenue.parquet")
    assert parquet.read_table(tmp_path / "revenue.parquet").to_pylist() == [{"key": "all", "value": Decimal("49.50")}]
    assert pyarrow.__version__
    only = await do(aggregate.snapshot, "count")
    assert set(only.tables) == {"count"}


@alone
async def test_a_snapshot_has_each_line_in_all_tables_or_in_none(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(counting, "PAGE", 50)
    lines = numbered(2000)
    await do(channel.send_lines, written(tmp_path, lines), receivers=["agg"], close=True)
    aggregate = app.aggregate("sales", receiver="agg")(
        lambda batch: {
            "a": {line.decode()[-2:]: 1 for line in batch},
            "b": {line.decode()[:2]: 1 for line in batch},
            "lines": {"all": len(batch)},
        }
    )

    async def watch() -> int:
        seen = 0
        while True:
            snapshot = await do(aggregate.snapshot)
            if snapshot.tables:
                assert snapshot.tables["lines"] == {"all": snapshot.totals.lines}
                seen += 1
            if snapshot.totals.lines == len(lines):
                return seen

    watching = asyncio.create_task(watch())
    await do(aggregate.run)
    assert await watching >= 1


@alone
async def test_a_snapshot_that_is_never_consistent_is_refused(
    app: Penstock, channel: Channel, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await do(channel.send_lines, written(tmp_path, [b"1"]), receivers=["agg"])
    aggregate = app.aggregate("sales", receiver="agg")(lambda lines: {"a": {"k": 1}})
    await do(aggregate.run, wait=0)
    versions = iter(range(100))
    real: Callable[..., Any] = aggregate._channel.totals

    def changing(receiver: str) -> Any:
        return real(receiver).then(lambda totals: replace(totals, version=next(versions)))

    monkeypatch.setattr(aggregate._channel, "totals", changing)
    with pytest.raises(ChannelError, match="were added during each reading"):
        await do(aggregate.snapshot, wait=0)
    assert Count().places == 0
