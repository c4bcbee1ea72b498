"""The `Parameter` of cyclopts; or a substitute without it, because `penstock worker` runs without the extra `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import Parameter
else:
    try:
        from cyclopts import Parameter
    except ModuleNotFoundError:

        class Parameter:
            """The facts that an annotation states about an option. Only its names are used (see `plain_worker.py`)."""

            def __init__(self, name=(), **_):
                self.name = (name,) if isinstance(name, str) else tuple(name)


__all__ = ["Parameter"]
