"""How much of a job's output one answer of the dashboard has. `tests/browser` looks at the page that asks on."""

import asyncio
from typing import Any

import pytest

from penstock import Penstock, current
from penstock.core.operations import Operation
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.output import JobOutput, OutputPage, pack_block
from penstock.ops.inspect import Inspector
from penstock.testing import run_jobs
from penstock.web import dashboard
from penstock.web.output import MOST_FETCHES, output_of
from tests.speed import scaled
from tests.web.asking import ask


class Talker:
    """A worker whose job emits a chunk of `size` letters before each read of its output, so that no fetch is empty."""

    def __init__(self, app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.size, self.emitted, self.turns = app, 1, 0, 0
        self.job_id = app.queue("q").put("talk").id
        self.bindings: QueueBindings = Inspector(app).jobs.open(self.job_id).shard.bindings
        (claim,) = app._driver.blocking.run(self.turn(want=1)).claims
        self.token = claim.token
        read = JobOutput._read

        def emit_and_read(stream: JobOutput, address: str, *, register: bool) -> Operation[OutputPage]:
            yield self.emit()
            return (yield from read(stream, address, register=register))

        monkeypatch.setattr(JobOutput, "_read", emit_and_read)

    def turn(self, **what: Any) -> Any:
        self.turns += 1
        return self.bindings.turn("w", self.turns, **{"want": 0, "settlements": (), "lease": 60.0, "trial": "", **what})

    def emit(self, n: int = 1) -> Any:
        chunks = [b'"%s"' % (b"x" * self.size)] * n
        first, self.emitted = self.emitted + 1, self.emitted + n
        return self.turn(emitted=[(self.token, pack_block(first, chunks, missed=0, attempt=1))])


@pytest.fixture
def talker(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> Talker:
    return Talker(app, monkeypatch)


def shown(talker: Talker, **which: Any) -> dict[str, Any]:
    async def answer() -> dict[str, Any]:
        async with asyncio.timeout(scaled(20)):
            return await output_of(Inspector(talker.app), talker.job_id, None, **which)

    return asyncio.run(answer())


def test_the_log_is_read_behind_a_line(app: Penstock):
    @app.task(queue="q")
    def work() -> None:
        for n in range(3):
            current().log(f"card 4111 {n}")

    job = work.enqueue()
    run_jobs(app)
    asgi = dashboard(app, mask=lambda value: value.replace("4111", "****"))
    found = ask(asgi, f"/api/log/{job.id}?follow").json()
    assert ([line["text"] for line in found["parts"]], found["ended"]) == ([f"card **** {n}" for n in range(3)], True)
    found = ask(asgi, f"/api/log/{job.id}?after={found['parts'][1]['id']}").json()
    assert [line["text"] for line in found["parts"]] == ["card **** 2"]
    assert ask(asgi, f"/api/log/{job.id}?after=x").status_code == 400
    assert ask(asgi, "/api/log/q:nobody").status_code == 404


def test_an_answer_is_bounded_while_its_job_emits_faster(talker: Talker):
    answer = shown(talker, follows=True)
    assert (len(answer["parts"]), answer["ended"]) == (MOST_FETCHES, False)
    rest = shown(talker, after=answer["parts"][-1]["id"], follows=True)
    assert [part["id"].split("-")[0] for part in rest["parts"]] == [str(MOST_FETCHES + 1)]


def test_earlier_chunks_of_a_job_that_emits_have_no_gap(talker: Talker):
    talker.app._driver.blocking.run(talker.emit(300))
    first = shown(talker)["parts"][-1]["id"]
    number = int(first.split("-")[0])
    answer = shown(talker, before=first)
    assert [int(part["id"].split("-")[0]) for part in answer["parts"]] == list(range(number - 200, number))
    assert answer["earlier"]


def test_chunks_before_those_of_another_output_are_not_shown(talker: Talker):
    assert shown(talker, before="5-17") == {"parts": [], "earlier": False, "ended": False}


def test_a_reader_continues_until_an_answer_has_ended(app: Penstock):
    @app.task(queue="q")
    async def talk() -> None:
        for n in range(8):
            current().emit(f"{n}{'x' * 100_000}")

    job = talk.enqueue()
    run_jobs(app)
    asgi, found, ended, after = dashboard(app), "", False, "1-1"  # a position of another output: from the beginning
    answers = 0
    while not ended:
        answer = ask(asgi, f"/api/output/{job.id}?after={after}").json()
        found += "".join(part["text"][0] for part in answer["parts"])
        after, ended, answers = answer["parts"][-1]["id"], answer["ended"], answers + 1
    assert (found, answers > 1) == ("01234567", True)
