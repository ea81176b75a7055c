"""Tensors and identity of a Hugging Face folder with safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from slipstream_kernels.models.config import CheckpointError, ModelConfig, read_json

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """sha256 digests in hexadecimal. Equal `tokenizer` digests mean equal token ids."""

    model: str
    tokenizer: str


def fingerprint(folder: Path) -> Fingerprint:
    """Identity of a model: its config, tokenizer and the headers (names, types, shapes) of its weights."""
    tokenizer = hashlib.sha256()
    for path in (folder / name for name in _TOKENIZER_FILES):
        if path.exists():
            tokenizer.update(path.name.encode() + b"\0" + path.read_bytes())
    model = hashlib.sha256(tokenizer.digest())
    try:
        model.update((folder / "config.json").read_bytes())
        for path in weight_files(folder):
            with path.open("rb") as file:
                size = file.read(8)
                model.update(path.name.encode() + b"\0" + size + file.read(int.from_bytes(size, "little")))
    except OSError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return Fingerprint(model=model.hexdigest(), tokenizer=tokenizer.hexdigest())


def weight_files(folder: Path, single: str = "model.safetensors") -> list[Path]:
    """The files of a folder that hold its weights, in order of name: those of the index of `single`, or that one."""
    index = folder / f"{single}.index.json"
    if not index.exists():
        if not (folder / single).exists():
            raise CheckpointError(f"{folder}: neither {single} nor {index.name}")
        return [folder / single]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: weight_map is missing")
    names = sorted(set(weight_map.values()))
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index}: weight_map names files outside the folder")
    return [folder / name for name in names]


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of the model."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
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
        yield "lm_head.weight", (config.vocab_size, hidden)


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """What names of tensors of the layers that predict further tokens begin with, in MiMo's and DeepSeek's layout."""
    layers = range(config.num_mtp_layers)
    return (
        *(f"model.mtp_layers.{layer}." for layer in layers),
        *(f"model.layers.{config.num_layers + layer}." for layer in layers),
    )


def iterate_tensors(folder: Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of all tensors of the model, in bfloat16 (wider ones are rounded), read one after the other.

    Those of layers that predict further tokens are left out. Raises CheckpointError unless names and shapes of all
    others fit exactly; that a tensor is missing shows at the end.
    """
    shapes, left_out = dict(expected_shapes(config)), mtp_prefixes(config)
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (the file object is no mapping)
                    if not name.startswith(left_out):
                        yield name, _checked(file.get_tensor(name), name, shapes.pop(name, None), path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    if shapes:
        missing = sorted(shapes)
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")


def load_tensors(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All of `iterate_tensors`, by name."""
    return dict(iterate_tensors(folder, config))


def _checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...] | None, path: Path) -> torch.Tensor:
    if shape is None:
        raise CheckpointError(f"{path}: unexpected tensor {name}")
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"{path}: {name} has shape {list(tensor.shape)}, expected {list(shape)}")
    if not tensor.is_floating_point():
        raise CheckpointError(f"{path}: {name} has dtype {tensor.dtype}, expected a floating-point one")
    return tensor.to(torch.bfloat16)
