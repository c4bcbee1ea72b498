"""Exit codes, which scripts may rely on."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import BadCall, ConfigurationError, PenstockError, ServerError


class Exit(IntEnum):
    """The meaning of a code never changes."""

    OK = 0
    FAILED = 1
    """The work itself failed, or counts do not add up."""
    USAGE = 2
    """The command line, a setting or the named app is invalid; nothing was done."""
    SERVER = 3
    """The server cannot be reached, or refuses the command."""
    INTERRUPTED = 130
    """Ctrl-C; unfinished work was cleaned up."""


def exit_for(error: PenstockError) -> Exit:
    if isinstance(error, ConfigurationError | BadCall):
        return Exit.USAGE
    return Exit.SERVER if isinstance(error, ServerError) else Exit.FAILED
