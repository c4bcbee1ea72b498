"""`penstock job log`: what a job has logged, and what it still logs."""

import json
import threading

from penstock import Penstock, current
from penstock.testing import run_jobs
from tests.command_line import Command


def test_the_log_of_a_job_is_printed(penstock: Command, shop: Penstock):
    @shop.task(queue="q")
    def talk() -> None:
        current().log("began")
        current().log("名\x1b[2J")

    job = talk.enqueue()
    assert penstock("job", "log", job.id) == (0, "", "")
    reading = threading.Timer(0.2, run_jobs, [shop])
    reading.start()
    code, out, err = penstock("job", "log", job.id, "--follow")
    reading.join()
    assert (code, err) == (0, "")
    assert [line.split("  ", 1)[1] for line in out.splitlines()] == ["began", "名\x1b[2J"]
    assert penstock("job", "log", job.id) == (0, out, "")
    code, out, err = penstock("job", "log", job.id, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err, [line["text"] for line in lines]) == (0, "", ["began", "名\x1b[2J"])
    assert "\x1b" not in out
    for words in (("--after", lines[0]["id"]), ("--last", "1")):
        assert [json.loads(line) for line in penstock("job", "log", job.id, *words, "--json")[1].splitlines()] == lines[
            1:
        ]


def test_a_mistake_is_explained(penstock: Command, shop: Penstock):
    job = shop.queue("q").put(1)
    code, out, err = penstock("job", "log", "q:nobody")
    assert (code, out) == (1, "")
    assert "no job q:nobody" in err
    code, out, err = penstock("job", "log", job.id, "--after", "5")
    assert (code, out) == (2, "")
    assert "--after 5: give the id of a line" in err
    code, out, err = penstock("job", "log", job.id, "--after", "5-1", "--last", "1")
    assert (code, out) == (2, "")
    assert "give one of them" in err
    assert penstock("job", "log", job.id, "--last", "0")[0] == 2
