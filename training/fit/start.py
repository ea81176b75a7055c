"""A head that another run has made, to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from slipstream_kernels.models.checkpoint import weight_files
from slipstream_kernels.models.config import CheckpointError
from training.durable import described
from training.fit.family import Head
from training.fit.target import read_named
from training.fit.vocabulary import DraftVocabulary


def begin_as(head: Head, folder: Path) -> None:
    """Give `head` the weights in `folder`, which are in bfloat16 if `fit` wrote them.

    CheckpointError where there is no head; ValueError, naming what differs, for one of another family, other shapes or
    another vocabulary.
    """
    config, wanted = config_of(folder), head.config()
    for name in sorted((config.keys() | wanted.keys()) - {"torch_dtype"}):
        if config.get(name) != wanted.get(name):
            raise ValueError(f"start: {name} of {folder} is {config.get(name)}, here it is {wanted.get(name)}")
    own = head.tensors()
    found = tensors_of(folder)
    if different := sorted(own.keys() ^ found.keys()):
        where = "is missing" if different[0] in own else "has no place here"
        raise ValueError(f"start: {different[0]} of {folder} {where}")
    for name, tensor in own.items():
        if tensor.shape != found[name].shape:
            raise ValueError(
                f"start: {name} of {folder} has the shape {list(found[name].shape)}, here it has {list(tensor.shape)}"
            )
        if not tensor.is_floating_point() and not torch.equal(tensor, found[name]):
            raise ValueError(f"start: {name} of {folder} is another: it scores other tokens")
    # Weights come first in `own` and in the order of the module's, as `Head.tensors` has it.
    with torch.no_grad():
        for (name, parameter), public in zip(head.module.state_dict(keep_vars=True).items(), own, strict=False):
            assert public.endswith(name)
            parameter.copy_(found[public])


def vocabulary_of(folder: Path, target_size: int) -> DraftVocabulary:
    """The tokens that the head in `folder` scores, of a target of `target_size`. CheckpointError, ValueError."""
    offsets = tensors_of(folder).get("d2t")
    if offsets is None:
        return DraftVocabulary.whole(target_size)
    ids = offsets + torch.arange(len(offsets))
    if len(ids) > target_size or int(ids.min()) < 0 or int(ids.max()) >= target_size:
        raise ValueError(f"start: {folder} scores tokens outside the target's vocabulary of {target_size}")
    return DraftVocabulary(ids, target_size)


def identity_of(folder: Path) -> dict[str, Any]:
    """What tells a head to begin with from another: where it was, and the hashes of its weights. CheckpointError."""
    return {"folder": str(folder), "weights": [described(path) for path in weight_files(folder)]}


def config_of(folder: Path) -> dict[str, Any]:
    """CheckpointError where there is none."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json: {error}") from error
    return config


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All of a folder. CheckpointError."""
    names = set[str]()
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    return read_named(folder, names)
