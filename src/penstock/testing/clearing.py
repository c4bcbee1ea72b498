"""A fresh start for the next test."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.keys import pattern
from penstock.errors import ConfigurationError


def clear(app: Penstock) -> int:
    """Delete every key of the app's prefix; answers how many there were. Works in either face.

    All jobs and results are gone, so it raises ConfigurationError for the default prefix on a server that is not the
    app's own: it could be production's.
    """
    connector, prefix = app._driver.connector, app.settings.prefix
    client = connector.blocking_client()
    if prefix == type(app.settings)().prefix and not connector.is_embedded:
        raise ConfigurationError(
            f"clear() would delete everything under {prefix!r} on {connector.address}: "
            "give the tests a prefix of their own, by $PENSTOCK_PREFIX or Penstock(prefix=…)"
        )
    found = list(dict.fromkeys(client.scan_iter(match=pattern(prefix), count=1000)))
    pipe = client.pipeline(transaction=False)
    for key in found:
        pipe.unlink(key)
    pipe.execute()
    return len(found)
