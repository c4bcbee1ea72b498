"""`penstock queue history`, and the points of the dashboard's charts."""

import json
import time
from typing import Any

import pytest

from penstock import Penstock
from penstock.cli.exits import Exit
from penstock.errors import ConfigurationError
from penstock.jobs.history import Moment
from penstock.ops.inspect import Inspector
from penstock.web.sampler import points, summed
from tests.command_line import Command
from tests.speed import scaled

START = 3_999_999_960  # the start of a minute in the future


def moment(at: float, seconds: float, ready: int, entered: int) -> Moment:
    numbers = dict.fromkeys(Moment.__match_args__[2:], 0) | {"ready": ready, "entered": entered}
    return Moment(at, seconds, **numbers)


def fill(shop: Penstock) -> None:
    """Three enqueues, 10 s apart by the clock of the queue."""
    queue, clock = shop.queue("mail"), shop.clock
    for n in range(3):
        clock.now_ms = 1000 * START + 10_000 * n
        queue.put_many(range(20 * n + 1))
    clock.now_ms = 0


def test_what_a_queue_did_is_listed(shop: Penstock, penstock: Command):
    code, _, err = penstock("queue", "history", "mail")
    assert code == Exit.FAILED
    assert "no queue 'mail'" in err
    fill(shop)
    code, out, _ = penstock("queue", "history", "mail")
    assert code == Exit.OK
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["1", "22"]
    assert [line.split()[-5] for line in out.splitlines()[2:]] == ["0.1", "2.1"]
    _, out, _ = penstock("queue", "history", "mail", "--limit", "1", "--json")
    (last,) = json.loads(out)
    assert (last["at"], last["seconds"], last["ready"], last["entered"]) == (START + 20, 10, 22, 21)
    assert penstock("queue", "history", "mail", "--minutes", "--json") == (Exit.OK, "[]\n", "")


def test_another_interval_is_refused(shop: Penstock):
    wrong: Any = 30
    with pytest.raises(ConfigurationError, match="interval=30: use 10"):
        Inspector(shop).history.moments("mail", interval=wrong)


def test_points_fill_what_is_missing():
    moments = [moment(START + 11, 10, 5, 10), moment(START + 42, 31, 7, 31)]
    shown = points(moments, 10, START + 65)
    assert [(point[0] - START, point[1], point[3]) for point in shown] == [
        (10, 5, 1.0),
        (20, 7, 1.0),
        (30, 7, 1.0),
        (40, 7, 1.0),
        (50, 7, 0.0),
    ]
    assert points([], 10, START) == []
    assert summed([shown, shown[1:]])[:2] == [shown[0], [START + 20, 14, 0, 2.0, 0.0, 0.0]]


def test_points_are_as_old_as_the_history_is_long():
    day = [moment(START, 60, 1, 0), moment(START + 9 * 86400, 9 * 86400, 2, 0)]
    assert len(points(day, 60, START + 9 * 86400)) == 1440
    began = time.perf_counter()
    assert len(points(day[:1], 10, START + 9 * 86400)) < 361
    assert time.perf_counter() - began < scaled(1)
