from __future__ import annotations

from pathlib import Path

from benchmarks.lib.random_adapter import write_random_adapter
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import adaptable_modules, read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig


def test_what_is_written_is_read(tiny_model: Path, tmp_path: Path) -> None:
    config = ModelConfig.from_folder(tiny_model)
    read = [
        read_adapter(write_random_adapter(tmp_path / str(seed), tiny_model, seed=seed, rank=8, strength=0.5), config)
        for seed in (1, 2)
    ]
    assert {len(each.weights) for each in read} == {len(adaptable_modules(config))}
    assert read[0].rank == 8 and read[0].fingerprint != read[1].fingerprint
    weight = read[0].weights["model.layers.0.mlp.down_proj"]
    added = (weight.b.float() @ weight.a.float()).norm(dim=1).mean() * weight.scale
    assert 0.3 < added < 0.8  # beside inputs of size 1
