from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import check_headers
from support.experts import fuse_experts
from support.families import EXPERTS
from support.models import make_tiny_model

BASE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "num_experts_per_tok": 2,
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8}
QWEN3 = {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 48}
QWEN2 = QWEN3 | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 96}


def read(folder: Path, changes: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(BASE | changes))
    return ModelConfig.from_folder(folder)


def test_families(tmp_path: Path) -> None:
    config = read(tmp_path, MIXTRAL)
    assert config.form.experts == ExpertForm(8, 2, 192, (True,) * 4, normalised=True)
    assert (config.rope.theta, config.widest_intermediate) == (1e6, 0)
    config = read(tmp_path, QWEN2)
    assert config.form.experts == ExpertForm(8, 2, 48, (True,) * 4, normalised=False, shared_size=96)
    assert config.form.qkv_bias and config.widest_intermediate == 96
    assert not read(tmp_path, QWEN2 | {"qkv_bias": False}).form.qkv_bias
    form = read(tmp_path, QWEN3 | {"norm_topk_prob": True}).form
    assert form.head_norms and form.experts is not None and form.experts.normalised
    assert read(tmp_path, MIXTRAL | {"sliding_window": 64}).attention_of(3).window == 64


def test_layers_without_experts(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3 | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [config.has_experts(layer) for layer in range(4)] == [False, True, False, False]
    assert [config.intermediate_of(layer) for layer in range(4)] == [192, 0, 192, 192]
    assert config.layers_of_all_kinds == 2
    assert read(tmp_path, QWEN3 | {"mlp_only_layers": [0, 1, 2, 3]}).form.experts is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (MIXTRAL | {"num_local_experts": None}, "num_local_experts is None, must be a positive integer"),
        (MIXTRAL | {"num_local_experts": 10**6}, "num_local_experts is 1000000, the limit is 2048"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, above num_local_experts, 8"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "num_experts_per_tok is 0, must be a positive integer"),
        (QWEN3 | {"num_experts": "all"}, "num_experts is 'all', must be a positive integer"),
        (QWEN3 | {"num_experts_per_tok": 10**3}, "num_experts_per_tok is 1000, the limit is 32"),
        (QWEN3 | {"moe_intermediate_size": 40}, "moe_intermediate_size is 40, must be a multiple of 16"),
        (QWEN3 | {"moe_intermediate_size": None}, "moe_intermediate_size is None"),
        (QWEN3 | {"norm_topk_prob": 1}, "norm_topk_prob is 1, must be true or false"),
        (QWEN3 | {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (QWEN3 | {"mlp_only_layers": [4]}, r"mlp_only_layers is \[4\], must be a list of layers from 0 to 3"),
        (QWEN3 | {"use_sliding_window": True}, "use_sliding_window is set, which is not supported"),
        (QWEN2 | {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size is 8, must be a multiple"),
        (QWEN2 | {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size is None"),
        (QWEN2 | {"hidden_act": "gelu"}, "hidden_act is 'gelu', supported is 'silu'"),
    ],
)
def test_what_lies_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, changes)


@pytest.mark.parametrize("fused", [False, True])
def test_tensors_that_do_not_fit_the_config(tmp_path: Path, fused: bool) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["qwen3_moe"])
    if fused:
        fuse_experts(folder)
    config = json.loads((folder / "config.json").read_text())

    def check(**changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config | changes))
        check_headers(folder, ModelConfig.from_folder(folder))

    check()
    with pytest.raises(CheckpointError, match=r"has shape .*, expected"):
        check(num_experts=10)
    with pytest.raises(CheckpointError, match=r"has shape .*, expected"):
        check(moe_intermediate_size=64)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if "layers.2.mlp.gate." not in name}, path)
    with pytest.raises(CheckpointError, match=r"1 tensors are missing, .* model\.layers\.2\.mlp\.gate\.weight"):
        check()


def test_gpt_oss(tmp_path: Path) -> None:
    changes = {"model_type": "gpt_oss", "num_local_experts": 8, "sliding_window": 128}
    config = read(tmp_path, changes)
    form = config.form
    assert form.experts == ExpertForm(8, 2, 192, (True,) * 4, normalised=True, biased=True, limit=7.0)
    assert form.sinks and form.qkv_bias and form.output_bias and config.rope.theta == 1.5e5 and config.head_dim == 64
    assert [config.attention_of(layer).window for layer in range(4)] == [128, 0, 128, 0]
    assert config.layers_of_all_kinds == 2
    with pytest.raises(CheckpointError, match="swiglu_limit is 0, must be a positive number"):
        read(tmp_path, changes | {"swiglu_limit": 0})
