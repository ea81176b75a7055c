"""Flags of `slipstream serve` reach the services that they are meant for."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from draft_service.config import load_settings
from gateway.config import GatewaySettings
from launcher.cli.app import app
from slipstream.settings import load
from verify_service.config import VerifySettings


@pytest.fixture
def layout_of(tiny_model, monkeypatch):
    def layout(*flags: str):
        found = []
        monkeypatch.setattr("launcher.supervision.serve.serve", lambda layout, options: found.append(layout) or 0)
        ports = [part for name in ("http", "grpc", "verify", "draft") for part in (f"--{name}-port", "0")]
        result = CliRunner().invoke(app, ["serve", "--model", str(tiny_model), *ports, *flags])
        assert result.exit_code == 0, result.output
        return found[0]

    return layout


@pytest.mark.parametrize(
    "flags", [("--max-context", "4096", "--tensor-parallel-size", "2"), ("--max-model-len", "4096", "-tp", "2")]
)
def test_placement_and_size_of_the_model(layout_of, flags):
    layout = layout_of("--device", "cuda:1", "--mode", "fast", *flags)
    verify = load(VerifySettings, "verify_service", list(layout.verify.arguments[3:]))
    assert (verify.device, verify.mode, verify.max_context, verify.tensor_parallel_size) == ("cuda:1", "fast", 4096, 2)
    assert load_settings(list(layout.drafter.arguments[3:])).device == "cuda:1"


def test_what_is_passed_on_as_it_stands_wins(layout_of):
    layout = layout_of("--device", "cuda", "--draft-arg=--device=cpu", "--verify-arg=--device=cuda:1")
    assert load(VerifySettings, "verify_service", list(layout.verify.arguments[3:])).device == "cuda:1"
    assert load_settings(list(layout.drafter.arguments[3:])).device == "cpu"


def test_without_flags_the_services_settle_it(layout_of, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_VERIFY_MAX_CONTEXT", "123")
    layout = layout_of()
    verify = load(VerifySettings, "verify_service", list(layout.verify.arguments[3:]))
    assert (verify.device, verify.max_context) == ("cpu", 123)
    assert load_settings(list(layout.drafter.arguments[3:])).device == "auto"


@pytest.mark.parametrize(("flags", "names"), [((), "slipstream"), (("--metrics-names", "vllm"), "vllm")])
def test_gateway_and_verify_publish_metrics_under_the_same_names(layout_of, flags, names):
    layout = layout_of(*flags)
    assert load(GatewaySettings, "gateway", list(layout.gateway.arguments[3:])).metrics_names == names
    assert load(VerifySettings, "verify_service", list(layout.verify.arguments[3:])).metrics_names == names


def test_access_lines_can_be_turned_off(layout_of):
    for flags, logged in (((), True), (("--no-access-log",), False)):
        arguments = list(layout_of(*flags).gateway.arguments[3:])
        assert load(GatewaySettings, "gateway", arguments).access_log is logged


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--device", "gpu"), "must be cpu, cuda or cuda:N"), (("--mode", "slow"), "--mode"), (("-tp", "9"), "-tp")],
)
def test_mistakes_are_named_before_anything_starts(tiny_model, flags, words):
    result = CliRunner().invoke(app, ["serve", "--model", str(tiny_model), *flags])
    assert result.exit_code == 2
    assert words in result.output
