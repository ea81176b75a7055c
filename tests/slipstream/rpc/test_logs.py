"""Lines of a service's log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from slipstream.rpc.logs import JsonFormatter, TextFormatter, json_line, with_fields


def record(message: str, *args: object, extra: dict | None = None, exc_info=None) -> logging.LogRecord:
    return logging.getLogger("some.module").makeRecord(
        "some.module", logging.WARNING, "file.py", 7, message, args, exc_info, extra=extra
    )


FIELDS = with_fields({"told": 1}, seconds=0.25, request_id="r-1", nothing=None, ends=["stop", "length"])


def test_text_ends_with_the_fields_that_the_message_has_not_told() -> None:
    line = TextFormatter("100%").format(record("%s of %d", "one", 2, extra=FIELDS))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING 100%: one of 2 seconds=0.250 request_id=r-1 ends=stop,length",
        line,
    )


def test_json_has_all_fields_in_one_line() -> None:
    line = JsonFormatter("verify").format(record("a\n%s \x1b\u2028", "b", extra=FIELDS))
    assert line.isprintable() and line.isascii()
    told = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "warning", "service": "verify", "message": "a\nb \x1b\u2028", "logger": "some.module", "told": 1,
        "seconds": 0.25, "request_id": "r-1", "ends": ["stop", "length"],
    }  # fmt: skip


def test_a_field_cannot_take_the_place_of_the_head() -> None:
    told = json.loads(json_line("verify", "said", "info", 0.25, {"time": "never", "level": "none", "x": 1}))
    assert told == {"time": "1970-01-01T00:00:00.250Z", "level": "info", "service": "verify", "message": "said", "x": 1}


@pytest.mark.parametrize("formatter", [TextFormatter("a"), JsonFormatter("a")])
def test_a_traceback_is_told(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = formatter.format(record("failed", extra=with_fields(x=1), exc_info=sys.exc_info()))
    assert "ValueError: broken" in line
    assert (json.loads(line)["exception"] if line.startswith("{") else line).count("\n") >= 2
