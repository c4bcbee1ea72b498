"""Deletes everything that an app keeps in the server, so that the next test starts fresh."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.keys import key_pattern
from penstock.errors import ConfigurationError
from penstock.ops.raw_client import delete_keys
from penstock.testing.server import is_temporary


def clear(app: Penstock) -> int:
    """Delete every key under the app's prefix; returns how many there were.

    All jobs and results are lost. To protect production data, it raises ConfigurationError for the default prefix,
    unless the server is the app's own embedded one or a `TemporaryServer`. Works in blocking code
    and inside a running event loop.
    """
    connector, prefix = app._driver.connector, app.settings.prefix
    connector.locate()
    if prefix == type(app.settings)().prefix and not (connector.is_embedded or is_temporary(connector.address)):
        raise ConfigurationError(
            f"clear() would delete everything under {prefix!r} on {connector.address}: "
            "give the tests a prefix of their own, by $PENSTOCK_PREFIX or Penstock(prefix=…)"
        )
    return delete_keys(app, key_pattern(prefix))
