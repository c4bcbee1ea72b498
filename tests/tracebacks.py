"""Tracebacks in a log that no job explains."""

import re

_OF_A_JOB = re.compile(r"\bjob \S+ .*(failed|dead letter|handled|again)")
_INSIDE = re.compile(
    r"\s|$|Traceback |During handling|The above exception|[\w.]+(Error|Exception|Exit|Interrupt|Warning|Group)?\b(:|$)"
)


def unexplained(log: str) -> list[str]:
    """The lines that begin a traceback, except those below the report of a job that failed."""
    found, explained = [], False
    for line in log.splitlines():
        if _OF_A_JOB.search(line):
            explained = True
        elif line.startswith("Traceback "):
            found += [] if explained else [line]
        elif not _INSIDE.match(line):
            explained = False
    return found
