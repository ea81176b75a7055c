from __future__ import annotations

from pathlib import Path

from benchmarks.adapter_stalls import longest, measure
from benchmarks.lib.random_adapter import write_random_adapter
from support.cluster import Cluster


def test_streams_are_timed_while_adapters_come_and_go(tiny_model: Path, tmp_path: Path) -> None:
    write_random_adapter(tmp_path / "passing", tiny_model, seed=1, rank=8, strength=0.1)
    verify = ("--lora-dir", str(tmp_path), "--max-loras", "1")
    with Cluster(tiny_model, verify_args=verify, gateway_args=("--allow-lora-updates",)) as cluster:
        found = measure(cluster.gateway_grpc, streams=2, seconds=0.3, turns=2)
    assert found["loads"] >= 2
    assert found["quiet"].keys() >= {"tokens", "longest of each"} and len(found["quiet"]["longest of each"]) <= 2


def test_a_window_without_tokens_has_no_longest_wait() -> None:
    assert longest([[0.001, 0.02], []]) == [20.0]
