"""Random histories of jobs that emit, with lost replies, repeats, deaths, late workers and bounds.

The model has what each output must hold: the chunks of each run that the server accepted, once and in order. It is
compared after every call. PENSTOCK_SIMULATION=<examples> makes the run long and random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from penstock.jobs.claims import Claim, Settlement
from penstock.jobs.output import OutputPage, OutputPart, pack_block, read_after
from tests.jobs.stand import FakeWorker, Stand, problems_in, settlement
from tests.simulation.histories import run_histories

LEASE = 10.0
ENDINGS: list[Any] = [None, None, "retry", "later", "release", "loss", "bury", "drop", "cancel"]


@dataclass
class Output:
    """What a job has emitted: run and chunk. `attempt`: of the last run that emitted."""

    chunks: list[tuple[int, str]] = field(default_factory=list)
    attempt: int = 0
    lives: bool = True


@dataclass
class Run:
    """A claim, and what its worker has sent under it. `number`: of the run; 0 until it emits."""

    claim: Claim
    worker: FakeWorker
    sent: int = 0
    attempt: int = 0


@dataclass
class Reader:
    """One that reads now and then, and keeps its position."""

    key: str
    after: str = ""
    found: list[tuple[int, str]] = field(default_factory=list)


class OutputHistory:
    def __init__(self, client: Any, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.stand = Stand(client)
        self.outputs: dict[str, Output] = {}
        self.runs: list[Run] = []
        self.past: list[Run] = []
        self.readers: list[Reader] = []
        self.serial = 0
        self.begin_worker(), self.begin_worker()

    def begin_worker(self) -> FakeWorker:
        self.serial += 1
        return FakeWorker(self.stand, f"w{self.serial}", LEASE)

    def run(self, steps: int) -> None:
        actions = [self.enqueue, self.claim, *[self.emit] * 6, self.emit_late, self.settle, self.die, *[self.read] * 2]
        for _ in range(steps):
            self.random.choice(actions)()
            self.judge()

    # --- what happens ---

    def enqueue(self) -> None:
        self.serial += 1
        key = f"j{self.serial}"
        self.stand.put(key, ttl=1_000_000)
        self.outputs[key] = Output()

    def turn(self, worker: FakeWorker, *settlements: Settlement, want: int = 0, **options: Any) -> Any:
        """A turn whose reply may be lost: then it is sent again, and changes nothing."""
        reply = worker.turn(want, *settlements, **options)
        if self.random.random() < 0.25:
            before = self.stand.raw_dump()
            again = worker.repeat_turn()
            assert again.alive == reply.alive
            assert {name: held for name, held in self.stand.raw_dump().items() if name.startswith("output:")} == {
                name: held for name, held in before.items() if name.startswith("output:")
            }
        return reply

    def claim(self) -> None:
        worker = self.begin_worker()
        for claim in self.turn(worker, want=2).claims:
            self.runs.append(Run(claim, worker))

    def blocks(self, run: Run, n: int) -> list[tuple[bytes, bytes]]:
        """The next blocks of a run, and what the model expects of them if the worker holds the job."""
        sent = []
        for _ in range(n):
            chunks = [
                f"{run.worker.incarnation}.{run.sent + place}" for place in range(1, self.random.randint(1, 4) + 1)
            ]
            sent.append((run.claim.token, pack(run, chunks)))
            run.sent += len(chunks)
            if run in self.runs:
                output = self.outputs[run.claim.id]
                if not run.attempt:
                    run.attempt = output.attempt = max(output.attempt + 1, run.claim.record.attempts + 1)
                output.chunks += [(run.attempt, chunk) for chunk in chunks]
        return sent

    def emit(self) -> None:
        if self.runs:
            run = self.random.choice(self.runs)
            blocks = self.blocks(run, self.random.randint(1, 3))
            self.turn(run.worker, emitted=blocks)
            if self.random.random() < 0.2:  # in another turn, which the server cannot recognise by its number
                self.turn(run.worker, emitted=blocks)

    def emit_late(self) -> None:
        if self.past:
            run = self.random.choice(self.past)
            self.turn(run.worker, emitted=self.blocks(run, 1))

    def settle(self) -> None:
        if self.runs:
            run = self.runs[self.random.randrange(len(self.runs))]
            blocks = self.blocks(run, self.random.randint(0, 2))
            ending = self.random.choice(ENDINGS)
            self.turn(run.worker, settlement(run.claim, ending), emitted=blocks)
            self.end(run, lives=ending in ("retry", "later", "release", "loss"))

    def die(self) -> None:
        """A worker dies: its lease runs out, and another one takes its jobs back."""
        if self.runs:
            dead = self.random.choice(self.runs).worker
            others = {id(run.worker): run.worker for run in self.runs if run.worker is not dead}
            self.stand.advance(LEASE - 1)
            for other in others.values():
                other.turn()
            self.stand.advance(2)
            self.begin_worker().turn()
            for run in [run for run in self.runs if run.worker is dead]:
                self.end(run, lives=True)

    def end(self, run: Run, *, lives: bool) -> None:
        self.runs.remove(run)
        self.past.append(run)
        self.outputs[run.claim.id].lives = lives

    def read(self) -> None:
        if self.outputs and (not self.readers or self.random.random() < 0.3):
            self.readers.append(Reader(self.random.choice(sorted(self.outputs))))
        for reader in self.readers:
            page = self.page(reader.key, reader.after)
            reader.found += shown(page.parts)
            reader.after = page.parts[-1].id if page.parts else reader.after
            assert reader.found == self.outputs[reader.key].chunks

    # --- what must be ---

    def page(self, key: str, after: str = "") -> OutputPage:
        return self.stand.run(read_after(self.stand.bindings, key, after, "", register=False))

    def judge(self) -> None:
        assert problems_in(self.stand.raw_dump()) == []
        for key, output in self.outputs.items():
            page = self.page(key)
            assert shown(page.parts) == output.chunks
            assert [part.id.partition("-")[0] for part in page.parts] == [str(n + 1) for n in range(len(page.parts))]
            assert {part.missed for part in page.parts} <= {0}
            assert page.lives == output.lives
            if output.chunks:
                assert self.stand.client.pttl(f"{self.stand.base}output:{key}") > 0


def pack(run: Run, chunks: list[str]) -> bytes:
    encoded = [f'"{chunk}"'.encode() for chunk in chunks]
    return pack_block(run.sent + 1, encoded, missed=0, attempt=run.claim.record.attempts + 1)


def shown(parts: list[OutputPart]) -> list[tuple[int, str]]:
    return [(part.attempt, part.chunk) for part in parts]


def test_each_chunk_of_a_run_is_there_once_and_in_order(script_server: Any):
    run_histories(lambda seed: OutputHistory(script_server.client, seed), quick=12, steps=60)
