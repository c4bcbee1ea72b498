"""`penstock --install-completion` and `--show-completion`: completion of commands and options by the shell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from penstock.cli.exits import Exit
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from cyclopts import App

Shell: TypeAlias = Literal["bash", "zsh", "fish"]
SHELLS: Final[tuple[str, ...]] = get_args(Shell)

SHOW: Final = "--show-completion"


def complete(app: App, words: Sequence[str]) -> Exit:
    """Install the completion of a shell, or print it. `app` has all commands."""
    option, *rest = words
    if len(rest) > 1:
        raise ConfigurationError(f"{option}: name one shell, of {', '.join(SHELLS)}")
    shell = _shell(option, rest[0] if rest else Path(os.environ.get("SHELL", "")).name)
    if option == SHOW:
        print(app.generate_completion(shell=shell))
        return Exit.OK
    try:
        path = app.install_completion(shell=shell)
    except OSError as error:
        raise ConfigurationError(f"{option}: {error.filename}: {error.strerror}") from error
    print(f"{shell} completes penstock from {path}; it does so in every shell that you open from now on.")
    return Exit.OK


def _shell(option: str, name: str) -> Shell:
    if name not in SHELLS:
        found = f"{name!r} is unknown" if name else "$SHELL is not set"
        raise ConfigurationError(f"{option}: {found}; name the shell, one of {', '.join(SHELLS)}")
    return cast(Shell, name)
