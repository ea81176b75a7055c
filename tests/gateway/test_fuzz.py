"""The HTTP API against its own OpenAPI document, by schemathesis, with a gateway process and a verify service."""

from __future__ import annotations

import contextlib

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

# Not positive_data_acceptance: the context's length, the vocabulary and the model's name are not in the document,
# so a body that fits the document may still be refused.
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


OPERATIONS = [
    "GET /health",
    "GET /metrics",
    "GET /ready",
    "GET /services",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /version",
    "POST /detokenize",
    "POST /services/share",
    "POST /tokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
]


@pytest.fixture(scope="session")
def operations(shared_gateway: GatewayProcess) -> dict[str, APIOperation]:
    """The operations of the document that the gateway serves, by method and path."""
    schema = schemathesis.openapi.from_url(f"{shared_gateway.http_url}/openapi.json")
    return {result.ok().label: result.ok() for result in schema.get_all_operations()}


def test_the_document_has_every_operation(operations: dict[str, APIOperation]) -> None:
    assert sorted(operations) == OPERATIONS


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_are_as_documented(operations: dict[str, APIOperation], label: str, mode: GenerationMode) -> None:
    @given(case=operations[label].as_strategy(generation_mode=mode))
    @settings(
        max_examples=80 if label.startswith("POST /v1/") else 30 if label.startswith("POST") else 10,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: Case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            # Past the check of the name, and without waiting for long outputs.
            case.body |= {"model": "tiny"} | ({"max_tokens": 4} if "/v1/" in label else {})
        case.call_and_validate(checks=CHECKS, timeout=60)

    # There is nothing to get wrong in a request without parameters.
    with contextlib.suppress(*([Unsatisfiable] if label.startswith("GET") else [])):
        run()


def test_the_gateway_lives_on(gateway: GatewayProcess, verify: FakeVerify) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    assert httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"] == "x"
    assert "Traceback" not in gateway.logs
    assert gateway.process.poll() is None
