"""The `Parameter` of cyclopts; or a substitute, because `penstock worker` runs without cyclopts (`plain_worker.py`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

PLAIN = "penstock.cli.plain_worker"

if TYPE_CHECKING:
    from cyclopts import Parameter
else:
    try:
        if PLAIN in sys.modules and "cyclopts" not in sys.modules:
            raise ModuleNotFoundError
        from cyclopts import Parameter
    except ModuleNotFoundError:

        class Parameter:
            """The facts that an annotation states about an option. Only its names are used (see `plain_worker.py`)."""

            def __init__(self, name=(), **_):
                self.name = (name,) if isinstance(name, str) else tuple(name)


__all__ = ["Parameter"]
