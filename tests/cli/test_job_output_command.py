"""`penstock job output`: what a job has emitted, and what it still emits."""

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
    code, out, err = penstock("job", "output", "q:nobody")
    assert (code, out) == (1, "")
    assert "no job q:nobody" in err
