"""Log formats: one line for each event."""

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


def test_a_json_line_has_the_fields_of_extra():
    line = JsonLines().format(record("job %s\nfailed", "a", queue="mail", took=0.5, level_of=logging))
    fields = json.loads(line)
    assert "\n" not in line
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields.pop("ts"))
    assert fields.pop("level_of").startswith("<module")
    assert fields == {
        "level": "warning",
        "logger": "penstock.worker",
        "event": "job a\nfailed",
        "queue": "mail",
        "took": 0.5,
    }


def test_a_traceback_from_another_process_is_printed_like_an_own_one():
    event = record("job failed")
    event.exc_text = "Traceback\nValueError: no"
    assert json.loads(JsonLines().format(event))["exception"] == event.exc_text
    assert PlainLines().format(event).endswith("penstock.worker: job failed\nTraceback\nValueError: no")


def test_a_json_line_can_hold_a_lone_surrogate_and_a_traceback():
    try:
        raise ValueError("no")
    except ValueError:
        event = record("bad \udc80")
        event.exc_info = sys.exc_info()
    fields = json.loads(JsonLines().format(event))
    assert fields["event"] == "bad \udc80"
    assert fields["exception"].endswith("ValueError: no")
