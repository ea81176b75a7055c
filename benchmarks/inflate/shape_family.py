"""Shapes of families that a small model does not become: config.json of theirs, for random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from slipstream_kernels.models.checkpoint.llama4_form import LLAMA4
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

if TYPE_CHECKING:
    from benchmarks.inflate.shape import Shape

LLAMA4_SCOUT = "llama4"
"""With parts beside that which is text, as published: of these there are no tensors."""
_ENDS = ("bos_token_id", "eos_token_id")


def family_json(shape: Shape, source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json of `shape.family`; ids of tokens are those of `source`, another config.json.

    As meta-llama/Llama-4-Scout-17B-16E has them, but for the sizes: three layers of four turn their heads and see
    chunks of 8,192 positions, in the fourth queries grow with the position.
    """
    assert shape.family == LLAMA4_SCOUT
    ends = {name: source[name] for name in _ENDS if name in source}
    text = {
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "interleave_moe_layer_step": 1,
        "intermediate_size": shape.intermediate_size,
        "intermediate_size_mlp": 2 * shape.intermediate_size,
        "max_position_embeddings": shape.max_context,
        "no_rope_layer_interval": 4,
        "num_attention_heads": shape.num_heads,
        "num_experts_per_tok": shape.experts_per_token,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "num_local_experts": shape.experts,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "rope_theta": 500000.0,
        "use_qk_norm": True,
        "vocab_size": shape.vocab_size,
    }
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": shape.family,
        "text_config": text,
        "tie_word_embeddings": False,
        **ends,
    }


def family_config(shape: Shape, source: Mapping[str, Any]) -> ModelConfig:
    """What `family_json` says. Raises CheckpointError for sizes that no model has."""
    return config_of(family_json(shape, source))


def config_of(fields: Mapping[str, Any]) -> ModelConfig:
    """What a config.json says that stands alone in its folder. Raises CheckpointError."""
    with TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        return ModelConfig.from_folder(Path(place))


def as_published(config: ModelConfig) -> ModelConfig:
    """The same with the layout that the family's folders have in bfloat16; rounded ones have a module for each part."""
    return replace(config, fused_experts=True) if config.family in LLAMA4 else config
