"""/ready and gRPC health wait for proposers, to a bound, and say so; requests do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from launcher.services.readiness import is_serving
from support.ask import wait_until
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

FOREVER = ("--wait-for-drafter", "3600")
WAITS = "waiting for proposers to be attached"


@pytest.fixture
def lacking() -> Iterator[FakeVerify]:
    """A verify service that is configured with a proposer which is not there."""
    with FakeVerify() as verify:
        verify.missing = {"eagle3": ""}
        yield verify


def readiness(gateway: GatewayProcess) -> httpx.Response:
    return httpx.get(f"{gateway.http_url}/ready", timeout=60)


def complete(gateway: GatewayProcess) -> httpx.Response:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "ignore_eos": True}
    return httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60)


def test_both_apis_wait_while_requests_are_answered_and_stay_ready_afterwards(
    lacking: FakeVerify, tokenizer_folder: Path
) -> None:
    with GatewayProcess(tokenizer_folder, lacking.address, *FOREVER, wait_ready=False) as gateway:
        wait_until(lambda: readiness(gateway).json()["status"] == WAITS, lambda: gateway.logs)
        answer = readiness(gateway)
        assert answer.status_code == 503
        assert [each["proposer"] for each in answer.json()["missing_proposers"]] == ["eagle3"]
        assert not is_serving(gateway.grpc_address)
        assert complete(gateway).status_code == 200
        wait_until(lambda: "waiting up to 3600 s" in gateway.logs, lambda: gateway.logs)

        lacking.missing = {}
        gateway.wait_ready()
        wait_until(lambda: is_serving(gateway.grpc_address), lambda: gateway.logs)

        lacking.missing = {"eagle3": ""}
        answer = readiness(gateway)
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert [each["proposer"] for each in answer.json()["missing_proposers"]] == ["eagle3"]
        lacking.stop()
        gateway.wait_ready(ready=False)
        lacking.start()
        gateway.wait_ready()
        wait_until(lambda: is_serving(gateway.grpc_address), lambda: gateway.logs)
    words = ("listening http=", "not ready: no verify service is ready", f"not ready: {WAITS}", "ready http=")
    places = [gateway.logs.index(each) for each in words]
    assert places == sorted(places)
    assert "waiting up to 3600 s for proposers to be attached: eagle3" in gateway.logs


@pytest.mark.parametrize(
    ("reason", "served", "seconds", "line"),
    [
        ("another hidden size", 0, "3600", ""),
        ("", 0, "0.5", "WARNING"),
        ("", 7200, "3600", "WARNING"),
        ("", 0, "0", "INFO"),
    ],
    ids=["a refused proposer", "the bound", "a verify service that has served for longer", "no wait"],
)
def test_the_wait_ends(
    lacking: FakeVerify, tokenizer_folder: Path, reason: str, served: float, seconds: str, line: str
) -> None:
    lacking.missing, lacking.serving_seconds = {"eagle3": reason}, served
    with GatewayProcess(tokenizer_folder, lacking.address, "--wait-for-drafter", seconds) as gateway:
        wait_until(lambda: is_serving(gateway.grpc_address), lambda: gateway.logs)
        assert [each["proposer"] for each in readiness(gateway).json()["missing_proposers"]] == ["eagle3"]
        if line:
            wait_until(lambda: "not attached, their requests" in gateway.logs, lambda: gateway.logs)
    found = [each for each in gateway.logs.splitlines() if "not attached, their requests" in each]
    assert [line in each for each in found] == [True] * bool(line)
    assert ("waiting up to" in gateway.logs) == (seconds == "0.5")


def test_the_wait_lasts_until_what_attached_proposers_need_is_prepared(tokenizer_folder: Path) -> None:
    with FakeVerify() as verify:
        verify.preparing = ("eagle3",)
        with GatewayProcess(tokenizer_folder, verify.address, *FOREVER, wait_ready=False) as gateway:
            wait_until(lambda: readiness(gateway).json()["status"] == WAITS, lambda: gateway.logs)
            assert readiness(gateway).json()["missing_proposers"] == []
            verify.preparing = ()
            gateway.wait_ready()
