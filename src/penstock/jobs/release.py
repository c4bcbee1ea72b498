"""The release of an app: its name, a code for the calls that it can read, and the time from which its numbers hold."""

from __future__ import annotations

import enum
import hashlib
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.config import Configuration
from penstock.core.arguments import is_text, shown
from penstock.errors import ConfigurationError
from penstock.models import fields_of

RELEASE: Final = "PENSTOCK_RELEASE"

_LONGEST: Final = 64
"""Bytes of a name. It is stored with each worker and with each failure."""

_CODE_BYTES: Final = 6

_SECONDS: Final = re.compile(r"\d{10,11}(\.\d+)?$")


class Release(msgspec.Struct, frozen=True):
    """What a worker reports about its code.

    name   as it was given; else the code
    code   the same in two workers that can read the same calls: a digest of the name that was given and of all tasks
           with their parameters. "": unknown
    tasks  the names of its tasks, as records have them
    """

    name: str = ""
    code: str = ""
    tasks: tuple[str, ...] = ()

    @classmethod
    def of(cls, tasks: Iterable[tuple[str, tuple[Any, ...]]], name: str | None = None) -> Release:
        """The release that has these tasks: the name of each, and what describes its parameters.

        `name` None: that of the settings.

        Raises ConfigurationError for a name that is too long.
        """
        if name is None:
            name = Configuration().text("release")
        if name is not None and not is_text(name, 1, _LONGEST):
            raise ConfigurationError(f"release={shown(name)}: a name has 1 to {_LONGEST} bytes of UTF-8")
        described = sorted(tasks)
        digest = hashlib.blake2b(repr((name, described)).encode(errors="backslashreplace"), digest_size=_CODE_BYTES)
        code = digest.hexdigest()
        names = tuple(task.encode(errors="backslashreplace").decode() for task, _ in described)
        return cls(name or code, code, names)


def described(kind: Any, known: tuple[Any, ...] = ()) -> Any:
    """What can be read as this annotation, as nested tuples of texts. They are the same in each process.

    known  the classes around it, because a field may have the class that it is in
    """
    if typing.get_origin(kind) is typing.Literal:
        return repr(typing.get_args(kind))
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]  # constraints are objects, and may show their addresses
    arguments = tuple(described(one, known) for one in typing.get_args(kind))
    name = getattr(kind, "__qualname__", None) or str(kind)
    if arguments:
        return (name.partition("[")[0], arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return (name, tuple(kind.__members__))
    fields = None if kind in known else fields_of(kind)
    if fields is None:
        return name
    hints = _hints(kind)
    return (name, tuple((one, described(hints.get(one, Any), (*known, kind))) for one in sorted(fields)))


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}


def release_time(function: Callable[..., Any]) -> float:
    """Seconds since 1970: $PENSTOCK_RELEASE if it is a date or such a number, else the age of the function's file."""
    if (time := _time_in(os.environ.get(RELEASE, ""))) is not None:
        return time
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    try:
        return os.stat(file).st_mtime if file else 0.0
    except OSError:
        return 0.0


def _time_in(name: str) -> float | None:
    """The time that a name states. A short number is a name: seven digits may be the hash of a commit."""
    if _SECONDS.match(name):
        return float(name)
    try:
        date = datetime.fromisoformat(name)
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
