"""The time of the release that defines a task. Of two releases, the numbers of the newer one hold."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from penstock.errors import ConfigurationError

RELEASE: Final = "PENSTOCK_RELEASE"


def release_time(function: Callable[..., Any]) -> float:
    """Seconds since 1970: $PENSTOCK_RELEASE, else the age of the file that defines the function.

    Raises ConfigurationError if $PENSTOCK_RELEASE is neither a number nor a date.
    """
    text = os.environ.get(RELEASE, "")
    if not text:
        file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
        try:
            return os.stat(file).st_mtime if file else 0.0
        except OSError:
            return 0.0
    try:
        return float(text)
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{RELEASE}={text!r}: seconds since 1970, or a date such as 2026-11-23T12:00:00+00:00"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
