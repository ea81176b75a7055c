"""Widened models and heads as Hugging Face folders."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from math import prod
from pathlib import Path

import torch

from benchmarks.inflate.gpt_oss_form import GptOssTensors
from benchmarks.inflate.head import HeadSource
from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import Shape
from benchmarks.inflate.shards import SHARD_BYTES, Tensors, check_room, write_weights
from benchmarks.inflate.tensors import RandomModel, TensorSource
from slipstream_kernels.models.checkpoint.model_config import read_json
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.tensor_names import expected_shapes, stored_name

COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_folder(
    source: TensorSource,
    model: Path,
    shape: Shape,
    output: Path,
    *,
    form: RoundedFormat | None = None,
    mxfp4: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config, tokenizer and weights, as files of about `shard_bytes` each; config.json comes last.

    form: to which linear layers are rounded. mxfp4: a gpt-oss with experts in MXFP4, see `gpt_oss_form`. Raises
    NoRoomError before anything is written.
    """
    output.mkdir(parents=True, exist_ok=True)
    config = shape.config_json(read_json(model / "config.json"))
    tensors: Tensors
    if mxfp4:
        converted = GptOssTensors(source, shape, config)
        config, tensors, needed = converted.config_json, converted.stored(), converted.nbytes
    elif form is not None:
        quantised = QuantisedTensors(source, form)
        config["quantization_config"] = quantised.quantisation_config
        tensors, needed = quantised.stored(), quantised.nbytes
    else:
        tensors = _stored(source)
        needed = sum(2 * prod(shape) for _, shape in expected_shapes(source.config))
    check_room(output, needed)
    write_weights(tensors, output, shard_bytes)
    for name in COPIED:
        if (model / name).exists():
            shutil.copyfile(model / name, output / name)
    _write_json(output / "config.json", config)


def _stored(source: TensorSource) -> Tensors:
    """In bfloat16, as the family's folders hold them."""
    if isinstance(source, RandomModel):
        return source.published()
    return ((stored_name(source.config, name), tensor) for name, tensor in source.tensors())


def write_head(
    source: HeadSource, output: Path, *, embedding: torch.Tensor | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a head's weights and then its config; `embedding`, the target's, where it is to have its own."""
    output.mkdir(parents=True, exist_ok=True)
    own = () if embedding is None else (("embed_tokens.weight", embedding),)
    write_weights(chain(source.tensors(), own), output, shard_bytes)
    _write_json(output / "config.json", source.config_json())


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
