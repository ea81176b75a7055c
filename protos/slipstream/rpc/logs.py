"""Log lines of a service on standard error, as text or as one JSON object a line.

2026-01-31 12:00:00.250 INFO    verify: message name=value
{"time": "2026-01-31T12:00:00.250Z", "level": "info", "service": "verify", "logger": "...", "message": ..., "name": ...}
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from slipstream.rpc.log_repeats import RepeatFilter

LogFormat = Literal["text", "json"]

_FIELDS: Final = "slipstream_fields"
_TOLD: Final = "slipstream_told"
"""Attributes of a record that `with_fields` sets."""
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def with_fields(told: Mapping[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    """What to give to a logging call as `extra`, so that its line has these fields; those that are None are left out.

    The message says already what is `told`: as text it stands there alone, in JSON it is a field of its own, too.
    """
    return {_FIELDS: {name: value for name, value in fields.items() if value is not None}, _TOLD: told or {}}


def set_up_logging(service: str, level: str, style: LogFormat = "text") -> None:
    """Send all log records of level `level` ("debug", "info", "warning", "error") and above to standard error.

    `service` names the process in each line. Warnings and errors that repeat are thinned out; see RepeatFilter.
    Calling it again replaces the earlier set-up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if style == "json" else TextFormatter(service))
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("grpc", "numba", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def json_line(
    service: str, message: str, level: str = "info", seconds: float | None = None, fields: Mapping[str, Any] = _NONE
) -> str:
    """One line as `JsonFormatter` writes it. `seconds` since the epoch; None: now."""
    when = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    stamp = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = {"time": stamp, "level": level, "service": service, "message": message}
    return json.dumps({**head, **fields, **head}, default=str)


class TextFormatter(logging.Formatter):
    """Local time, level, service and message, then the fields as `name=value`, with three digits after the point."""

    def __init__(self, service: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {service.replace('%', '%%')}: %(message)s", "%Y-%m-%d %H:%M:%S"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # of logging
        """See logging; a traceback follows the fields."""
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        return " ".join([super().formatMessage(record), *(f"{name}={_shown(fields[name])}" for name in fields)])


class JsonFormatter(logging.Formatter):
    """One object a record: time in UTC, level, service, message, logger, fields; a traceback as `exception`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        fields = {"logger": record.name, **getattr(record, _TOLD, {}), **getattr(record, _FIELDS, {})}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json_line(self._service, record.getMessage(), record.levelname.lower(), record.created, fields)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
