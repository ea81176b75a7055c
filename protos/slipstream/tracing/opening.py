"""Which tracer a service has: none unless a flag or the environment asks for one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from slipstream.extras import DISTRIBUTION
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.tracing.tracer import NullTracer, Tracer

_log = logging.getLogger(__name__)

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"


def exporter_asked_for(endpoint: str, environment: Mapping[str, str]) -> str:
    """What OTEL_TRACES_EXPORTER would call the exporter that is wanted; empty if none is.

    `endpoint` asks for OTLP, as does an endpoint of the environment; OTEL_SDK_DISABLED overrules all.
    """
    if environment.get(_DISABLED, "").strip().lower() == "true":
        return ""
    if endpoint:
        return "otlp"
    if named := environment.get(_EXPORTER, "").strip():
        return "" if named == "none" else named
    return "otlp" if any(map(environment.get, _ENDPOINTS)) else ""


def open_tracer(service: str, endpoint: str) -> Tracer:
    """The tracer of a service, which `service.name` calls `service` by default.

    FailedPreconditionError where a flag asks for one, `endpoint`, and there can be none. Where only the environment
    does, which may be meant for others, a warning says so.
    """
    exporter = exporter_asked_for(endpoint, os.environ)
    if not exporter:
        return NullTracer()
    try:
        return _otel_tracer(service, exporter, endpoint)
    except FailedPreconditionError as error:
        if endpoint:
            raise
        _log.warning("requests are not traced: %s", error.message)
        return NullTracer()


def _otel_tracer(service: str, exporter: str, endpoint: str) -> Tracer:
    try:
        from slipstream.tracing.otel import OtelTracer, make_exporter
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise FailedPreconditionError(f"tracing needs {error.name}: pip install '{DISTRIBUTION}[otel]'") from error
    tracer = OtelTracer(service, make_exporter(exporter, endpoint))
    _log.info("requests are traced by %s%s", exporter, f" to {endpoint}" if endpoint else "")
    return tracer
