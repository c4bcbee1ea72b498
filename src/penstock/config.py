"""What is said about settings outside the program, the nearest first.

    command line  >  PENSTOCK_*  >  [tool.penstock] in the nearest pyproject.toml upward  >  the default in settings.py

An argument in the program itself, `Penstock("valkey://…")`, stands above all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

KNOWN = ("url", "prefix", "concurrency", "processes", "queues", "log_format")


def project_file(start: Path) -> Path | None:
    """The nearest `pyproject.toml` in `start` or above it."""
    return next((file for folder in (start, *start.parents) if (file := folder / "pyproject.toml").is_file()), None)


class Outside:
    """Each question takes what the command line said, or None, and answers None where nobody said anything.

    A value that does not fit raises ConfigurationError naming the place it came from.
    """

    def __init__(self, start: Path | None = None) -> None:
        self._start = start or Path.cwd()

    @cached_property
    def _project(self) -> dict[str, Any]:
        file = project_file(self._start)
        if file is None:
            return {}
        import tomllib  # here, because most commands never get this far

        try:
            said = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("penstock", {})
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        table = {name.replace("-", "_"): value for name, value in said.items()}
        if unknown := sorted(set(table) - set(KNOWN)):
            raise ConfigurationError(f"[tool.penstock] in {file}: {unknown[0]!r} is none of {', '.join(KNOWN)}")
        return table

    def _find(self, name: str, given: Any) -> tuple[str, Any]:
        """Who said it, and what."""
        if given is not None:
            return f"--{name.replace('_', '-')}", given
        variable = f"PENSTOCK_{name.upper()}"
        if value := os.environ.get(variable):
            return variable, value
        return f"{name} in [tool.penstock]", self._project.get(name)

    def text(self, name: str, given: str | None = None, among: Sequence[str] = ()) -> str | None:
        who, value = self._find(name, given)
        if value is not None and (not isinstance(value, str) or (among and value not in among)):
            raise ConfigurationError(f"{who}: {value!r} is not {' or '.join(among) or 'a text'}")
        return value

    def number(self, name: str, given: int | None = None) -> int | None:
        who, value = self._find(name, given)
        try:
            return None if value is None else int(str(value))
        except ValueError:
            raise ConfigurationError(f"{who}: {value!r} is not a whole number") from None

    def names(self, name: str, given: str | None = None) -> tuple[str, ...]:
        """From `a,b` or a list; () where nobody said anything."""
        who, value = self._find(name, given)
        parts = value.split(",") if isinstance(value, str) else value or []
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ConfigurationError(f"{who}: {value!r} is not a list of names, as in a,b")
        return tuple(part.strip() for part in parts if part.strip())

    def hand_on(self, name: str, given: str | None = None) -> None:
        """Let what is said reach the app that is loaded next: by the environment, below its own arguments."""
        if value := self.text(name, given):
            os.environ[f"PENSTOCK_{name.upper()}"] = value
