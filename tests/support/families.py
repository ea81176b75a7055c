"""Small models of every family and form: arguments of `make_tiny_model` by name."""

from __future__ import annotations

from typing import Any

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "longrope",
        "short_factor": [1 + i / 64 for i in range(pairs)],
        "long_factor": [1 + i / 8 for i in range(pairs)],
        **more,
    }


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"overrides": {"rope_scaling": {"type": "linear", "factor": 4.0}}},
    "dynamic": {"overrides": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}},
    "llama3": {"overrides": {"rope_theta": None, "rope_parameters": _LLAMA3}},
    "yarn": {"overrides": {"rope_scaling": _YARN}},
    "yarn, mscale": {"overrides": {"rope_scaling": _YARN | {"mscale": 1.2, "mscale_all_dim": 0.7}}},
    "yarn, bounds between pairs": {
        "overrides": {
            "rope_theta": None,
            "rope_parameters": _YARN | {"rope_theta": 1.5e5, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
        }
    },
    "longrope, long": {
        "overrides": {"rope_scaling": _longrope(32, factor=8.0, original_max_position_embeddings=64)},
    },
    "longrope, short": {
        "overrides": {"rope_scaling": _longrope(32, factor=2.0, original_max_position_embeddings=512)},
    },
}
"""Every rotary scaling."""

GEMMA2: dict[str, Any] = {
    "family": "gemma2",
    "layers": 3,
    "hidden_size": 64,
    "overrides": {
        "sliding_window": 20,
        "query_pre_attn_scalar": 100,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
}
"""With windows and bounds that texts of a hundred tokens feel; the root of its hidden size is one of bfloat16's."""

EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {
        "family": "mixtral",
        "tied": False,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 48,
        "overrides": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    },
    "qwen2_moe": {
        "family": "qwen2_moe",
        "tied": False,
        "hidden_size": 160,
        "head_dim": 80,
        "overrides": {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 80,
        },
    },
    "qwen3_moe": {
        "family": "qwen3_moe",
        "layers": 3,
        "overrides": {
            "num_experts": 9,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    },
    "gpt_oss": {
        "family": "gpt_oss",
        "tied": False,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 96,
        "overrides": {
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "sliding_window": 20,
            "rope_scaling": _YARN | {"truncate": False},
        },
    },
    "llama4": {
        "family": "llama4_text",
        "layers": 5,
        "tied": False,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 48,
        "overrides": {
            "num_local_experts": 6,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
            "moe_layers": [0, 2, 3, 4],
            "no_rope_layers": [1, 1, 0, 1, 1],
            "attention_chunk_size": 16,
            "attn_temperature_tuning": True,
            "floor_scale": 20,
            "attn_scale": 0.3,
            "rope_theta": None,
            "rope_parameters": _LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.0},
        },
    },
    "llama4, two of all": {
        "family": "llama4_text",
        "layers": 4,
        "intermediate_size": 64,
        "overrides": {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 24,
            "attn_temperature_tuning": False,
            "use_qk_norm": False,
            "rope_theta": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
"""Mixtures of experts: all layers, with one that computes every row, with a layer that has none, with biases, and with
weights of what experts read, chunks, and layers whose heads do not turn."""

FORMS: dict[str, dict[str, Any]] = {
    "llama, all biases": {"overrides": {"attention_bias": True, "mlp_bias": True}},
    "qwen3, biases": {"family": "qwen3", "overrides": {"attention_bias": True}},
    "mistral, window": {"family": "mistral", "heads": 4, "kv_heads": 2, "overrides": {"sliding_window": 37}},
    "qwen2, window above": {
        "family": "qwen2",
        "layers": 3,
        "overrides": {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    },
    "qwen3, window between": {
        "family": "qwen3",
        "layers": 3,
        "overrides": {
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    },
    "phi3": {"family": "phi3", "tied": False, "heads": 4, "kv_heads": 2, "overrides": {"sliding_window": 37}},
    "phi4-mini": {
        "family": "phi3",
        "heads": 3,
        "hidden_size": 192,
        "overrides": {
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            "rope_scaling": _longrope(24),
        },
    },
    "phi3-mini": {
        "family": "phi3",
        "tied": False,
        "head_dim": 96,
        "hidden_size": 192,
        "overrides": {"original_max_position_embeddings": 64, "rope_scaling": _longrope(48)},
    },
    "gemma2": GEMMA2,
    "gemma3": {
        "family": "gemma3_text",
        "layers": 7,
        "hidden_size": 64,
        "overrides": {
            "sliding_window": 20,
            "rope_theta": 1e6,
            "rope_local_base_freq": 5e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    },
    "gemma3, transformers 5": {
        "family": "gemma3_text",
        "layers": 3,
        "hidden_size": 64,
        "head_dim": 128,
        "overrides": {
            "rope_theta": None,
            "attention_bias": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                "full_attention": _YARN | {"rope_theta": 1e6},
            },
        },
    },
}
"""Every way in which a family differs from a Llama."""
