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

import sys
from importlib import import_module

_facades: list[LazyNames] = []


class LazyNames:
    """Public names of a module that are defined in other modules.

    names   its `__all__`, which may still grow
    others  further modules with public names, for the error of a name that is in one of them
    """

    def __init__(self, module: str, names: list[str], *, others: tuple[str, ...] = ()) -> None:
        self.module, self._names, self._others = module, names, others
        self._modules: dict[str, str] = {}
        _facades.append(self)

    def are_in(self, module: str) -> None:
        """Declare that `module` defines the names that were appended since the last call."""
        for name in self._names[len(self._modules) :]:
            self._modules[name] = module

    def load(self, name: str) -> object:
        """The module's `__getattr__`. The next use of the name finds it in the module."""
        if name not in self._modules:
            if (other := self._module_of(name)) is not None:
                # Python replaces the text of an AttributeError if the name stands in a `from … import …`.
                raise ImportError(f"{name} is in {other}: from {other} import {name}", name=self.module)
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}")
        value: object = getattr(import_module(self._modules[name]), name)
        setattr(sys.modules[self.module], name, value)
        return value

    def _module_of(self, name: str) -> str | None:
        """The other module that has this class. One without `__all__` has errors only.

        Python asks here for each of the package's own modules, which begin with a small letter.
        """
        for other in self._others if name[0].isupper() else ():
            module = import_module(other)
            found = vars(module).get(name)
            is_error = isinstance(found, type) and issubclass(found, Exception)
            if name in getattr(module, "__all__", ()) or (is_error and not hasattr(module, "__all__")):
                return other
        return None

    def listed(self) -> list[str]:
        """The module's `__dir__`."""
        return [*self._names, *(name for name in vars(sys.modules[self.module]) if name.startswith("__"))]

    def load_all(self) -> None:
        for module in dict.fromkeys(self._modules.values()):
            import_module(module)


# The folders of the components, which import some of their modules only when a verb is first called.
_FOLDERS = ("core", "driver", "completion", "counting", "files", "jobs", "locks", "messages")

# Other libraries, and parts of Python, that a call may import while another thread forks.
_OTHERS = {"asyncio", "valkey", "libvalkey", "redis", "hiredis"}


def finish_imports() -> None:
    """Before a fork beside other threads: import whatever a thread might be importing at that moment.

    Otherwise the module would stay locked in the child for ever. Takes up to half a second, once. Waits for other
    threads only while they import modules named here: those of a user may never end.
    """
    if len(sys._current_frames()) == 1:
        return
    from pkgutil import iter_modules

    for facade in _facades:
        facade.load_all()
    for folder in _FOLDERS:
        package = import_module(f"penstock.{folder}")
        for found in iter_modules(package.__path__):
            import_module(f"penstock.{folder}.{found.name}")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _OTHERS and getattr(getattr(module, "__spec__", None), "_initializing", False):
            import_module(name)
