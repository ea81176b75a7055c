"""A head that another run has made, to begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.checkpoint.weight_loader import weight_files
from training.common.atomic_files import described
from training.fit.family import Head
from training.fit.target import SCORES, TargetRows, read_named
from training.fit.vocabulary import DraftVocabulary


def begin_as(head: Head, folder: Path, target: TargetRows) -> None:
    """Give `head` the weights in `folder`, which are in bfloat16 if `fit` wrote them.

    CheckpointError where there is no head; ValueError, naming what differs, for one of another family, other shapes or
    another vocabulary. Scoring rows that the folder leaves to the `target` are the target's.
    """
    config, wanted = config_of(folder), head.config()
    for name in sorted((config.keys() | wanted.keys()) - {"torch_dtype"}):
        if config.get(name) != wanted.get(name):
            raise ValueError(f"start: {name} of {folder} is {config.get(name)}, here it is {wanted.get(name)}")
    own = head.tensors()
    found = _scored_alike(own, tensors_of(folder), folder, target)
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
    # Weights come first in `own` and in the order of the module's; what `own` leaves out, the target's scoring rows, is
    # the module's last.
    with torch.no_grad():
        for (name, parameter), public in zip(head.module.state_dict(keep_vars=True).items(), own, strict=False):
            assert public.endswith(name)
            parameter.copy_(found[public])


def _scored_alike(
    own: Mapping[str, Tensor], found: dict[str, Tensor], folder: Path, target: TargetRows
) -> dict[str, Tensor]:
    """`found` with scoring rows where `own` has some, without them where `own` leaves them to the target."""
    if SCORES in own and not found.keys() & {SCORES, "d2t"}:
        return found | {SCORES: target.head}
    if SCORES in found and SCORES not in own and "d2t" not in found:
        if not torch.equal(found[SCORES].to(target.head), target.head):
            raise ValueError(f"start: {SCORES} of {folder} is not the target's, which freeze_scores keeps")
        return {name: tensor for name, tensor in found.items() if name != SCORES}
    return found


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
