"""A head as a Hugging Face folder in its family's public layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from training.common.atomic_files import write_whole
from training.common.weight_shards import shards

SHARD_BYTES = 4 << 30


def write_head(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], dtype: torch.dtype) -> None:
    """Write config.json and the weights, float ones in `dtype`: one file, or numbered ones with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("model*.safetensors*"):
        stale.unlink()
    stored = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in sorted(tensors.items())
    }
    split = shards(stored, SHARD_BYTES)
    places: dict[str, str] = {}
    for number, shard in enumerate(split, start=1):
        name = f"model-{number:05d}-of-{len(split):05d}.safetensors" if len(split) > 1 else "model.safetensors"
        write_whole(folder / name, save(shard, metadata={"format": "pt"}))
        places |= dict.fromkeys(shard, name)
    if len(split) > 1:
        total = sum(tensor.nbytes for tensor in stored.values())
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})
    _write_json(folder / "config.json", config | {"torch_dtype": str(dtype).removeprefix("torch.")})


def copy_tokenizer(model: Path, folder: Path) -> None:
    """A whole model brings the tokenizer whose ids it speaks, the target's: a draft service compares the files."""
    for path in sorted(path for pattern in ("tokenizer*", "vocab.json", "merges.txt") for path in model.glob(pattern)):
        write_whole(folder / path.name, path.read_bytes())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2).encode() + b"\n")
