"""Loads the app that a command line names, as `module:name` or `path/to/file.py:name`."""

from __future__ import annotations

import os
import sys
import traceback
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType

from penstock.app import Penstock
from penstock.errors import ConfigurationError


def load_app(spec: str) -> Penstock:
    """Import the module and return its app. The name is `app` by default.

    Modules in the working directory come first. Raises ConfigurationError with the cause and the fix.
    """
    if "://" in spec:  # it may have a password, so it is not repeated
        raise ConfigurationError("an app is module:name or path/to/file.py:name; --url names the server")
    target, _, name = spec.rpartition(":")
    if not target or not all(part.isidentifier() for part in name.split(".")):
        target, name = spec.removesuffix(":"), "app"
    search_first(Path.cwd())
    module = _load_file(Path(target)) if target.endswith(".py") or os.sep in target else _load_module(target)
    return _app_in(module, target, name)


def _app_in(module: ModuleType, target: str, name: str) -> Penstock:
    found = [label for label, value in vars(module).items() if isinstance(value, Penstock)]
    fix = f"write {target}:{found[0]}" if found else "create one there: app = Penstock()"
    offer = f"its Penstock apps are: {', '.join(found) or 'none'}; {fix}"
    try:
        app = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ConfigurationError(f"{target} has no {name!r}; {offer}") from None
    if not isinstance(app, Penstock):
        raise ConfigurationError(f"{target}:{name} is not a Penstock app but a {type(app).__name__}; {offer}")
    return app


def _load_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        raise ConfigurationError(
            f"no module {name!r} in {Path.cwd()} or among the installed ones; "
            "start in the folder that holds it, or name the file: path/to/tasks.py:app"
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _load_file(path: Path) -> ModuleType:
    """Import a file. A file inside a package is imported as part of it, so that its relative imports work."""
    path = path.absolute()
    if not path.is_file():
        raise ConfigurationError(f"no file {path}")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    name = ".".join(parts).removesuffix(".__init__")
    search_first(folder)
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        raise _import_failed(str(path), error) from error
    if not os.path.samefile(module.__file__ or os.devnull, path):
        raise ConfigurationError(f"{path} is hidden by another module {name!r} ({module.__file__}): rename the file")
    return module


def search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_failed(target: str, error: BaseException) -> ConfigurationError:
    """Names the line in the user's code: the last line outside the import machinery."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    if isinstance(error, SyntaxError):
        location = f"{error.filename}:{error.lineno}"
    else:
        location = f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else target
    return ConfigurationError(f"{target} cannot be imported: {type(error).__name__}: {error} ({location})")
