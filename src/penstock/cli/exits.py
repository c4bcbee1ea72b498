"""How a command ends: the exit codes that scripts may rely on."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import BadCall, ConfigurationError, PenstockError, ServerError


class Exit(IntEnum):
    """Stable: a number keeps its meaning."""

    OK = 0
    FAILED = 1
    """The work itself failed, or the books do not balance."""
    USAGE = 2
    """The command line, a setting or the app named there cannot work; nothing was done."""
    SERVER = 3
    """The server cannot be reached, or refuses."""
    INTERRUPTED = 130
    """Ctrl-C; what was begun was cleared away."""


def exit_for(error: PenstockError) -> Exit:
    if isinstance(error, ConfigurationError | BadCall):
        return Exit.USAGE
    return Exit.SERVER if isinstance(error, ServerError) else Exit.FAILED
