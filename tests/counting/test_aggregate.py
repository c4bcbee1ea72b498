"""Counts are exact: whichever process dies, and whichever reply is lost, each line is counted once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import os
import random
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import BadCall, BlocksMissed, ConfigurationError, FilesError, LeaseLost, Penstock, PenstockError
from penstock.core.operations import Listen, Operation, RoundTrip, Wait
from penstock.counting import aggregate as counting
from penstock.counting.aggregate import Aggregate
from penstock.counting.tally import Tally
from penstock.files import bindings, gunzip, source_reader
from penstock.files.batches import Batch
from penstock.files.bindings import Totals
from penstock.files.channel import Channel
from penstock.files.sender import Progress
from tests.conftest import Apps, Do, Time, until
from tests.driver.proxy import Proxy
from tests.servers import Server
from tests.speed import scaled

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "2"))

MODES = ["send", "send gz", "send_lines", "send_lines gz"]
SHARED = [(mode, share) for mode in MODES for share in (False, True) if not share or "lines" in mode]


def by_day(lines: Sequence[bytes]) -> Tally:
    """Counts lines like `2026-03-02 anything`, and rejects a line without a space."""
    days, bad = Counter[str](), {}
    for place, line in enumerate(lines):
        day, blank, _ = line.partition(b" ")
        if blank:
            days[day.decode()] += 1
        else:
            bad[place] = "no blank"
    return Tally({"days": days}, bad)


def some_lines(n: int, *, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    bad = {n // 3, n - 2}
    return [
        b"garbage"
        if i in bad
        else b"2026-03-%02d %s" % (chance.randint(1, 9), chance.randbytes(chance.randint(0, 40)).hex().encode())
        for i in range(n)
    ]


def written(folder: Path, lines: Sequence[bytes], name: str = "access.log", *, packed: bool = False) -> Path:
    path = folder / (f"{name}.gz" if packed else name)
    text = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    return path


def truth(lines: Sequence[bytes]) -> tuple[int, int, dict[str, int]]:
    """The lines, the rejected lines, and the counts by day that are right."""
    found = by_day(lines)
    return len(lines), len(found.rejected), dict(found.tables["days"])


def counted(aggregate: Aggregate) -> tuple[int, int, dict[str, int]]:
    totals = aggregate.totals()
    assert totals.lines == totals.counted + totals.rejected
    return totals.lines, totals.rejected, aggregate.table("days")


def send(app: Penstock, channel: str, mode: str, *paths: Path, receivers: Sequence[str] = ("agg",)) -> None:
    files = app.files(channel)
    (files.send_lines if "lines" in mode else files.send)(paths, receivers=receivers, close=True, again=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks, pulls and settlements so small that a few thousand lines take many of each."""
    monkeypatch.setattr(source_reader, "BLOCK_SIZE", 1024)
    monkeypatch.setattr(bindings, "PULL_BYTES", 3000)
    monkeypatch.setattr(bindings, "DEFAULT_RECORDS", 1)
    monkeypatch.setattr(counting, "MAX_LINES", 100)
    monkeypatch.setattr(gunzip, "_CHUNK", 256)


alone = pytest.mark.parametrize("place", ["valkey"])
"""For tests of the program itself, which one kind of server is enough for."""


# --- dying processes ---


class ProcessDied(BaseException):
    """Ends an operation. Round trips that it makes on its way out are not sent."""


class SilentListener:
    """Is never notified."""

    address = post = "silent/1"

    def close(self) -> None:
        """There is nothing to close."""


class Process:
    """A process that counts, run effect by effect. `ended`: it reached the end of the channel, or lost its lease."""

    def __init__(self, app: Penstock, aggregate: Aggregate, *, share: bool) -> None:
        self._run = app._driver.blocking.run
        self._operation: Any = Aggregate.run.operation(aggregate, share=share)
        self._answer: Any = None
        self._sent: list[RoundTrip[Any]] = []
        self.ended = False

    def advance(self, *, copies: int = 1) -> None:
        """Perform one effect. `copies`: how often a round trip is sent, because earlier replies were lost."""
        try:
            effect = self._operation.send(self._answer)
        except StopIteration:
            self.ended = True
        except LeaseLost:
            self.ended = True
        else:
            self._answer = self._done(effect, copies)

    def _done(self, effect: Any, copies: int) -> Any:
        if isinstance(effect, Listen):
            return SilentListener()
        if isinstance(effect, Wait):
            return []
        if isinstance(effect, RoundTrip):
            self._sent.append(effect)
        for _ in range(copies if isinstance(effect, RoundTrip) else 1):
            answer = self._run(_alone(effect))
        return answer

    def arrive_late(self, chance: random.Random) -> None:
        """A copy of an earlier round trip arrives."""
        with contextlib.suppress(PenstockError):
            if self._sent:
                self._run(chance.choice(self._sent[-4:]))

    def die(self) -> None:
        with contextlib.suppress(ProcessDied, StopIteration, RuntimeError):
            while True:
                self._operation.throw(ProcessDied())
        self.__dict__.clear()
        gc.collect()  # its claims no longer belong to a living process


def _alone(effect: Any) -> Operation[Any]:
    return (yield effect)


@alone
@pytest.mark.parametrize(("mode", "share"), SHARED)
def test_dying_after_any_round_trip_changes_no_total(apps: Apps, tmp_path: Path, small: None, mode: str, share: bool):
    lines = some_lines(300)
    path = written(tmp_path, lines, packed=mode.endswith("gz"))
    with apps.make() as app:
        clock = Time(app)
        for last in range(1, 200):
            aggregate = app.aggregate(f"c{last}", receiver="agg")(by_day)
            send(app, f"c{last}", mode, path)
            process = Process(app, aggregate, share=share)
            for _ in range(last):
                process.advance()
            ended = process.ended
            process.die()
            clock.advance(60)
            aggregate.run(share=share)
            assert counted(aggregate) == truth(lines), f"died after {last} effects"
            app.files(f"c{last}").delete()
            if ended:
                break
        assert 8 < last < 199


@alone
@pytest.mark.parametrize(("mode", "share"), SHARED)
def test_each_line_is_counted_once_whatever_happens_to_three_processes(
    apps: Apps, raw: Any, tmp_path: Path, small: None, mode: str, share: bool
):
    """They advance in random turns, die, and freeze for longer than their lease. Replies to them are lost, and copies
    of their round trips arrive later."""
    lines = [some_lines(300), some_lines(200, seed=2)]
    paths = [written(tmp_path, some, f"{n}.log", packed=mode.endswith("gz")) for n, some in enumerate(lines)]
    with apps.make() as app:
        clock = Time(app)
        for seed in range(SEEDS):
            chance = random.Random(seed)
            aggregate = app.aggregate(f"c{seed}", receiver="agg")(by_day)
            send(app, f"c{seed}", mode, *paths)
            processes = [Process(app, aggregate, share=share) for _ in range(3)]
            for turn in range(20_000):
                process = chance.choice(processes[: chance.randint(1, 3)])
                for _ in range(chance.randint(1, 12)):
                    process.advance(copies=chance.choice((1, 1, 1, 2, 3)))
                    if process.ended:
                        break
                if chance.random() < 0.2:
                    process.arrive_late(chance)
                if process.ended or chance.random() < 0.1:
                    process.die()
                    processes[processes.index(process)] = Process(app, aggregate, share=share)
                if chance.random() < 0.1:
                    clock.advance(chance.choice((1, 20)))
                if turn % 20 == 0:
                    found = counted(aggregate)
                    assert sum(found[2].values()) == found[0] - found[1], f"seed {seed}"
                    base = app.files(f"c{seed}").bindings.keys.base
                    assert raw.llen(f"{base}ends") == raw.xlen(f"{base}log"), f"seed {seed}"
                    if found[0] >= 500:
                        break
            for process in processes:
                process.die()
            clock.advance(60)
            aggregate.run(share=share)
            assert counted(aggregate) == truth(lines[0] + lines[1]), f"seed {seed}"
            app.files(f"c{seed}").delete()


@pytest.mark.parametrize(("mode", "share"), SHARED)
def test_a_reply_that_is_lost_changes_nothing(
    start: Callable[[], Server], tmp_path: Path, small: None, mode: str, share: bool
):
    lines = some_lines(900)
    proxy = Proxy(start())
    with Penstock(proxy.address) as app:

        def unlucky(batch: Sequence[bytes]) -> Tally:
            proxy.lose_replies(1)
            return by_day(batch)

        send(app, "access", mode, written(tmp_path, lines, packed=mode.endswith("gz")))
        aggregate = app.aggregate("access", receiver="agg")(unlucky)
        aggregate.run(share=share)
        assert proxy.lost > 2
        assert counted(aggregate) == truth(lines)
    proxy.close()


@alone
def test_a_process_that_lost_its_lease_counts_nothing_under_it(apps: Apps, tmp_path: Path, small: None):
    lines = some_lines(300)
    with apps.make() as app:
        clock, held, go_on = Time(app), threading.Event(), threading.Event()

        def away(batch: Sequence[bytes]) -> Tally:
            held.set()
            assert go_on.wait(scaled(30))
            return by_day(batch)

        app.files("access").send_lines(written(tmp_path, lines), receivers=["agg"])
        theirs = app.aggregate("access", receiver="agg")(away)
        slow = threading.Thread(target=theirs.run, kwargs={"share": True, "wait": 0})
        slow.start()
        assert held.wait(scaled(30))
        clock.advance(60)
        aggregate = app.aggregate("access", receiver="agg")(by_day)
        aggregate.run(share=True, wait=0)
        go_on.set()
        slow.join(30)
        assert counted(aggregate) == truth(lines)
        app.files("access").delete()


# --- what is counted ---


@pytest.fixture
async def channel(app: Penstock, do: Do) -> AsyncIterator[Channel]:
    made = app.files("access")
    yield made
    await do(made.delete)


@pytest.mark.parametrize("mode", MODES)
async def test_each_line_is_counted_or_rejected(app: Penstock, channel: Channel, do: Do, tmp_path: Path, mode: str):
    lines = some_lines(5000)
    path = written(tmp_path, lines, packed=mode.endswith("gz"))
    await do(channel.send_lines if "lines" in mode else channel.send, path, receivers=["by_day"], close=True)
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
    assert await do(aggregate.rejected, 1, offset=1) == [(path.name, 4999, "no blank")]
    assert aggregate(Batch(lines[:3])) == by_day(lines[:3])


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
    assert re.fullmatch(r"raised by failing for lines \d+ to \d+ of access\.log, which come again: .*", note), note
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    before = await do(aggregate.totals)
    assert 0 < before.lines < 600
    await do(aggregate.run)
    assert await do(aggregate.table, "days") == truth(lines)[2]
    assert (await do(aggregate.totals)).lines == 600


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "None is none of these"),
        (["a"], r"\['a'\] is none of these"),
        ({"t": 1}, "'t': 1 is no name and its table"),
        ({1: {}}, "1: {} is no name and its table"),
        ({"t": {b"a": 1}}, "b'a': 1 in table 't' is no text and its count"),
        ({"t": {"a": 1.5}}, "'a': 1.5 in table 't'"),
        ({"t": {"a": True}}, "'a': True in table 't'"),
        ({"t": {"a": 2**53}}, "9007199254740992 in table 't'"),
        ({"t": {"half \ud800": 1}}, "in table 't' is no text and its count"),
        (Tally({}, {3: "why"}), "3: 'why' is no place among 3 lines"),
        (Tally({}, {-1: "why"}), "-1: 'why' is no place among 3 lines"),
        (Tally({}, {0: None}), "0: None is no place among 3 lines"),  # type: ignore[dict-item]
        (Tally({}, ["why"]), "is none of these"),  # type: ignore[arg-type]
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
    assert str(caught.value).startswith("odd must answer with counts")
    assert (await do(app.aggregate("access", receiver="agg")(by_day).run)).lines == 3


async def test_the_name_of_a_table_must_fit_into_a_key(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    await do(channel.send_lines, written(tmp_path, [b"x"]), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"no:colon": {"a": 1}})
    with pytest.raises(ConfigurationError, match="table name 'no:colon'"):
        await do(aggregate.run)
    with pytest.raises(ConfigurationError, match="table name 'a b'"):
        await do(aggregate.top, "a b")
    with pytest.raises(ValueError, match=r"top\(n=0"):
        await do(aggregate.top, "days", 0)
    with pytest.raises(ValueError, match="of 0 keys"):
        await do(aggregate.count, "days")
    with pytest.raises(ValueError, match="limit 1 to 1,000"):
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
    with pytest.raises(FilesError, match=r"share needs send_lines\(\)"):
        await do(aggregate.run, share=True)
    assert (await do(aggregate.totals)).lines == 0


async def test_missed_blocks_raise_once_and_are_noted(
    app: Penstock, channel: Channel, clock: Time, do: Do, tmp_path: Path
):
    lines = some_lines(60_000)
    await do(channel.open, ["agg", "late"], limit=2 << 20, patience=0.5)
    late, other = (app.aggregate("access", receiver=name)(by_day) for name in ("late", "agg"))
    await do(channel.send_lines, written(tmp_path, lines[:100], "a.log"))
    assert (await do(late.run, wait=0)).lines == 100
    counting, reports = asyncio.create_task(do(other.run)), list[Progress]()
    path = written(tmp_path, lines, "b.log")
    sending = asyncio.create_task(do(channel.send_lines, path, progress=reports.append))
    await until(lambda: reports and reports[-1].waiting)
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
    monkeypatch.setattr(counting, "MAX_KEYS", 50)
    monkeypatch.setattr("penstock.files.shared_stream.CLAIMED_RECORDS", 16)
    lines = [b"%06d" % n for n in range(2000)]  # a hundred in each block
    await do(channel.send_lines, written(tmp_path, lines), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(lambda lines: {"words": Counter(map(bytes.decode, lines))})
    settled: list[int] = []
    take = counting.UnsettledCounts.take

    def noted(unsettled: counting.UnsettledCounts) -> bytes:
        settled.append(unsettled.keys)
        return take(unsettled)

    monkeypatch.setattr(counting.UnsettledCounts, "take", noted)
    assert (await do(aggregate.run, share=share)).lines == 2000
    assert max(settled) <= 150
    assert set((await do(aggregate.table, "words")).values()) == {1}


async def test_a_thousand_rejected_lines_are_kept(app: Penstock, channel: Channel, do: Do, tmp_path: Path):
    await do(channel.send_lines, written(tmp_path, [b"bad"] * 2500), receivers=["agg"], close=True)
    aggregate = app.aggregate("access", receiver="agg")(by_day)
    assert await do(aggregate.run) == Totals(2500, 0, 2500, ("days",))
    rows = await do(aggregate.rejected, 1000)
    assert [row[1] for row in rows] == list(range(1, 1001))
