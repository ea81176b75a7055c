"""Tensors of a Hugging Face folder with safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, regular_size, shown
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING, HEAD
from slipstream_kernels.models.checkpoint.weight_file import FLOATS, WeightFile, open_weights, weight_files

__all__ = [
    "expected_shapes",
    "iterate_tensors",
    "load_tensors",
    "mtp_prefixes",
    "used_names",
    "weight_bytes",
    "weight_files",
]

_DERIVED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""Buffers that some files hold and that the config determines."""


def weight_bytes(folder: Path, config: ModelConfig) -> int:
    """Bytes of the files of `weight_files`, less those of tensors that the model does not use.

    Raises CheckpointError.
    """
    total = 0
    for path in weight_files(folder):
        total += regular_size(path)
        with open_weights(path) as file:
            for name in set(file.names).difference(used_names(config, file.names)):
                total -= prod(file.shape(name)) * FLOATS.get(file.dtype(name), 0)
    return total


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of the model."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    yield EMBEDDING, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        for name, size in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            yield f"{prefix}self_attn.{name}_proj.weight", (size, hidden)
            if config.attention_bias:
                yield f"{prefix}self_attn.{name}_proj.bias", (size,)
        if config.head_norms:
            yield prefix + "self_attn.q_norm.weight", (config.head_dim,)
            yield prefix + "self_attn.k_norm.weight", (config.head_dim,)
        yield prefix + "self_attn.o_proj.weight", (hidden, config.q_size)
        yield prefix + "mlp.gate_proj.weight", (intermediate, hidden)
        yield prefix + "mlp.up_proj.weight", (intermediate, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, hidden)


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """What names of tensors of the layers that predict further tokens begin with, in MiMo's and DeepSeek's layout."""
    layers = range(config.num_mtp_layers)
    return (
        *(f"model.mtp_layers.{layer}." for layer in layers),
        *(f"model.layers.{config.num_layers + layer}." for layer in layers),
    )


def used_names(config: ModelConfig, names: Sequence[str]) -> list[str]:
    """Those of a file's tensors that the model reads, or has no place for, in order.

    The others are layers that predict further tokens, buffers that follow from the config, and, where the head is the
    embedding, its copy.
    """
    prefixes, copy = mtp_prefixes(config), HEAD if config.tie_word_embeddings else ""
    return [name for name in names if not (name.startswith(prefixes) or name == copy or _DERIVED.fullmatch(name))]


def iterate_tensors(folder: Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of all tensors of the model, in bfloat16 (wider ones are rounded), read one after the other.

    Those that are not `used_names` are left out. Raises CheckpointError, before any is read, unless names, shapes and
    types of all others fit exactly.
    """
    files = weight_files(folder)
    _check_headers(folder, config, files)
    for path in files:
        with open_weights(path) as file:
            for name in used_names(config, file.names):
                yield name, file.read(name).to(torch.bfloat16)


def load_tensors(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All of `iterate_tensors`, by name."""
    return dict(iterate_tensors(folder, config))


def _check_headers(folder: Path, config: ModelConfig, files: Sequence[Path]) -> None:
    shapes = dict(expected_shapes(config))
    for path in files:
        with open_weights(path) as file:
            for name in used_names(config, file.names):
                _check(file, name, shapes.pop(name, None), path)
    if shapes:
        missing = sorted(shapes)
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")


def _check(file: WeightFile, name: str, shape: tuple[int, ...] | None, path: Path) -> None:
    if shape is None:
        raise CheckpointError(f"{path}: unexpected tensor {name}")
    if file.shape(name) != shape:
        raise CheckpointError(f"{path}: {name} has shape {shown(list(file.shape(name)))}, expected {list(shape)}")
    if file.dtype(name) not in FLOATS:
        raise CheckpointError(f"{path}: {name} has dtype {file.dtype(name)}, expected one of {', '.join(FLOATS)}")
