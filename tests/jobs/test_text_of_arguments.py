"""Jobs are found by a text in their arguments, in bounded slices that say how far they looked."""

import pytest

from penstock import ConfigurationError, Penstock
from penstock.jobs.job_list import job_filter
from tests.conftest import Do


async def test_a_text_in_a_name_or_a_value_of_the_arguments_is_found(app: Penstock, do: Do):
    @app.task(queue="mail")
    async def send(to: str, subject: str = "") -> None: ...

    jobs = {
        to: await do(send.using(delay=delay).enqueue, to, subject='say "hi" \\ 名前')
        for to, delay in (("zoë@example.com", 0), ("bo@example.com", 60))
    }
    found = {
        text: await do(app.queue("mail").jobs(text=text).page)
        for text in ("zoë", "@example", 'say "hi" \\ 名', "subject", "nobody", "mail", "")
    }
    ids = {text: {job.id for job in page.jobs} for text, page in found.items()}
    everyone = {job.id for job in jobs.values()}
    assert ids == {
        "zoë": {jobs["zoë@example.com"].id},
        "@example": everyone,
        'say "hi" \\ 名': everyone,
        "subject": everyone,
        "nobody": set(),
        "mail": set(),
        "": everyone,
    }
    assert all((page.examined, page.of) == (2, 2) for page in found.values())
    assert [job.id for job in (await do(app.queue("mail").jobs(text="example", state="delayed").page)).jobs] == [
        jobs["bo@example.com"].id
    ]


def test_a_bad_text_and_one_of_ended_jobs_are_refused():
    for wrong in ("x" * 201, 7, None, "\ud800"):
        with pytest.raises(ConfigurationError, match="jobs\\(text="):
            job_filter(text=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no arguments are kept"):
        job_filter(state="ended", text="ada")


async def test_jobs_with_a_text_are_cancelled_together(app: Penstock, do: Do):
    queue = app.queue("raw")
    await do(queue.put_many, [{"n": n, "to": "ada" if n % 2 else "bo"} for n in range(10)])
    progress = await do(queue.jobs(text="ada").cancel)
    assert (progress.found, progress.done) == (5, 5)
    assert [item.body["to"] for item in await do(queue.claim, 10)] == ["bo"] * 5
