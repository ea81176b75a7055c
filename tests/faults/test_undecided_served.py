"""A target that reads a NaN, through both APIs: the request that does fails by name, and all others go on."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from launcher.services.readiness import StartupError
from slipstream import Client
from slipstream.rpc.errors import InternalError
from support.cluster import Cluster
from support.models import make_tiny_model

POISONED = 300
WORDS = "logits at position 4 are not finite numbers"


def poisoned_model(folder: Path, name: str, row: int) -> Path:
    make_tiny_model(folder, tied=False)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][row] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = poisoned_model(tmp_path_factory.mktemp("poisoned") / "tiny", "model.embed_tokens.weight", POISONED)
    with Cluster(model, draft=("ngram",)) as started:
        yield started


def complete(cluster: Cluster, prompt: list[int], **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 0.8, "seed": 3, **fields}
    return httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=60)


def answered(response: httpx.Response) -> list[tuple[str, str]]:
    """What drafters may not change: text and finish reason of each choice."""
    return [(choice["text"], choice["finish_reason"]) for choice in response.json()["choices"]]


def test_one_request_fails_by_name_and_its_neighbours_go_on(cluster: Cluster) -> None:
    prompts = [[20 + number, 41, 52, 63] for number in range(6)]
    alone = [answered(complete(cluster, prompt)) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        bad = [pool.submit(complete, cluster, [20, POISONED, 41, 52 + number]) for number in range(6)]
        good = [pool.submit(complete, cluster, prompt) for prompt in prompts]
    assert [answered(each.result()) for each in good] == alone
    for each in bad:
        answer = each.result()
        assert answer.status_code == 500 and WORDS in answer.json()["error"]["message"]


def test_streams_end_with_it(cluster: Cluster) -> None:
    answer = complete(cluster, [20, POISONED, 41, 52], stream=True)
    assert WORDS in answer.text and '"error"' in answer.text
    with Client(cluster.gateway_grpc) as client, pytest.raises(InternalError, match=WORDS):
        client.generate(token_ids=[20, POISONED, 41, 52], max_tokens=5)


def test_a_target_of_nan_does_not_start(tmp_path: Path) -> None:
    model = poisoned_model(tmp_path / "tiny", "model.norm.weight", 3)
    with pytest.raises(StartupError, match="not finite numbers"), Cluster(model, gateway=False):
        pass
