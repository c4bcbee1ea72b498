"""Fixtures that run a test on both faces, and on a server, on a cluster, and with a client handed in.

There are six pairs of a face and a place. `--pairs one` runs a test with one of them, and `--pairs rest` with the other
five. `--pairs half` runs it with three: each place once, and each face at least once. Tests take turns, so that no pair
is left to one of these runs alone. A test that names its face and its place runs at least once with each of them.
"""

import zlib
from collections import defaultdict
from typing import Final

import pytest

FACES: Final = ("blocking", "aio")
PLACES: Final = ("valkey", "cluster", "redis")


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add_pairs_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pairs",
        choices=("all", "half", "one", "rest"),
        default="all",
        help="with which pairs of a face and a place the tests run that have both (tests/everywhere.py)",
    )


def keep_pairs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `--pairs` leaves out. `rest` leaves out the tests that have no pairs, too."""
    wanted = config.getoption("pairs")
    if wanted == "all":
        return
    runs = [_runs_of(item) for item in items]
    tests: defaultdict[str, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        tests[_test_of(item)].append(number)
    for test, numbers in tests.items():
        if not any("one" in runs[number] for number in numbers):  # none of its pairs was chosen: one of its items is
            runs[numbers[_turn(test) % len(numbers)]] = ["one", "half"]
    kept = [item for item, own in zip(items, runs, strict=True) if wanted in own]
    left_out = [item for item, own in zip(items, runs, strict=True) if wanted not in own]
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _turn(test: str) -> int:
    return zlib.crc32(test.encode())


def _runs_of(item: pytest.Item) -> list[str]:
    """The values of `--pairs`, besides `all`, with which the chosen pairs of a test run."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    face, place = parameters.get("face"), parameters.get("place")
    if face not in FACES or place not in PLACES:
        return ["one", "half"]
    at_face, at_place = FACES.index(face), PLACES.index(place)
    turn = _turn(_test_of(item))
    runs = ["one" if turn % 6 == 3 * at_face + at_place else "rest"]
    if (turn + at_face + at_place) % 2 == 0:
        runs.append("half")
    return runs
