"""How a sleeper reads its messages; no server."""

import time
from typing import Any

import pytest

from penstock.core.operations import Wait, recheck_delay, wait_until_recheck


@pytest.mark.parametrize(
    ("message", "seconds"), [("0", 0), ("50", 0.05), ("3600000", 3600), ("done", 0), ("", 0), ("-5", 0), ("²", 0)]
)
def test_a_message_says_in_how_many_ms_to_look(message: str, seconds: float):
    assert recheck_delay(message) == seconds


@pytest.mark.parametrize(("pause", "left"), [(20, None), (60, 20)])
def test_who_dozes_sleeps_until_the_earliest_of_pause_deadline_and_messages(pause: float, left: float | None):
    waiter: Any = object()
    nap = wait_until_recheck(waiter, pause, None if left is None else time.monotonic() + left)
    assert seconds_of(next(nap)) == pytest.approx(20, abs=3)
    assert seconds_of(nap.send(["50000"])) == pytest.approx(20, abs=3)
    assert seconds_of(nap.send(["10000", "30000"])) == pytest.approx(10, abs=3)
    assert seconds_of(nap.send([])) == pytest.approx(10, abs=3)
    with pytest.raises(StopIteration):
        nap.send(["come"])


def seconds_of(effect: object) -> float | None:
    assert isinstance(effect, Wait)
    return effect.timeout
