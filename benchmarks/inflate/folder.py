"""Widened models and heads as Hugging Face folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from benchmarks.inflate.head import HeadSource
from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import Shape
from benchmarks.inflate.tensors import TensorSource
from slipstream_kernels.models.checkpoint.model_config import read_json
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.tensor_names import stored_name

SHARD_BYTES = 4 << 30
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_folder(
    source: TensorSource,
    model: Path,
    shape: Shape,
    output: Path,
    *,
    form: RoundedFormat | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config, tokenizer and weights, as files of about `shard_bytes` each; config.json comes last.

    form: to which linear layers are rounded.
    """
    output.mkdir(parents=True, exist_ok=True)
    config = shape.config_json(read_json(model / "config.json"))
    tensors: Iterable[tuple[str, torch.Tensor]] = (
        (stored_name(source.config, name), tensor) for name, tensor in source.tensors()
    )
    if form is not None:
        quantised = QuantisedTensors(source, form)
        config["quantization_config"] = quantised.quantisation_config
        tensors = quantised.stored()
    _write_weights(tensors, output, shard_bytes)
    for name in COPIED:
        if (model / name).exists():
            shutil.copyfile(model / name, output / name)
    _write_json(output / "config.json", config)


def write_head(
    source: HeadSource, output: Path, *, embedding: torch.Tensor | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a head's weights and then its config; `embedding`, the target's, where it is to have its own."""
    output.mkdir(parents=True, exist_ok=True)
    own = () if embedding is None else (("embed_tokens.weight", embedding),)
    _write_weights(chain(source.tensors(), own), output, shard_bytes)
    _write_json(output / "config.json", source.config_json())


def _write_weights(tensors: Iterable[tuple[str, torch.Tensor]], output: Path, shard_bytes: int) -> None:
    total = 0
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def save() -> None:
        file = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        save_file(shard, output / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        shard.clear()

    with tqdm(desc=str(output), unit="B", unit_scale=True) as bar:
        for name, tensor in tensors:
            shard[name] = tensor.cpu().contiguous()
            total += tensor.nbytes
            bar.update(tensor.nbytes)
            if sum(each.nbytes for each in shard.values()) >= shard_bytes:
                save()
        if shard:
            save()
    _write_json(output / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
