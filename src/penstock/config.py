"""Looks up the settings that a program leaves to its user.

    command line  >  PENSTOCK_*  >  [tool.penstock] in the nearest pyproject.toml upward  >  the default in settings.py

The first of these that has a value wins. An argument in the program itself, `Penstock("valkey://…")`, wins over all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, lru_cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

KNOWN = {
    "url": "The address of the server, such as `valkey://host:6379/0`. Default: a server of this folder's own.",
    "prefix": "The beginning of every key. Default: `penstock`.",
    "shards": "With how many shards each of these queues begins: `mail=8,raw=2`, or a table. Default: one.",
    "queues": "What `penstock worker` serves, in strict order: `urgent,mail`, or a list. Default: all, in rotation.",
    "concurrency": "How many jobs a process of `penstock worker` runs at a time. Default: 10.",
    "processes": "How many processes `penstock worker` supervises. 0: no supervisor. Default: 1.",
    "max_jobs": "After this many jobs a worker process is replaced. Default: never.",
    "max_memory": "A worker process that uses more MiB is replaced. Default: never.",
    "release": "What a worker runs; a date, or seconds since 1970, also says which of two releases is newer. "
    "Default: a digest of the tasks, and the age of their files.",
    "seal": "The codec of an app without `settings`, and of the command line: `module:name`, see `Settings.seal`.",
    "database": "The database whose outbox `penstock outbox` and `penstock doctor` use: an address of SQLAlchemy.",
    "log_format": "How `penstock worker` writes its log: `plain` or `json`. Default: `plain`.",
}
"""The names allowed in [tool.penstock], each with its meaning. `PENSTOCK_` and a name in capitals is its variable."""

ENVIRONMENT = {
    "PENSTOCK_EMBEDDED": "`0` forbids a server of the folder's own: without an address, a program fails at once.",
    "PENSTOCK_SERVER": "The program that serves as the folder's own server, by its path or its name on `PATH`.",
    "PENSTOCK_SOURCE": "The name of this host as a sender of files. Default: the name that the system gives it.",
    "PENSTOCK_DEBUG": "`1`: the command line shows the traceback of an error.",
    "PENSTOCK_DASHBOARD_TOKEN": "The token that `penstock dashboard` requires.",
    "PENSTOCK_DASHBOARD_PASSWORD": "The password of the user that `penstock dashboard --user` requires.",
}
"""Variables that have no name in [tool.penstock], each with its meaning."""

PRIVATE = {
    "PENSTOCK_DEMO_QUEUE",
    "PENSTOCK_PARENT_PASSES_STOPS",
    "PENSTOCK_PARENT_PIPE",
    "PENSTOCK_RELOADED",
    "PENSTOCK_SHARED_STATUS",
    "PENSTOCK_TRIAL",
}
"""Variables that processes of Penstock set for each other."""


def project_file(start: Path) -> Path | None:
    """The nearest `pyproject.toml` in `start` or above it."""
    return next((file for folder in (start, *start.parents) if (file := folder / "pyproject.toml").is_file()), None)


@lru_cache(maxsize=4)
def _toml(text: str) -> dict[str, Any]:
    """The last few files are kept: a program with many apps, as a suite of tests is, reads the same one for each."""
    import tomllib  # imported here, because most commands never need it

    return tomllib.loads(text)


class Configuration:
    """Looks settings up by name. `given` is the value from the command line, or None.

    Each method returns None, or () for a list of names, if the setting has no value anywhere. It raises
    ConfigurationError for a value that does not fit; the error names where the value was found.

    start  the folder to look upward from for pyproject.toml; None: the working directory
    """

    def __init__(self, start: Path | None = None) -> None:
        self._start = start or Path.cwd()

    @cached_property
    def _project(self) -> dict[str, Any]:
        """[tool.penstock], with underscores in its names. Raises ConfigurationError for an unknown name."""
        file = project_file(self._start)
        if file is None:
            return {}
        try:
            found = _toml(file.read_text("utf-8")).get("tool", {}).get("penstock", {})
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from None
        table = {name.replace("-", "_"): value for name, value in found.items()}
        if unknown := sorted(set(table) - set(KNOWN)):
            raise ConfigurationError(f"[tool.penstock] in {file}: {unknown[0]!r} is not one of {', '.join(KNOWN)}")
        return table

    def _find(self, name: str, given: Any) -> tuple[str, Any]:
        """Where the value was found, for error messages, and the value."""
        if given is not None:
            return f"--{name.replace('_', '-')}", given
        variable = f"PENSTOCK_{name.upper()}"
        if value := os.environ.get(variable):
            return variable, value
        return f"{name} in [tool.penstock]", self._project.get(name)

    def text(self, name: str, given: str | None = None, among: Sequence[str] = ()) -> str | None:
        """A string; one of `among`, if that is given."""
        source, value = self._find(name, given)
        if value is not None and (not isinstance(value, str) or (among and value not in among)):
            raise ConfigurationError(f"{source}: {value!r} is not {' or '.join(among) or 'a string'}")
        return value

    def number(self, name: str, given: int | None = None) -> int | None:
        """A whole number."""
        source, value = self._find(name, given)
        try:
            return None if value is None else int(str(value))
        except ValueError:
            raise ConfigurationError(f"{source}: {value!r} is not a whole number") from None

    def names(self, name: str, given: str | None = None) -> tuple[str, ...]:
        """A list of names, from a string such as `a,b` or from a list."""
        source, value = self._find(name, given)
        parts = value.split(",") if isinstance(value, str) else value or []
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ConfigurationError(f"{source}: {value!r} is not a list of names, as in a,b")
        return tuple(part.strip() for part in parts if part.strip())

    def numbers(self, name: str) -> dict[str, int]:
        """Whole numbers by name, from a string such as `a=1,b=2` or from a table."""
        source, value = self._find(name, None)
        if isinstance(value, str):
            pairs = (part.partition("=") for part in value.split(",") if part.strip())
            value = {key: number for key, _, number in pairs}
        try:
            return {key.strip(): int(str(number)) for key, number in (value or {}).items()}
        except (AttributeError, ValueError):
            raise ConfigurationError(f"{source}: {value!r} does not give numbers by name, as in mail=8,raw=2") from None

    def loaded(self, name: str) -> Any:
        """The object that a string such as `module:name` names."""
        source, value = self._find(name, None)
        if value is None:
            return None
        module, colon, target = value.partition(":") if isinstance(value, str) else ("", "", "")
        if not (colon and module and target):
            raise ConfigurationError(f"{source}: {value!r} does not name an object, as module:name does")
        try:
            return reduce(getattr, target.split("."), import_module(module))
        except Exception as error:
            raise ConfigurationError(
                f"{source}: {value!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error

    def export(self, name: str, given: str | None = None) -> None:
        """Put the setting into the environment, for an app that is imported later and for child processes.

        Arguments in the app's own code still win over it.
        """
        if value := self.text(name, given):
            os.environ[f"PENSTOCK_{name.upper()}"] = value
