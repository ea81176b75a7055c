"""What the public layouts of heads of one decoder layer have in common."""

from __future__ import annotations

from typing import Any

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.common.model_shape import ModelShape


def shape_of(target: ModelConfig, intermediate_size: int) -> ModelShape:
    """A layer like the target's, or one with another MLP."""
    return ModelShape(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        layers=1,
        heads=target.num_heads,
        kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=intermediate_size or target.intermediate_size,
        max_positions=target.max_context,
        rope_theta=target.rope.theta,
        rms_norm_eps=target.rms_norm_eps,
    )


def public_config(shape: ModelShape, target: ModelConfig) -> dict[str, Any]:
    """What config.json says of a head of one layer, whatever its family."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": list(target.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
