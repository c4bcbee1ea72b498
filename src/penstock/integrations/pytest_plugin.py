"""The pytest plugin: a server for the test run, and a fresh key space for each test.

pytest loads it in every project where Penstock is installed. It does nothing until a test uses one of its fixtures, or
the option `penstock_app` names an app.

    [tool.pytest]
    penstock_app = "myservice.jobs:app"

penstock         the app in one test, as an `AppUnderTest`
penstock_server  the server of this test run, a `TemporaryServer`; $PENSTOCK_URL is its address
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported when a test needs it, so that other projects do not wait for it
    from penstock.app import Penstock
    from penstock.testing import AppUnderTest, TemporaryServer

_HINT = 'name it in the pytest settings: penstock_app = "myservice.jobs:app"'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("penstock_app", "the app under test, as module:name", default="")
    parser.addini("penstock_check_leaks", "fail tests that leave something in the server", "bool", default=True)


@pytest.fixture(scope="session")
def penstock_server() -> Iterator[TemporaryServer]:
    """A server for this test run, or for this process of pytest-xdist. $PENSTOCK_URL is its address until the end."""
    from penstock.testing import TemporaryServer

    with pytest.MonkeyPatch.context() as environment, TemporaryServer() as server:
        environment.setenv("PENSTOCK_URL", server.address)
        yield server


@pytest.fixture(scope="session", autouse=True)
def _penstock_app_on_test_server(request: pytest.FixtureRequest) -> None:
    """If the settings name an app, every test uses it on the test server only, even a test without our fixtures."""
    if request.config.getini("penstock_app"):
        request.getfixturevalue("penstock_server")


@pytest.fixture
def penstock(request: pytest.FixtureRequest, penstock_server: TemporaryServer) -> Iterator[AppUnderTest]:
    """The app of the settings, in a fresh key space."""
    from penstock.testing import AppUnderTest

    app = _app(str(request.config.getini("penstock_app")))
    _check_server(app, penstock_server)
    test = AppUnderTest(app, check_leaks=bool(request.config.getini("penstock_check_leaks")))
    failures = request.session.testsfailed
    test.begin()
    yield test
    try:
        test.end(failed=request.session.testsfailed > failures)
    finally:
        app.close()


def _app(spec: str) -> Penstock:
    from penstock.app import Penstock

    module, _, name = spec.partition(":")
    if not module:
        raise pytest.UsageError(f"the fixture `penstock` needs an app: {_HINT}")
    try:
        found = reduce(getattr, (name or "app").split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"penstock_app = {spec!r}: {error}; {_HINT}") from error
    if not isinstance(found, Penstock):
        raise pytest.UsageError(f"penstock_app = {spec!r} is a {type(found).__name__}, not a Penstock app; {_HINT}")
    return found


def _check_server(app: Penstock, server: TemporaryServer) -> None:
    """Refuse an app with an address of its own: its data would be deleted."""
    connector = app._driver.connector
    connector.locate()
    if connector.address.partition("?")[0] != server.address:
        raise pytest.UsageError(
            f"the app under test uses {connector.address} and not the server of this test run, so its data would be "
            "deleted: create it without an address, so that it reads $PENSTOCK_URL, and do not use it before the tests"
        )
