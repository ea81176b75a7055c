"""Whether a service traces, and what happens where it cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slipstream.rpc.errors import FailedPreconditionError
from slipstream.tracing.opening import exporter_asked_for, open_tracer
from slipstream.tracing.otel import OtelTracer
from slipstream.tracing.tracer import NullTracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENDPOINT, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("endpoint", "environment", "exporter"),
    [
        ("", {}, ""),
        ("", {ENDPOINT: ""}, ""),
        ("", {ENDPOINT: "http://a:1"}, "otlp"),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:1"}, "otlp"),
        ("", {"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ("", {"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://a:1"}, ""),
        ("http://a:1", {"OTEL_TRACES_EXPORTER": "none"}, "otlp"),
        ("http://a:1", {"OTEL_SDK_DISABLED": "True"}, ""),
    ],
)
def test_who_asks_for_it(endpoint: str, environment: dict[str, str], exporter: str) -> None:
    assert exporter_asked_for(endpoint, environment) == exporter


def test_nobody_asks_and_nothing_is_loaded() -> None:
    code = (
        "import sys; from slipstream.tracing.opening import open_tracer; print(type(open_tracer('a', '')).__name__);"
        "print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["NullTracer"]


def test_without_the_extra_a_flag_is_refused_and_the_environment_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "slipstream.tracing.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(FailedPreconditionError, match=r"pip install 'slipstream-server\[otel\]'"):
        open_tracer("a", "http://127.0.0.1:9")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    assert isinstance(open_tracer("a", ""), NullTracer)
    assert "requests are not traced: tracing needs opentelemetry" in caplog.text


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier/pigeon")
    with pytest.raises(
        FailedPreconditionError, match="'carrier/pigeon' is installed; there are console, otlp_proto_grpc"
    ):
        open_tracer("a", "http://127.0.0.1:9")


def test_with_the_extra_a_flag_is_enough() -> None:
    tracer = open_tracer("a", "http://127.0.0.1:9")
    assert isinstance(tracer, OtelTracer)
    tracer.close(1.0)
