"""Log lines: one event a line, for people or for a collector."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TypeAlias

LogFormat: TypeAlias = Literal["plain", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; all else came with `extra=`."""


class PlainLines(logging.Formatter):
    """`2026-03-02 14:05:01.123 warning penstock.worker: text`. Only a traceback takes lines of its own."""

    def __init__(self) -> None:
        super().__init__("{asctime}.{msecs:03.0f} {level} {name}: {text}", "%Y-%m-%d %H:%M:%S", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.level = record.levelname.lower()
        record.text = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One object a line: `ts` (UTC), `level`, `logger`, `event`, what came with `extra=`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{seconds}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(style: LogFormat, level: LogLevel) -> None:
    """Send everything from `level` on to stderr. Before the app is loaded: its own `basicConfig` then does nothing."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
