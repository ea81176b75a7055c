"""Models to and from Hugging Face directories: config, bfloat16 safetensors in small shards, generation config."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.common.mixture_model import MixtureLM
from training.common.model import CausalLM
from training.common.model_shape import MixtureShape, ModelShape
from training.common.weight_shards import shards
from training.demo_models.tokenizer import BEGIN, PAD, save_tokenizer, stop_ids, token_id

SHARD_BYTES = 12_000_000


def config_of(shape: ModelShape, tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": token_id(tokenizer, BEGIN),
        "eos_token_id": stop_ids(tokenizer),
        "pad_token_id": token_id(tokenizer, PAD),
        "torch_dtype": "bfloat16",
        **(_mixture_fields(shape) if isinstance(shape, MixtureShape) else {}),
    }


def _mixture_fields(shape: MixtureShape) -> dict[str, Any]:
    """What Qwen3-MoE's config has besides, or otherwise."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": shape.intermediate_size,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def export(model: CausalLM, tokenizer: Tokenizer, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a directory that AutoModelForCausalLM and AutoTokenizer load."""
    save_tokenizer(tokenizer, directory, model.shape.max_positions)
    config = config_of(model.shape, tokenizer)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_weights(model, directory, shard_bytes)


def save_weights(model: CausalLM, directory: Path, shard_bytes: int) -> None:
    """bfloat16 safetensors: one model.safetensors, or numbered shards with their index."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("model*.safetensors*"):
        stale.unlink()
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()
    }
    split = shards(weights, shard_bytes)
    if len(split) == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(split, start=1):
        name = f"model-{number:05d}-of-{len(split):05d}.safetensors"
        save_file(shard, directory / name, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, name)
    total = sum(value.nbytes for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load(directory: Path, dtype: torch.dtype, device: str) -> CausalLM:
    """The exported model, its weights and computation in `dtype`."""
    config = json.loads((directory / "config.json").read_text())
    sizes = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "intermediate_size": config["intermediate_size"],
        "max_positions": config["max_position_embeddings"],
        "rope_theta": config["rope_theta"],
        "rms_norm_eps": config["rms_norm_eps"],
    }
    model: CausalLM
    if config["model_type"] == "qwen3_moe":
        experts = {"experts": config["num_experts"], "experts_per_token": config["num_experts_per_tok"]}
        sizes["intermediate_size"] = config["moe_intermediate_size"]
        model = MixtureLM(MixtureShape(**sizes, **experts), dtype)
    else:
        model = CausalLM(ModelShape(**sizes), dtype)
    weights: dict[str, Tensor] = {}
    for path in sorted(directory.glob("model*.safetensors")):
        weights |= load_file(path)
    model = model.to(device)
    model.load_state_dict({name: value.to(device, dtype) for name, value in weights.items()}, assign=True)
    return model.requires_grad_(False)
