"""Wrong words on the command line, in one sentence that names the word and the fix."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
    ValidationError,
)

from penstock.short_names import with_short_names

_KINDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    datetime: "a date, such as 2026-03-01T07:00:00+01:00",
}

_RULE: Final = re.compile(r"Must be ([<>]=?) (.+?)\.?\Z")
_RULES: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

_ELSEWHERE: Final = {
    "tenant": "`penstock queue show QUEUE --tenants 50` lists them; `queue weigh`, `pause` and `purge` take --tenant",
    "limit": "`penstock queue limits QUEUE` lists limits, and `queue limit` and `queue hold-limit` change them",
    "message": "`penstock mailbox` and `penstock chat` are about messages",
}
"""Words that people try, and what they look for."""


def usage_error(error: CycloptsError) -> str:
    """The mistake, as a sentence with its full stop."""
    match error:
        case MissingArgumentError():
            text = _missing(error)
        case UnknownCommandError() if (word := (error.unused_tokens or [""])[0]).removesuffix("s") in _ELSEWHERE:
            text = f"there is no command {word!r}: {_ELSEWHERE[word.removesuffix('s')]}"
        case UnusedCliTokensError() if error.unused_tokens:
            text = f"{' '.join(error.command_chain or ())} takes no further {error.unused_tokens[0]!r}"
        case CoercionError() if error.msg is None and error.token and error.target_type in _KINDS:
            text = f"{_name(error)} {error.token.value}: give {_KINDS[error.target_type]}"
        case CoercionError() if error.msg is not None and error.token and error.token.keyword:
            text = f"{error.token.keyword} {error.msg}"
        case ValidationError() if found := _RULE.search(str(error)):
            token = error.argument.tokens[0].value if error.argument and error.argument.tokens else ""
            text = f"{_name(error)} {token}: give {_RULES[found[1]]} {found[2]}"
        case _:
            text = str(error)
    text = with_short_names(text).replace("?.", "?")  # cyclopts ends its question with both
    return text if text.endswith((".", "?")) else f"{text}."


def _missing(error: MissingArgumentError) -> str:
    command, name = " ".join(error.command_chain or ()), _name(error)
    if not name.startswith("-"):
        return f"{command} needs {name}"
    was_given = error.keyword is not None or (error.argument is not None and error.argument.tokens)
    return f"{name} needs a value" if was_given else f"{command} needs {name}"


def _name(error: MissingArgumentError | CoercionError | ValidationError) -> str:
    """An option as it was typed; a positional argument as the help names it."""
    argument = error.argument
    token = getattr(error, "token", None) or (argument.tokens[0] if argument and argument.tokens else None)
    if token is not None and token.keyword:
        return str(token.keyword)
    if keyword := getattr(error, "keyword", None):
        return str(keyword)
    name = argument.name if argument else ""
    return (
        name if name.startswith("--") and argument and argument.field_info.is_keyword_only else name.lstrip("-").upper()
    )
