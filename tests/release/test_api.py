"""A program that was written for the last release works with this one: nothing that it can use is gone or narrower.

`api.txt` is the interface of the last release. A release writes it anew:
`PENSTOCK_WRITE_API=1 .venv/bin/pytest tests/release/test_api.py`. A name leaves as docs/reference/stability.md says.
"""

import os
from pathlib import Path

import pytest

from tests.release.api import breaks, listed

FILE = Path(__file__).with_name("api.txt")


def test_nothing_of_the_last_release_is_gone_or_narrower():
    now = listed()
    if "PENSTOCK_WRITE_API" in os.environ:
        FILE.write_text("\n".join(now) + "\n", "utf-8")
    assert breaks(FILE.read_text("utf-8").splitlines(), now) == []


def test_the_list_has_the_names_that_programs_use():
    now = listed()
    assert (
        "penstock.Queue.claim(n: int = 1, *, wait: float | None = 0.0, lease: float | None = None) -> list[Item]" in now
    )
    assert {"penstock.Penstock", "penstock.Job.id", "penstock.Status.READY", "penstock.errors.LeaseLost"} <= set(now)
    assert len({line.partition("(")[0] for line in now}) == len(now)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("a.f(x)", "", "a.f is gone"),
        ("a.f(x)", "a.f()", "a.f takes no x any more"),
        ("a.f(x)", "a.f(x, y)", "a.f requires y"),
        ("a.f(x=1)", "a.f(x)", "a.f takes x in fewer ways"),
        ("a.f(x)", "a.f(*, x)", "a.f takes x in fewer ways"),
        ("a.f(x, y)", "a.f(y, x)", "a.f has its parameters in another order"),
        ("a.f", "a.f()", "a.f was a value"),
        ("a.f()", "a.f", "a.f was called"),
    ],
)
def test_what_a_program_cannot_do_any_more_is_found(before: str, after: str, fault: str):
    assert breaks([before], [after]) == [fault]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a.f(x)", "a.f(x, y=1)"),
        ("a.f(x)", "a.f(x=2)"),
        ("a.f(*, x=1)", "a.f(*, z=2, x=1)"),
        ("a.f(*, x=1)", "a.f(**all)"),
    ],
)
def test_what_adds_to_an_interface_breaks_nothing(before: str, after: str):
    assert breaks([before], [after, "a.g"]) == []
