"""Options of most commands: the server and the app on it, `--json`, `--yes`, limits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from penstock.config import Configuration
from penstock.errors import ConfigurationError
from penstock.ops.wording import terminal_safe
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.ops.inspect import Inspector

REPLY_TIMEOUT = 3.0
"""Seconds for which a command waits for a reply, and for which it retries. Short, because a user waits."""

Flag: TypeAlias = Annotated[bool, Parameter(negative=(), show_default=False)]
AsJson: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Yes: TypeAlias = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), show_default=False)]
Limit: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]
Offset: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=10**9))]


@Parameter(name="*", group=Group("Where", sort_key=9))
@dataclass(frozen=True)
class Where:
    """The server, and the app on it.

    Parameters
    ----------
    url
        The server, for example valkey://host:6379/0. Also set by PENSTOCK_URL; the default is this folder's own server.
    prefix
        The first part of the app's keys, "penstock" by default. Also set by PENSTOCK_PREFIX.
    app
        An app whose code sets server and prefix: `module:name` or `path/to/file.py:name`.
    """

    url: str | None = None
    prefix: str | None = None
    app: str | None = None

    @contextlib.contextmanager
    def open(self, *, creates: bool = False, patient: bool = False) -> Iterator[Inspector]:
        """An inspector of the selected app, for the duration of the command.

        creates  the command brings new data, so it starts a server in a folder that never had one. Any other command
                 is refused in such a folder: it would report success in what is most likely the wrong folder
        patient  the command does long work that should survive a restart of the server
        """
        from penstock.ops.inspect import Inspector  # it takes time to import, and some commands need no server

        with self.connect(creates=creates, patient=patient) as app:
            yield Inspector(app)

    @contextlib.contextmanager
    def connect(self, *, creates: bool = False, patient: bool = False) -> Iterator[Penstock]:
        """The selected app itself, for a command that runs it."""
        configuration = Configuration()
        configuration.export("url", self.url)
        configuration.export("prefix", self.prefix)
        with self._find(configuration, creates=creates, patient=patient) as app:
            yield app

    def _find(self, configuration: Configuration, *, creates: bool, patient: bool) -> Penstock:
        from penstock.app import Penstock
        from penstock.cli.loading import load_app, search_first
        from penstock.embedded.client import find_home

        own = load_app(self.app) if self.app else None
        is_given = configuration.text("url") or (own is not None and own._driver.connector.given_address is not None)
        if not is_given and not (home := find_home()).is_dir():
            if not creates:
                raise ConfigurationError(
                    f"no server: there is no --url and no PENSTOCK_URL, and {home} does not exist; "
                    "go to the project's folder, name the app with --app module:name, or start one here: "
                    "penstock server start"
                )
            print(f"penstock: no --url and no PENSTOCK_URL: using this folder's own server in {home}", file=sys.stderr)
        if own is not None:
            return own
        if configuration.text("seal"):
            search_first(Path.cwd())
        settings = Settings(seal=configuration.loaded("seal"))
        if not patient:
            settings = replace(settings, reply_timeout=REPLY_TIMEOUT, give_up_after=REPLY_TIMEOUT)
        return Penstock(prefix=configuration.text("prefix"), settings=settings)


HERE = Where()
"""No options: the environment and the working directory select the server."""


def check_bounds(name: str, number: int | None, least: int, most: int | None = None) -> None:
    """Raise ConfigurationError if an option is out of bounds."""
    if number is not None and (number < least or (most is not None and number > most)):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise ConfigurationError(f"{name} {number}: use {bounds}")


def read_arguments(text: str) -> dict[str, object]:
    """The arguments of a call by name. Raises ConfigurationError for a text that is not a JSON object."""
    import msgspec  # imported here, because most commands do not need it

    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--arguments {text!r}: not a JSON object: {error}") from error


def confirm(what: str, *, yes: bool) -> None:
    """Print what will be destroyed and ask for confirmation. Raises ConfigurationError without one."""
    print(terminal_safe(what), file=sys.stderr)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("nothing was done: add --yes if this is what you want")
    print("Type yes to do it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise ConfigurationError("nothing was done")
