"""A home for one test, and processes that use its server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.embedded.client import stop
from tests.embedded.users import User


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / ".penstock"
    stop(tmp_path / ".penstock")


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    made: list[User] = []

    def make(home: Path, *wrapper: str, **environment: str) -> User:
        made.append(User(home, *wrapper, **environment))
        return made[-1]

    yield make
    for one in made:
        one.end()
