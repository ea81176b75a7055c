"""MLP speculators from checkpoint folders: `emb`, `proj`, `ln` and `head`, numbered by stage, after `speculator.`.

Stages may share weights: `tie_weights` (or `tie_wts`) makes all share one embedding, norm and head, and those behind
the first one projection; `tie_emb`, `tie_head` and `tie_transition` each a part of that. Of shared weights a file
holds those of the first stage alone, or equal copies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from draft_service.heads.eagle import Vocabulary
from draft_service.heads.expected import check_tensors
from draft_service.heads.files import read_tensors
from draft_service.heads.mlp_speculator import MlpSpeculator, Stage
from draft_service.heads.names import require
from draft_service.heads.quantised import head_quantisation
from draft_service.heads.vocabulary import token_map
from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    flag,
    read_json,
    size,
)
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.text_part import read_text_fields

_PREFIX = re.compile(r"speculator\.")


_SHAPES = {
    "emb.{}.weight": ("vocab_size", "inner"),
    "proj.{}.weight": ("inner", "inner"),
    "ln.{}.weight": ("inner",),
    "ln.{}.bias": ("inner",),
    "head.{}.weight": ("vocab_size", "inner"),
}
"""What a stage has; the first projection reads the target's states, which may have another width."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class SpeculatorConfig:
    """Sizes, and what the stages share.

    width: of the target's states. inner: of the stages'. shared_from: by kind of tensor the first of the stages that
    share it, which is behind the last where none do.
    """

    width: int
    inner: int
    stages: int
    vocab_size: int
    scale_input: bool
    shared_from: Mapping[str, int]
    quantisation: Quantisation | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> SpeculatorConfig:
        """Read config.json. Raises CheckpointError."""
        config = read_json(folder / "config.json")
        width = size(config, "hidden_size" if config.get("emb_dim") is None else "emb_dim")
        stages = size(config, "n_predict")
        whole = flag(config, "tie_weights") or flag(config, "tie_wts")
        embedding, head, transition = (
            0 if whole or flag(config, name) else stages for name in ("tie_emb", "tie_head", "tie_transition")
        )
        return cls(
            width=width,
            inner=width if config.get("inner_dim") in (None, 0) else size(config, "inner_dim"),
            stages=stages,
            vocab_size=size(config, "vocab_size"),
            scale_input=flag(config, "scale_input"),
            shared_from={"emb": embedding, "proj": transition + 1, "ln": transition, "head": head},
            quantisation=head_quantisation(config),
        )

    def name(self, pattern: str, stage: int) -> str:
        """The tensor that a stage uses, of those named by `pattern`."""
        return pattern.format(min(stage, self.shared_from[pattern.partition(".")[0]]))


def load_mlp_speculator(folder: Path, target: Path | None = None, map_file: Path | None = None) -> MlpSpeculator:
    """The speculator in `folder`, for the model in `target`, with whose vocabulary its own is compared.

    map_file: the target ids that are scored (`vocabulary.token_map`); others are left out. Raises CheckpointError.
    """
    config = SpeculatorConfig.from_folder(folder)
    if target is not None and (said := size(read_text_fields(target), "vocab_size")) != config.vocab_size:
        raise CheckpointError(f"config.json: vocab_size is {config.vocab_size}, the target's is {said}")
    tensors = _read(folder, config.quantisation)
    _check(config, tensors)
    ids = None if map_file is None else token_map(map_file, config.vocab_size)
    used = {config.name(pattern, stage) for pattern in _SHAPES for stage in range(config.stages)}
    weights = {name: tensors[name].float() for name in used}
    if ids is not None:
        weights |= {name: rows[ids] for name, rows in weights.items() if name.startswith("head.")}
    stages = []
    for stage in range(config.stages):
        embedding, projection, scale, shift, head = (weights[config.name(pattern, stage)] for pattern in _SHAPES)
        stages.append(Stage(projection, scale, shift, Vocabulary(embedding, head, ids, config.vocab_size)))
    return MlpSpeculator(stages, scale_input=config.scale_input)


def _read(folder: Path, quantisation: Quantisation | None) -> dict[str, torch.Tensor]:
    stored = read_tensors(folder, quantisation=quantisation)
    require("MLP speculator", stored)
    tensors: dict[str, torch.Tensor] = {}
    for original, tensor in stored.items():
        name = _PREFIX.sub("", original, count=1)
        if name in tensors:
            raise CheckpointError(f"tensor {name} is there under two names, one of them {original}")
        tensors[name] = tensor
    return tensors


def _check(config: SpeculatorConfig, tensors: Tensors) -> None:
    """Raises CheckpointError, naming the tensor, unless all are expected, there, and as the config says."""
    sizes = {"vocab_size": config.vocab_size, "inner": config.inner}
    shapes = {
        (pattern, stage): tuple(sizes[name] for name in names)
        for pattern, names in _SHAPES.items()
        for stage in range(config.stages)
    }
    shapes["proj.{}.weight", 0] = (config.inner, config.width)
    required = {config.name(*key): shapes[key] for key in shapes}
    copies = {pattern.format(stage): config.name(pattern, stage) for pattern, stage in shapes}
    optional = {pattern.format(stage): shape for (pattern, stage), shape in shapes.items()}
    check_tensors("an MLP speculator", tensors, required, optional)
    for name, source in copies.items():
        if name in tensors and name != source and not torch.equal(tensors[name], tensors[source]):
            raise CheckpointError(f"{name} differs from {source}, though the config ties their stages")
