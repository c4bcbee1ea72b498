"""What most commands are told: which server and which app on it, `--json`, `--yes`, ids, pages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt
from cyclopts.validators import Number

from penstock.app import Penstock
from penstock.cli.loading import load_app
from penstock.config import Configuration
from penstock.embedded.client import find_home
from penstock.errors import ConfigurationError
from penstock.ops.inspect import Inspector
from penstock.settings import Settings

IMPATIENT = 3.0
"""Seconds a command waits for a reply, and goes on trying after that: somebody sits there and waits."""

Flag: TypeAlias = Annotated[bool, Parameter(negative=(), show_default=False)]
AsJson: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Yes: TypeAlias = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), show_default=False)]
Limit: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]
Offset: TypeAlias = NonNegativeInt


@Parameter(name="*", group=Group("Where", sort_key=9))
@dataclass(frozen=True)
class Where:
    """Which server, and which app on it.

    Parameters
    ----------
    url
        The server, as in valkey://host:6379/0. Also PENSTOCK_URL; without one, this folder's own server.
    prefix
        The first part of the app's keys; "penstock" unless given. Also PENSTOCK_PREFIX.
    app
        The app, as `module:name` or `path/to/file.py:name`, where its code says server and prefix.
    """

    url: str | None = None
    prefix: str | None = None
    app: str | None = None

    @contextlib.contextmanager
    def open(self, *, patient: bool = False) -> Iterator[Inspector]:
        """The app that is meant, for as long as the command runs. Starts no server where there never was one, but for
        work, which is `patient`: it goes on for long, and should outlast a restart of the server."""
        configuration = Configuration()
        configuration.export("url", self.url)
        configuration.export("prefix", self.prefix)
        with self._find(configuration, patient=patient) as app:
            yield Inspector(app)

    def _find(self, configuration: Configuration, *, patient: bool) -> Penstock:
        if self.app:
            return load_app(self.app)
        if not configuration.text("url") and not (home := find_home()).is_dir():
            if not patient:
                raise ConfigurationError(
                    f"no server: there is no --url and no PENSTOCK_URL, and {home} was never made; "
                    "go to the project's folder, name the app with --app module:name, or start one here: "
                    "penstock server start"
                )
            print(f"penstock: no --url and no PENSTOCK_URL: a server of this folder's own, in {home}", file=sys.stderr)
        settings = Settings() if patient else Settings(reply_timeout=IMPATIENT, give_up_after=IMPATIENT)
        return Penstock(prefix=configuration.text("prefix"), settings=settings)


HERE = Where()
"""Nothing said: what the environment and the folder say."""


def within(name: str, number: int | None, least: int, most: int | None = None) -> None:
    """ConfigurationError for an option that is out of its bounds."""
    if number is not None and (number < least or (most is not None and number > most)):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise ConfigurationError(f"{name} {number}: {bounds}")


def agree(what: str, *, yes: bool) -> None:
    """Say what is about to be destroyed, and go on only if that is wanted: ConfigurationError if not."""
    print(what, file=sys.stderr)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("nothing was done: add --yes if this is what you want")
    print("Type yes to do it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise ConfigurationError("nothing was done")
