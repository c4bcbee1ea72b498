"""Log formats of the command line: one line for each event, as text for people or as JSON for a log collector."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TypeAlias

from penstock.jobs.reporting import JobFields
from penstock.settings import LogLevel

LogFormat: TypeAlias = Literal["plain", "json"]

_STANDARD_FIELDS = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of every log record. Any other attribute was passed with `extra=`."""


class PlainLines(logging.Formatter):
    """`2026-03-02 14:05:01.123 warning penstock.worker: text`. Only a traceback takes further lines."""

    def __init__(self) -> None:
        super().__init__("{asctime}.{msecs:03.0f} {level} {name}: {text}", "%Y-%m-%d %H:%M:%S", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.level = record.levelname.lower()
        record.text = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """A JSON object on each line: `ts` (UTC), `level`, `logger`, `event`, the fields of `extra=`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "ts": f"{seconds}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        fields |= {name: value for name, value in extra.items() if name not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["exception"] = record.exc_text
        return json.dumps(fields, default=str)


def start_logging(style: LogFormat, level: LogLevel) -> None:
    """Write log records of `level` and above, and Python's warnings, to stderr.

    Call it before the app is loaded: a later `logging.basicConfig` in the app then has no effect.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else PlainLines())
    if style == "json":
        handler.addFilter(JobFields())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
