"""Shares of draft services over HTTP: refused unless the operator allows them, and by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.ask import wait_until
from support.cluster import Cluster
from support.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Cluster]:
    with Cluster(tiny_model, draft=("ngram",), gateway_args=("--allow-shares",)) as started:
        yield started


def drafter_of(cluster: Cluster) -> tuple[str, int, float]:
    """The verify service's address, and epoch and share of the draft service."""
    told = httpx.get(f"{cluster.http_url}/services").json()
    assert told["shares_allowed"] is True
    (service,) = told["verify_services"]
    (drafter,) = service["drafters"]
    return service["address"], drafter["epoch"], drafter["share"]


def post(cluster: Cluster, **body: object) -> httpx.Response:
    return httpx.post(f"{cluster.http_url}/services/share", json=body)


def test_a_drafter_takes_the_share_that_it_is_given(cluster: Cluster) -> None:
    address, epoch, _ = drafter_of(cluster)
    for share in (0.0, 0.25, 1.0):
        answer = post(cluster, verify_service=address, epoch=epoch, share=share)
        assert (answer.status_code, answer.json()) == (200, {"share": share})
        wait_until(lambda share=share: drafter_of(cluster)[2] == share, "the share is not told")


def test_what_cannot_be_is_refused_by_name(cluster: Cluster) -> None:
    address, epoch, _ = drafter_of(cluster)
    cases = [
        ({"verify_service": "nowhere:1", "epoch": epoch, "share": 1}, 404, "verify_service"),
        ({"verify_service": address, "epoch": epoch + 1, "share": 1}, 404, "epoch"),
        ({"verify_service": address, "epoch": epoch, "share": 1.5}, 400, "share"),
        ({"verify_service": address, "epoch": epoch}, 400, "share"),
    ]
    for body, status, field in cases:
        answer = post(cluster, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, field), answer.text
    assert post(cluster, share="x" * 5000).status_code == 413


def test_operators_must_allow_it(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.http_url) as client:
        assert client.get("/services").json()["shares_allowed"] is False
        answer = client.post("/services/share", json={"verify_service": "a:1", "epoch": 1, "share": 0})
        assert answer.status_code == 403
        assert "--allow-shares" in answer.json()["error"]["message"]
