"""Any files, cut any way and sent with any limit, are received once and whole, under any order of round trips and
any deaths.

This also holds if the channel begins again meanwhile: its server falls back to an older state, it is deleted and opened
again, or its stream vanishes. Receivers keep the positions that they have. What they counted is in the server, and
falls back with it. So at the end each item was counted exactly once, and none was skipped."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from penstock import Penstock
from penstock.errors import StateLost
from penstock.files import bindings, exclusive_stream, source_reader, upload
from penstock.files.batches import BatchStream
from penstock.files.channel import Channel
from penstock.files.lines import LONGEST, CutLine, LineCutter
from penstock.files.receiver import BlockStream
from penstock.files.rotation import unpacked_path
from penstock.files.saving import SavingStream
from penstock.files.settlement import when_added
from penstock.files.source import Source
from penstock.files.source_reader import SourceReader
from penstock.messages.message import number_of
from penstock.testing import MovableClock
from penstock.testing.audit.messages import read_state
from tests.conftest import Apps
from tests.files.manual_run import CountingReceiver, ManualRun, NoRenewer, sending
from tests.snapshots import Snapshot, fall_back, take_snapshot

_numbers = itertools.count(1)

MANY_TURNS = 5000

NAMES = ["blocks", "lines", "saved", "shared"]

EXAMPLES = int(os.environ.get("PENSTOCK_SIMULATION", "0"))
"""How many histories are tried. 0: a few."""


@dataclass(frozen=True)
class Plan:
    """The parameters of one run. Sizes are in bytes. `files`: texts, and whether they are packed, of each sender."""

    seed: int
    block: int
    blocks_per_put: int
    records: int
    ready_items: int
    limit: int
    longest: int
    lines: tuple[bool, ...]
    files: tuple[tuple[tuple[bytes, bool], ...], ...]
    deaths: float


pieces = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\xff\x00", b"long" * 6, b"\n\n"]), max_size=24)
texts = st.tuples(pieces.map(b"".join), st.booleans())
plans = st.builds(
    Plan,
    seed=st.integers(0, 10**6),
    block=st.integers(4, 14),
    blocks_per_put=st.integers(1, 3),
    records=st.integers(1, 6),
    ready_items=st.integers(1, 3),
    limit=st.integers(1500, 6000),
    longest=st.sampled_from([3, 10, LONGEST]),
    lines=st.tuples(st.booleans(), st.booleans()),
    files=st.lists(st.lists(texts, min_size=1, max_size=3).map(tuple), min_size=1, max_size=2).map(tuple),
    deaths=st.sampled_from([0.0, 0.02, 0.08]),
)


def shown(line: bytes) -> str:
    return f"{line!r}{'…' * (type(line) is CutLine)}"


def of_batch(batch: Any) -> Counter[str]:
    return Counter(f"{batch.file} {batch.first + at} {shown(line)}" for at, line in enumerate(batch))


def of_block(found: Any) -> Counter[str]:
    return Counter([f"{found.file} {found.offset} {bytes(found)!r}"])


def of_saved(saved: Any) -> Counter[str]:
    return Counter([f"{saved.name} {saved.path.read_bytes()!r}"])


def _stream(channel: Channel, renewer: Any, kind: Any, receiver: str, **more: Any) -> Any:
    """A stream that does not wait."""
    return kind(channel.bindings, channel._driver, renewer, receiver, 0, **more)


class World:
    """A channel with its senders and receivers, on a real server."""

    def __init__(self, app: Penstock, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.turns = 0
        self.channel: Channel = app.files(f"c{next(_numbers)}")
        self.paths: list[list[Path]] = []
        for n, files in enumerate(plan.files):
            (folder / f"in{n}").mkdir()
            self.paths.append([folder / f"in{n}" / f"f{n}{at}{'.gz' * packed}" for at, (_, packed) in enumerate(files)])
            for path, (text, packed) in zip(self.paths[-1], files, strict=True):
                path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
        self.folder = folder / "out"
        self.senders = [self._sender(n) for n in range(len(plan.files))]
        self.clock = MovableClock(app)
        renewer: Any = NoRenewer()
        stream = partial(_stream, self.channel, renewer)

        def blocks() -> CountingReceiver:
            return CountingReceiver(self.channel, lambda: stream(BlockStream, "blocks"), of_block)

        def lines() -> CountingReceiver:
            spool = folder / "spool"
            return CountingReceiver(
                self.channel, lambda: stream(BatchStream, "lines", longest=plan.longest, spool=spool), of_batch
            )

        def shared() -> CountingReceiver:
            return CountingReceiver(
                self.channel, lambda: self.channel.receiver("shared").blocks(wait=0, share=True), of_block
            )

        spooled = any(packed and not plan.lines[n] for n, files in enumerate(plan.files) for _, packed in files)
        self.receivers = {
            "blocks": [blocks(), blocks()],
            "lines": [lines()] if spooled else [lines(), lines()],
            "saved": [
                CountingReceiver(self.channel, lambda: stream(SavingStream, "saved", folder=self.folder), of_saved)
            ],
            "shared": [shared(), shared()],
        }

    def _sender(self, n: int) -> ManualRun:
        return sending(self.channel, self.paths[n], NAMES, lines=self.plan.lines[n], limit=self.plan.limit)

    def run(self) -> None:
        self.channel._driver.blocking.run(self.channel.bindings.open(NAMES, self.plan.limit, None))
        while not all(one.ended for one in self.senders):
            assert self.turns < 30_000, f"no sender makes progress: {self.channel.info()}"
            self._turn()
        assert self.channel.close()
        while not all(one.ended for one in self._everybody()):
            self._turn()

    def _everybody(self) -> list[CountingReceiver]:
        return [one for several in self.receivers.values() for one in several]

    def _turn(self) -> None:
        """One of them advances, dies, leaves or is cancelled; or all receivers freeze for a lease.

        All this happens seldom after a while. Otherwise a receiver might never live long enough to settle anything.
        """
        self.turns += 1
        deaths = self.plan.deaths if self.turns < MANY_TURNS else self.plan.deaths / 10
        sends = [n for n, one in enumerate(self.senders) if not one.ended]
        receives = [one for one in self._everybody() if not one.ended]
        chosen: Any = self.chance.choice([*sends, *receives])
        fate = self.chance.random()
        # Time must pass also without deaths: a process may wait for a lease that nobody has any more.
        if fate > 1 - deaths / 4 or (fate > 0.98 and (not sends or self.turns > MANY_TURNS)):
            self._freeze(receives)
        elif isinstance(chosen, int):
            sent = self.senders[chosen]
            if fate < deaths:
                sent.kill()
                self.senders[chosen] = self._sender(chosen)
            elif not sent.advance() and sent.error is not None:
                self._send_again(chosen, sent.error)
        elif fate < deaths:
            chosen.kill()
        elif fate < deaths * 1.5:
            chosen.leave()
        elif fate < deaths * 2:
            chosen.interrupt()
        else:
            self._advance(chosen)

    def _advance(self, receiver: CountingReceiver) -> None:
        receiver.advance()

    def _send_again(self, n: int, error: Exception) -> None:
        raise error

    def _freeze(self, receives: list[CountingReceiver]) -> None:
        self.clock.advance(11)
        for one in receives:
            if (lease := getattr(one.stream, "_lease", None)) is not None and self.chance.random() < 0.5:
                lease.valid_until -= 11

    def counted(self, receiver: str) -> Counter[str]:
        found: dict[str, int] = self.channel._driver.blocking.run(
            when_added(self.channel.bindings, receiver, self.channel.bindings.top_counts(receiver, "seen", 0, 100_000))
        )
        return Counter(found)

    def wanted(self, receiver: str) -> Counter[str]:
        found = Counter[str]()
        for n, paths in enumerate(self.paths):
            for path, (text, _) in zip(paths, self.plan.files[n], strict=True):
                lines = self.plan.lines[n]
                with SourceReader(Source(path, path.name), lines=lines) as reading:
                    blocks = list(reading.blocks())
                content = b"".join(block.data for block in blocks)
                assert content == (text if lines else path.read_bytes())
                if receiver in {"blocks", "shared"}:
                    found.update(f"{path.name} {block.offset} {block.data!r}" for block in blocks)
                elif receiver == "saved":
                    found[f"{path.name} {content!r}"] += 1
                else:
                    cutter = LineCutter(self.plan.longest)
                    given = [*cutter.feed(text), *cutter.finish()]
                    found.update(f"{path.name} {at} {shown(line)}" for at, line in enumerate(given, 1))
        return found


BEGINNINGS = ["fell back", "deleted", "vanished"]


class BeginningWorld(World):
    """A channel that begins again: after each number of turns in `beginnings`, in this way."""

    def __init__(self, app: Penstock, plan: Plan, folder: Path, raw: Any, beginnings: list[tuple[int, str]]) -> None:
        self.raw = raw
        self.beginnings = beginnings
        self.reports = 0
        self.saved: Snapshot | None = None
        self.has_vanished = False
        super().__init__(app, plan, folder)

    @property
    def keys(self) -> str:
        return self.channel.bindings.keys.base + "*"

    def run(self) -> None:
        self._open()
        for turns, how in self.beginnings:
            self._take_turns(turns)
            self.saved = take_snapshot(self.raw, self.keys)
            self._take_turns(turns % 70)
            self._begin_again(how)
        super().run()

    def _open(self) -> None:
        self.channel._driver.blocking.run(self.channel.bindings.open(NAMES, self.plan.limit, None))

    def _take_turns(self, n: int) -> None:
        for _ in range(n):
            self._turn()

    def _owners(self) -> str:
        return str(self.raw.hgetall(self.channel.bindings.keys.base + "owners"))

    def _begin_again(self, how: str) -> None:
        if how == "vanished" and self.raw.delete(self.channel.bindings.keys.log):
            self.has_vanished = True
            self._take_turns(40)
        owners = self._owners()
        if how == "fell back":
            assert self.saved is not None
            fall_back(self.raw, self.saved, self.keys)
        else:
            self.channel.delete()
            self._open()
        self.clock.advance(1)
        for name, several in self.receivers.items():
            for one in several:
                token = getattr(one.stream, "_token", "no token")
                if token in owners and (token in (now := self._owners()) or f"b'{name}'" not in now):
                    self._judge_report(one)
        # The files are given to `send` again: it looks at what the channel has now.
        for n in range(len(self.senders)):
            self.senders[n].kill()
            self.senders[n] = self._sender(n)

    def _judge_report(self, receiver: CountingReceiver) -> None:
        """A process whose last record is not in the channel any more reports that before it receives another one."""
        position = getattr(receiver.stream, "_position_id", "")
        state = read_state(self.raw.hgetall(self.channel.bindings.keys.declared[1]))
        there = self.raw.xrange(self.channel.bindings.keys.log)
        number = number_of(position) if position else 0
        is_freed = state[b"start"] < number < state[b"first"]  # the channel compares the last freed record only
        if not position or is_freed or position.encode() in {id for id, _ in there}:
            return
        errors, token = len(receiver.errors), receiver.stream._token
        for _ in range(200):
            self._advance(receiver)
            if receiver.stream._token != token:
                return  # it has raised StateLost, or was frozen: it begins at the cursor, and holds no position
            if len(receiver.errors) > errors:
                assert "began again" in receiver.errors[-1]
                self.reports += 1
                return
        raise AssertionError(f"a receiver at {position} does not report that the channel began again: {state}")

    def _advance(self, receiver: CountingReceiver) -> None:
        try:
            receiver.advance()
        except StateLost:
            assert self.has_vanished
            receiver.kill()

    def _send_again(self, n: int, error: Exception) -> None:
        assert self.has_vanished
        assert isinstance(error, StateLost)
        self.senders[n] = self._sender(n)


@pytest.fixture
def place() -> str:
    return "valkey"


@pytest.fixture
def app(apps: Apps) -> Any:
    with apps.make() as made:
        yield made


_LONG = b"long" * 6

# Here a receiver seldom lives long enough to settle what it has pulled: the files arrive, but slowly.
_MANY_DEATHS = Plan(
    seed=131071,
    block=6,
    blocks_per_put=3,
    records=6,
    ready_items=2,
    limit=1500,
    longest=3,
    lines=(False, True),
    files=(
        ((b"a" + _LONG + b"aa\r\nbc\r\na" + _LONG + b"aa" + _LONG + b"\r\n\n\na\xff\x00", False),),
        (
            (b"a" + _LONG + b"\r\n\xff\x00abc\r\na" + _LONG + b"aa" + _LONG + b"a\n\n\na", False),
            (b"a" + _LONG + b"aa\r\na\r\na" + _LONG + b"\ra" + _LONG + b"\r\n\n\n" + _LONG + b"\xff\x00", False),
            (_LONG + _LONG + b"\r\n\xff\x00\r\nbc\r\na" + _LONG + b"\ra" + _LONG + b"\r\n\n\n\n\xff\x00", False),
        ),
    ),
    deaths=0.08,
)


@contextlib.contextmanager
def small_steps(plan: Plan) -> Iterator[Path]:
    """Blocks, batches and replies of the plan's size; and a folder."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(source_reader, "BLOCK_SIZE", plan.block)
        patch.setattr(upload, "BLOCKS_PER_PUT", plan.blocks_per_put)
        patch.setattr(bindings, "DEFAULT_RECORDS", plan.records)
        patch.setattr(bindings, "PULL_BYTES", plan.records * (plan.block + 100))
        patch.setattr(exclusive_stream, "READY_ITEMS", plan.ready_items)
        yield Path(folder)


@example(plan=_MANY_DEATHS)
@given(plan=plans)
@settings(max_examples=EXAMPLES or 30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everything_is_received_once_and_whole(app: Penstock, plan: Plan):
    with small_steps(plan) as folder:
        world = World(app, plan, folder)
        world.run()
        for receiver, several in world.receivers.items():
            assert [one.errors for one in several] == [[]] * len(several)
            assert world.counted(receiver) == world.wanted(receiver), receiver
        assert [path.name for path in world.folder.iterdir() if path.name.startswith(".")] == []
        assert [*folder.glob("spool/*")] == []
        assert world.channel.info().peak <= plan.limit
        world.channel.delete()


# Here the server loses a settlement while its process adds the parts of its counts.
_FALLEN_BACK = Plan(
    seed=12689,
    block=11,
    blocks_per_put=3,
    records=6,
    ready_items=3,
    limit=5000,
    longest=LONGEST,
    lines=(True, True),
    files=(
        ((b"", False), (b"\r\nlonglonglonglonglonglong\r\na\r\r\xff\x00\n\n", False), (b"", True)),
        (
            (b"\n\nbcbc\r\nlonglonglonglonglonglong\n\r\r\n\nbca\n\n\n", True),
            (b"bclonglonglonglonglonglong\n\n", True),
            (b"\rbc\r\n\n\n\ra\rbc\xff\x00\xff\x00alonglonglonglonglonglong\r\n\n\nbc\n", False),
        ),
    ),
    deaths=0.02,
)


# Here a process lost its receiver to another one, and owns it again in the state to which the server falls back.
_OWNED_AGAIN = Plan(
    seed=600,
    block=4,
    blocks_per_put=1,
    records=6,
    ready_items=2,
    limit=2000,
    longest=LONGEST,
    lines=(False, True),
    files=(((b"bcabc", False), (b"\rbca\xff\x00\n\n\n", True), (b"\rbc", False)), ((b"", False),)),
    deaths=0.0,
)


# Here a shared receiver has claims in the state to which the server falls back, which nobody has any more.
_LEASED_AGAIN = Plan(
    seed=1,
    block=4,
    blocks_per_put=1,
    records=1,
    ready_items=1,
    limit=1500,
    longest=3,
    lines=(False, False),
    files=(((b"", True),), ((b"", True),)),
    deaths=0.0,
)

# Here the server falls back into the middle of a packed file, whose lines were given and whose spool is gone.
_SPOOLED = Plan(
    seed=65731,
    block=10,
    blocks_per_put=1,
    records=1,
    ready_items=1,
    limit=1500,
    longest=3,
    lines=(False, False),
    files=(((b"", False), (b"", True)),),
    deaths=0.0,
)


@example(plan=_LEASED_AGAIN, beginnings=[(50, "fell back")])
@example(plan=_SPOOLED, beginnings=[(106, "fell back")])
@example(plan=_FALLEN_BACK, beginnings=[(117, "deleted"), (309, "fell back")])
@example(plan=_OWNED_AGAIN, beginnings=[(347, "fell back")])
@given(
    plan=plans,
    beginnings=st.lists(st.tuples(st.integers(20, 350), st.sampled_from(BEGINNINGS)), min_size=1, max_size=3),
)
@settings(
    max_examples=EXAMPLES or 15,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_channel_that_begins_again_skips_nothing(
    app: Penstock, raw: Any, plan: Plan, beginnings: list[tuple[int, str]]
):
    with small_steps(plan) as folder:
        world = BeginningWorld(app, plan, folder, raw, beginnings)
        world.run()
        for receiver, several in world.receivers.items():
            errors = [error for one in several for error in one.errors if "began again" not in error]
            missing, extra = _difference(world, receiver)
            if receiver in {"saved", "lines"}:
                # The server fell back into the middle of a file that was saved, or whose lines were given, since: this
                # is reported, by name.
                dead = [
                    one.error for one in world.channel.receiver(receiver).dead.list()
                ]  # also of one that was killed
                named = {error.partition(":")[0] for error in errors + dead if "not in /" in error}
                errors = [error for error in errors if "not in /" not in error]
                for text in [text for text in missing if text.partition(" ")[0] in named]:
                    name, _, content = text.partition(" ")
                    if receiver == "saved":
                        saved = [world.folder / one for one in (name, unpacked_path(name))]
                        assert content in [repr(path.read_bytes()) for path in saved if path.exists()]
                    del missing[text]
            assert (errors, missing, extra) == ([], Counter(), Counter()), receiver
        world.channel.delete()


def _difference(world: World, receiver: str) -> tuple[Counter[str], Counter[str]]:
    counted, wanted = world.counted(receiver), world.wanted(receiver)
    return wanted - counted, counted - wanted
