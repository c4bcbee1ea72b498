"""Fixtures of the models."""

import faulthandler
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import Server
from tests.simulation.histories import EXAMPLES


@pytest.fixture(scope="module", autouse=True)
def a_long_run_may_take_hours() -> None:
    if EXAMPLES:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a server that each history may flush."""
    with Server() as started:
        yield started.client
