"""`penstock job output`: what a job has emitted, and what it still emits."""

import json
import threading

from penstock import Penstock, Retry, current
from penstock.testing import run_jobs
from tests.command_line import Command


def test_the_output_of_a_job_is_printed(penstock: Command, shop: Penstock):
    @shop.task(queue="q", retry=Retry(1, base=0))
    def answer() -> None:
        current().emit("Hello ")
        if current().attempt == 1:
            raise OSError
        current().emit("world")
        current().emit({"n": 1})

    job = answer.enqueue()
    assert penstock("job", "output", job.id) == (0, "", "")
    reading = threading.Timer(0.2, run_jobs, [shop])
    reading.start()
    found = penstock("job", "output", job.id, "--follow")
    reading.join()
    assert found == (0, 'Hello \nHello world{"n": 1}\n', "(attempt 2)\n")
    assert penstock("job", "output", job.id) == found
    assert penstock("job", "output", job.id, "--last", "2") == (0, 'world{"n": 1}\n', "")
    code, out, err = penstock("job", "output", job.id, "--json")
    parts = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(part["chunk"], part["attempt"]) for part in parts] == [
        ("Hello ", 1),
        ("Hello ", 2),
        ("world", 2),
        ({"n": 1}, 2),
    ]
    assert penstock("job", "output", job.id, "--after", parts[2]["id"]) == (0, '{"n": 1}\n', "")
    code, out, err = penstock("job", "output", "q:nobody")
    assert (code, out) == (1, "")
    assert "no job q:nobody" in err
    code, out, err = penstock("job", "output", job.id, "--after", "5")
    assert (code, out) == (2, "")
    assert "--after 5: give the id of a chunk" in err
    code, out, err = penstock("job", "output", job.id, "--last", "0")
    assert (code, out) == (2, "")


def test_a_chunk_as_json_is_one_line_without_control_characters(penstock: Command, shop: Penstock):
    @shop.task(queue="q")
    def answer() -> None:
        current().emit("名\x1b[2J")

    job = answer.enqueue()
    run_jobs(shop)
    code, out, _ = penstock("job", "output", job.id, "--json")
    assert (code, json.loads(out)["chunk"]) == (0, "名\x1b[2J")
    assert "\x1b" not in out
