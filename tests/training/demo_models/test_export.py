"""Exported directories load in transformers and give the same logits."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from training.common.model import CausalLM
from training.demo_models.export import export, load


def test_transformers_computes_the_same_logits(model: CausalLM, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    export(model, tokenizer, tmp_path, shard_bytes=60_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 320, (2, 50), generator=torch.Generator().manual_seed(4))
    ours = load(tmp_path, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.allclose(ours(tokens), reference(tokens).logits, atol=2e-4)
    assert reference.generation_config.eos_token_id == reference.config.eos_token_id
    assert ours.shape == model.shape


def test_parameter_count(model: CausalLM) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == model.shape.parameters
