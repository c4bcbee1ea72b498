"""How a waiting operation reads its messages; without a server."""

import time
from typing import Any

import pytest

from penstock.core.operations import Wait, recheck_delay, wait_until_recheck


@pytest.mark.parametrize(
    ("message", "seconds"), [("0", 0), ("50", 0.05), ("3600000", 3600), ("done", 0), ("", 0), ("-5", 0), ("²", 0)]
)
def test_a_message_asks_for_a_recheck_after_so_many_ms(message: str, seconds: float):
    assert recheck_delay(message) == seconds


@pytest.mark.parametrize(("interval", "left"), [(20, None), (60, 20)])
def test_a_wait_lasts_until_the_earliest_of_interval_deadline_and_messages(interval: float, left: float | None):
    listener: Any = object()
    waiting = wait_until_recheck(listener, interval, None if left is None else time.monotonic() + left)
    assert seconds_of(next(waiting)) == pytest.approx(20, abs=3)
    assert seconds_of(waiting.send(["50000"])) == pytest.approx(20, abs=3)
    assert seconds_of(waiting.send(["10000", "30000"])) == pytest.approx(10, abs=3)
    assert seconds_of(waiting.send([])) == pytest.approx(10, abs=3)
    with pytest.raises(StopIteration):
        waiting.send(["anything"])


def seconds_of(effect: object) -> float | None:
    assert isinstance(effect, Wait)
    return effect.timeout
