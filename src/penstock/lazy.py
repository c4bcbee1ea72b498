"""Public names that are imported when they are first used (PEP 562), so that `penstock --help` starts at once.

    TYPE_CHECKING = False              a type checker assumes True; to import `typing` would take longer than all else
    if TYPE_CHECKING:
        from penstock.locks.lock import Held, Lock

    __all__: list[str] = []
    _names = LazyNames(__name__, __all__)
    __all__ += ["Held", "Lock"]
    _names.are_in("penstock.locks.lock")
    if not TYPE_CHECKING:              otherwise a type checker would accept any name
        __getattr__, __dir__ = _names.load, _names.listed

A type checker reads the imports and `__all__`, and Python reads `__all__` and the lines between.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_facades: list[LazyNames] = []


class LazyNames:
    """Public names of a module that are defined in other modules. `names`: its `__all__`, which may still grow."""

    def __init__(self, module: str, names: list[str]) -> None:
        self.module, self._names = module, names
        self._homes: dict[str, str] = {}
        _facades.append(self)

    def are_in(self, home: str) -> None:
        """Declare that the module `home` defines the names that were appended since the last call."""
        for name in self._names[len(self._homes) :]:
            self._homes[name] = home

    def load(self, name: str) -> object:
        """The module's `__getattr__`. The next use of the name finds it in the module."""
        if name not in self._homes:
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}")
        value: object = getattr(import_module(self._homes[name]), name)
        setattr(sys.modules[self.module], name, value)
        return value

    def listed(self) -> list[str]:
        """The module's `__dir__`."""
        return [*self._names, *(name for name in vars(sys.modules[self.module]) if name.startswith("__"))]

    def load_all(self) -> None:
        for home in dict.fromkeys(self._homes.values()):
            import_module(home)


_imports_before_fork = True


def fork_without_imports() -> int:
    """`os.fork()` in a process of one thread whose parent and child both use little of Penstock."""
    global _imports_before_fork  # noqa: PLW0603 - read by the hook of the process
    _imports_before_fork = False
    try:
        return os.fork()
    finally:
        _imports_before_fork = True


def _load_before_fork() -> None:
    """Import everything, because a module that another thread is importing would stay locked in the child for ever."""
    if _imports_before_fork and "penstock.app" in sys.modules:
        for facade in _facades:
            facade.load_all()
        for home in ("core.renewal", "driver.aio", "driver.blocking", "driver.pipeline"):
            import_module(f"penstock.{home}")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_load_before_fork)
