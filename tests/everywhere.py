"""Fixtures that run a test on both faces, and on a server, on a cluster, and with a client handed in.

`--pairs half` runs a test with half of the six pairs of a face and a place: each place once, and each face at least
once. `--pairs rest` runs the other three. Tests take turns, so that no pair is left to either half alone.
"""

import zlib
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
        choices=("all", "half", "rest"),
        default="all",
        help="with which pairs of a face and a place the tests run that have both (tests/everywhere.py)",
    )


def keep_pairs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `--pairs` leaves out. `rest` leaves out the tests that have no pairs, too."""
    wanted = config.getoption("pairs")
    if wanted == "all":
        return
    kept = [item for item in items if _in_half(item) == (wanted == "half")]
    left_out = [item for item in items if _in_half(item) != (wanted == "half")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _in_half(item: pytest.Item) -> bool:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if parameters.get("face") not in FACES or parameters.get("place") not in PLACES:
        return True
    turn = zlib.crc32(item.nodeid.partition("[")[0].encode())
    return (turn + FACES.index(parameters["face"]) + PLACES.index(parameters["place"])) % 2 == 0
