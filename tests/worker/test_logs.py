"""One event, one line."""

import json
import logging
import re
import sys

from penstock.worker.logs import JsonLines, PlainLines


def record(text: str, *args: object, level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    return logging.getLogger("penstock.worker").makeRecord(
        "penstock.worker", level, __file__, 1, text, args, None, extra=extra
    )


def test_a_plain_line_has_the_time_the_level_the_logger_and_the_text():
    line = PlainLines().format(record("job %s failed", "a\nb"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} warning penstock\.worker: job a\\nb failed", line)


def test_a_json_line_has_fields_of_its_own():
    line = JsonLines().format(record("job %s\nfailed", "a", queue="mail", took=0.5, level_of=logging))
    told = json.loads(line)
    assert "\n" not in line
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("ts"))
    assert told.pop("level_of").startswith("<module")
    assert told == {
        "level": "warning", "logger": "penstock.worker", "event": "job a\nfailed", "queue": "mail", "took": 0.5,
    }  # fmt: skip


def test_a_json_line_holds_text_that_is_no_unicode_and_a_traceback():
    try:
        raise ValueError("no")
    except ValueError:
        event = record("bad \udc80")
        event.exc_info = sys.exc_info()
    told = json.loads(JsonLines().format(event))
    assert told["event"] == "bad \udc80"
    assert told["exception"].endswith("ValueError: no")
