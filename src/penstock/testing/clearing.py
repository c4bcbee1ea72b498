"""Deletes everything that an app keeps in the server, so that the next test starts fresh."""

from __future__ import annotations

from typing import Final

from penstock.app import Penstock
from penstock.core.keys import key_pattern
from penstock.errors import ConfigurationError
from penstock.ops.raw_client import delete_keys, has_keys
from penstock.settings import Settings
from penstock.testing.server import is_temporary

_FIX: Final = (
    "run the tests on a TemporaryServer (the pytest fixture `penstock` starts one), or give each test run a new "
    "prefix, by $PENSTOCK_PREFIX or Penstock(prefix=…)"
)

_made_here: set[tuple[str, str]] = set()
"""Address and prefix of each key space that was empty when this process first cleared it."""


def clear(app: Penstock) -> int:
    """Delete every key under the app's prefix; returns how many there were.

    All jobs and results are lost, so `clear` works only where no other program has any: on a `TemporaryServer` of this
    process, or under a prefix of your own that was empty when this process first called `clear`. Anywhere else, such as
    on the server that Penstock keeps in your folder, it raises ConfigurationError and deletes nothing. It can be called
    in blocking code and inside a running event loop.
    """
    connector, prefix = app._driver.connector, app.settings.prefix
    connector.locate()
    address, pattern = connector.address, key_pattern(prefix)
    if not is_temporary(address) and (address, prefix) not in _made_here:
        if prefix == Settings().prefix:
            raise ConfigurationError(
                f"clear() would delete everything under the default prefix {prefix!r} on {address}, which is not a "
                f"temporary server: {_FIX}"
            )
        if has_keys(app, pattern):
            raise ConfigurationError(
                f"clear() would delete data under {prefix!r} on {address} that was there before these tests: {_FIX}"
            )
        _made_here.add((address, prefix))
    return delete_keys(app, pattern)
