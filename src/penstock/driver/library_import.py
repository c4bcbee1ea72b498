"""Imports a client library without what only its import needs.

valkey-py and redis-py ask `importlib.metadata` for their own version when they are imported, and for nothing else. It
imports email, zipfile and others: 1.5 MB and 30 ms of each process. While `import_library` imports the library, a
stand-in answers the question from the name of a folder, and passes anything else on to the real module.

Only `penstock worker` uses it: in a program of its own, no other thread imports anything at that moment.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_METADATA = "importlib.metadata"


def import_library(name: str) -> None:
    """Import a client library and its asyncio part, if it is not imported yet. Raises ImportError."""
    if name in sys.modules or _METADATA in sys.modules:
        return
    sys.modules[_METADATA] = stand_in = _StandIn(_METADATA)
    try:
        import_module(f"{name}.asyncio")
    finally:
        stand_in.leave()


class _StandIn(ModuleType):
    def leave(self) -> None:
        if sys.modules.get(_METADATA) is self:
            del sys.modules[_METADATA]

    def version(self, name: str) -> Any:
        """The version of a package, as the folder beside it says, in which installers keep what they know of it."""
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found = [*Path(spec.origin).parents[1].glob(f"{name}-*.dist-info")]
            if len(found) == 1:
                return found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info")
        return self._real.version(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real, name)

    @property
    def _real(self) -> ModuleType:
        self.leave()
        return import_module(_METADATA)
