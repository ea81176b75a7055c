"""LoRA adapters through all services: listed, chosen by name, loaded and unloaded beside requests, resumed on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from launcher.cli.info import collect
from slipstream import Client
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.errors import NotFoundError, PermissionDeniedError
from slipstream.v1 import verify_pb2, verify_pb2_grpc
from support.ask import wait_until
from support.cluster import Cluster
from support.lora_adapters import write_adapter

PROMPTS = tuple(f"Sailors once found their way {index} times" for index in range(4))
MODELS = ("tiny-target", "red", "blue")


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of two contents, one that is none, and one outside."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("red", "blue", "allowed/green", "allowed/blue")):
        write_adapter(root / name, tiny_model, seed=1 if "blue" in name else seed, strength=0.7)
    write_adapter(root / "allowed" / "dora", tiny_model, use_dora=True)
    (root / "allowed" / "link").symlink_to(root / "red")
    return root


@pytest.fixture(scope="module")
def cluster(tiny_model: Path, folder: Path) -> Iterator[Cluster]:
    named = ("--lora-modules", f"red={folder / 'red'}", "--lora-modules", f"blue={folder / 'blue'}")
    verify = (*named, "--lora-dir", str(folder / "allowed"), "--max-loras", "4", "--draft-deadline-ms", "5000")
    gateway = ("--allow-lora-updates",)
    with Cluster(tiny_model, draft=("ngram",), verify_args=verify, gateway_args=gateway) as started:
        yield started


def complete(cluster: Cluster, model: str, prompt: str, tokens: int = 24, **fields: object) -> tuple[str, str]:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": 7} | fields
    answer = httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["model"], answer.json()["choices"][0]["text"]


def answers(cluster: Cluster, models: tuple[str, ...] = MODELS) -> list[str]:
    """Texts of all prompts with all models, side by side."""
    wanted = [(model, prompt) for prompt in PROMPTS for model in models]
    with ThreadPoolExecutor(6) as pool:
        return [text for _, text in pool.map(lambda each: complete(cluster, *each), wanted)]


def load(cluster: Cluster, name: str, path: object) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path)}
    return httpx.post(f"{cluster.http_url}/v1/load_lora_adapter", json=body, timeout=120)


def unload(cluster: Cluster, name: str) -> httpx.Response:
    return httpx.post(f"{cluster.http_url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=120)


def served(cluster: Cluster) -> list[tuple[str, str | None]]:
    """Names of all models with their parents; none while no verify service is ready."""
    answer = httpx.get(f"{cluster.http_url}/v1/models", timeout=120)
    if answer.status_code == 503:
        return []
    return [(entry["id"], entry["parent"]) for entry in answer.json()["data"]]


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> list[str]:
    return answers(cluster)


def test_adapters_are_models_with_a_parent(cluster: Cluster) -> None:
    assert served(cluster) == [("tiny-target", None), ("red", "tiny-target"), ("blue", "tiny-target")]
    one = httpx.get(f"{cluster.http_url}/v1/models/red").json()
    assert (one["id"], one["parent"], one["max_model_len"]) == ("red", "tiny-target", 512)
    facts = collect(cluster.verify_address, cluster.http_url.removeprefix("http://")).verify
    assert (facts.max_adapters, facts.max_adapter_rank) == (4, 16)
    assert [(each.name, each.rank, each.leaving) for each in facts.adapters] == [("red", 8, False), ("blue", 8, False)]
    missing = httpx.get(f"{cluster.http_url}/v1/models/green")
    assert missing.status_code == 404 and "'tiny-target', 'red', 'blue' are served" in missing.text
    with Client(cluster.gateway_grpc) as client:
        assert [(model.name, model.parent) for model in client.list_models()] == served(cluster)


def test_a_request_chooses_by_model_and_by_field(cluster: Cluster, tiny_cluster: Cluster, expected: list[str]) -> None:
    base = [expected[index] for index in range(0, len(expected), len(MODELS))]
    assert base == answers(tiny_cluster, ("tiny-target",))  # a server without adapters
    assert len(set(expected[:3])) == 3
    verify = collect(cluster.verify_address, cluster.http_url.removeprefix("http://")).verify
    assert all(each.requests >= len(PROMPTS) for each in verify.adapters)
    assert complete(cluster, "red", PROMPTS[0]) == ("red", expected[1])
    options = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
    with Client(cluster.gateway_grpc) as client:
        for fields in ({"model": "red"}, {"adapter_id": "red"}, {"model": "tiny-target", "adapter_id": "red"}):
            assert client.generate(PROMPTS[0], **fields, **options).text == expected[1]  # type: ignore[typeddict-item]
        assert client.tokenize(PROMPTS[0], model="red") == client.tokenize(PROMPTS[0])
        with pytest.raises(NotFoundError, match="no adapter 'green' is loaded"):
            client.generate(PROMPTS[0], adapter_id="green")
        chat = client.generate(messages=[{"role": "user", "content": "Hi"}], adapter_id="blue", **options)
    body = {"model": "blue", "messages": [{"role": "user", "content": "Hi"}], **options}
    answer = httpx.post(f"{cluster.http_url}/v1/chat/completions", json=body, timeout=120).json()
    assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("blue", chat.text)
    plain = httpx.post(f"{cluster.http_url}/v1/chat/completions", json=body | {"model": "tiny-target"}, timeout=120)
    assert plain.json()["system_fingerprint"] != answer["system_fingerprint"]


def test_a_hundred_come_and_go_beside_requests(cluster: Cluster, expected: list[str]) -> None:
    done = threading.Event()
    rounds: list[int] = []

    def change() -> None:
        with httpx.Client(base_url=cluster.http_url, timeout=120) as client:
            while len(rounds) < 100:
                body = {"lora_name": "extra", "lora_path": ("green", "blue")[len(rounds) % 2]}
                assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
                assert client.post("/v1/unload_lora_adapter", json={"lora_name": "extra"}).status_code == 200
                rounds.append(len(rounds))
        done.set()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        while not done.is_set() and changing.is_alive():
            assert answers(cluster) == expected
    finally:
        changing.join()
    assert len(rounds) == 100


def test_what_may_not_be_loaded_is_refused_by_name(cluster: Cluster, folder: Path, tiny_cluster: Cluster) -> None:
    cases = [
        ("green", folder / "red", 400, "lora_path"),
        ("green", "../red", 400, "lora_path"),
        ("green", "link", 400, "lora_path"),
        ("green", "nowhere", 400, "lora_path"),
        ("green", ".", 400, "lora_path"),
        ("green", "dora", 400, "lora_path"),
        ("a b", "green", 400, "lora_name"),
        ("tiny-target", "green", 400, "lora_name"),
        ("red", "green", 400, "lora_name"),
    ]
    for name, path, status, field in cases:
        answer = load(cluster, name, path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, field), answer.text
    for name, path, words in (("green", "../red", "lora_path is"), ("tiny-target", "green", "lora_name is")):
        assert load(cluster, name, path).json()["error"]["message"].startswith(words)
    assert "use_dora" in load(cluster, "green", "dora").text
    assert unload(cluster, "green").status_code == 404
    assert load(tiny_cluster, "green", "green").status_code == 403
    with Client(tiny_cluster.gateway_grpc) as client, pytest.raises(PermissionDeniedError, match="allow-lora-updates"):
        client.load_lora_adapter("green", "green")


def test_an_adapter_is_there_again_after_a_crash(cluster: Cluster, expected: list[str]) -> None:
    """A stream of one that was loaded at run time goes on, with the same tokens, once the service is back."""
    with Client(cluster.gateway_grpc) as client:
        model = client.load_lora_adapter("green", "green")
        assert (model.name, model.parent) == ("green", "tiny-target")
        options = {"max_tokens": 300, "temperature": 0.8, "seed": 7, "ignore_eos": True, "adapter_id": "green"}
        whole = client.generate(PROMPTS[0], **options)  # type: ignore[arg-type]
        assert load(cluster, "again", "green").status_code == 200
        with client.stream(PROMPTS[0], **options) as events:  # type: ignore[arg-type]
            parts = [next(events)]
            cluster.kill("verify")
            cluster.start("verify")
            parts.extend(events)
        assert tuple(token for part in parts for token in part.token_ids) == whole.token_ids
        wait_until(lambda: ("again", "tiny-target") in served(cluster), "the adapters do not come back")
        assert complete(cluster, "red", PROMPTS[0])[1] == expected[1]
        with open_sync_channel(cluster.verify_address) as channel:  # as another gateway would
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            stub.UnloadAdapter(verify_pb2.UnloadAdapterRequest(name="again"), timeout=60)
        wait_until(lambda: ("again", "tiny-target") not in served(cluster), "the gateway does not hear of it")
        cluster.kill("verify")
        cluster.start("verify")
        wait_until(lambda: ("green", "tiny-target") in served(cluster), "the adapter does not come back")
        assert ("again", "tiny-target") not in served(cluster)
        client.unload_lora_adapter("green")
    assert [name for name, _ in served(cluster)] == list(MODELS)
