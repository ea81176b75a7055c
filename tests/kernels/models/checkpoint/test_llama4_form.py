from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.ops.query_temperature import QueryTemperature
from slipstream_kernels.ops.rope import STILL, Llama3Scaling, Rope

LEAST = {
    "model_type": "llama4_text",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "intermediate_size_mlp": 320,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "max_position_embeddings": 65536,
}
SCOUT_ROPE = {
    "factor": 16.0,
    "high_freq_factor": 1.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def read(folder: Path, changes: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(LEAST | changes))
    return ModelConfig.from_folder(folder)


def test_what_is_not_named_is_as_published(tmp_path: Path) -> None:
    """Every fourth layer turns no heads and has no chunks; all have 16 experts and a shared one."""
    config = read(tmp_path, {"rope_scaling": SCOUT_ROPE})
    assert [config.turns(layer) for layer in range(8)] == [True, True, True, False] * 2
    assert [each.chunk for each in config.attention_forms] == [8192, 8192, 8192, 0] * 2
    assert [config.normalises_heads(layer) for layer in range(8)] == [True, True, True, False] * 2
    assert config.temperature_of(3) == QueryTemperature(8192, 0.1) and config.temperature_of(2) is None
    turning = Rope(5e5, Llama3Scaling(16.0, 1.0, 1.0, 8192))
    assert config.ropes == (turning, STILL) and config.rope_of(7) == STILL
    layers = (True,) * 8
    assert config.form.experts == ExpertForm(
        16, 1, 192, layers, normalised=False, shared_size=192, weighs_inputs=True
    )  # fmt: skip
    assert (config.head_dim, config.intermediate_size, config.widest_intermediate) == (128, 320, 192)
    assert config.layers_of_all_kinds == 4
    assert config.form.experts.scores == 16


def test_equal_limits_have_no_ramp_between_them() -> None:
    """As the folders of Scout have them."""
    scaling = Llama3Scaling(16.0, 1.0, 1.0, 8192)
    plain = [2 * 3.141592653589793 * turns / 8192 for turns in (0.5, 0.999, 1.0, 1.001, 3)]
    assert [scaling._scaled(each) / each for each in plain] == [1 / 16, 1 / 16, 1, 1, 1]


def test_layers_of_all_kinds(tmp_path: Path) -> None:
    """As Maverick: dense layers between those of experts, and heads that are not normalised."""
    config = read(tmp_path, {"interleave_moe_layer_step": 2, "use_qk_norm": False, "num_local_experts": 128})
    assert [config.has_experts(layer) for layer in range(8)] == [False, True] * 4
    assert [config.intermediate_of(layer) for layer in range(2)] == [320, 192]
    assert not any(map(config.normalises_heads, range(8)))
    config = read(
        tmp_path,
        {
            "moe_layers": [],
            "no_rope_layers": [1, 0, 1, 1, 0, 1, 1, 1],
            "layer_types": ["full_attention"] * 7 + ["chunked_attention"],
            "attention_chunk_size": 64,
            "attn_temperature_tuning": 0,
        },
    )
    assert config.form.experts is None and config.widest_intermediate == 320
    assert [layer for layer in range(8) if not config.turns(layer)] == [1, 4]
    assert [each.chunk for each in config.attention_forms] == [0] * 7 + [64]
    assert config.temperatures == ()
    assert read(tmp_path, {"attn_temperature_tuning": 4}).temperatures == (QueryTemperature(8192, 0.1),)
    assert read(tmp_path, {"attention_chunk_size": None}).form.chunk == 0
    assert read(tmp_path, {"attention_chunk_size": 65536}).form.chunk == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\], must be a list of 8, each 0 or 1"),
        ({"no_rope_layers": [2] * 8}, r"no_rope_layers is \[2, .*, must be a list of 8, each 0 or 1"),
        ({"no_rope_layers": "all"}, "no_rope_layers is 'all', must be a list of 8"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0, must be a positive integer"),
        ({"attention_chunk_size": 0}, "attention_chunk_size is 0, must be a positive integer"),
        ({"attention_chunk_size": 1 << 25}, "attention_chunk_size is 33554432, the limit is 16777216"),
        ({"layer_types": ["sliding_attention"] * 8}, "layer_types has 'sliding_attention', supported are full_"),
        ({"attn_temperature_tuning": "on"}, "attn_temperature_tuning is 'on', must be true or false"),
        ({"floor_scale": 0.5}, "floor_scale is 0.5, must be a positive integer"),
        ({"attn_scale": -1}, "attn_scale is -1, must be a positive number"),
        ({"use_qk_norm": 1}, "use_qk_norm is 1, must be true or false"),
        ({"moe_layers": [8]}, r"moe_layers is \[8\], must be a list of layers from 0 to 7"),
        ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step is 0"),
        ({"intermediate_size": 40}, "intermediate_size is 40, must be a multiple of 16"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok is 17, above num_local_experts, 16"),
        ({"mlp_bias": True}, "mlp_bias is set, which is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window is set, which is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', supported is 'silu'"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            "rope_type is one that scales heads, which use_qk_norm does not allow",
        ),
        (
            {"rope_scaling": SCOUT_ROPE | {"low_freq_factor": 2.0}},
            "low_freq_factor is 2.0, must not be above high_freq_factor, 1.0",
        ),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "quant_method 'fbgemm_fp8'"),
    ],
)
def test_what_lies_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, changes)
