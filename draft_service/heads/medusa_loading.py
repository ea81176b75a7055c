"""Medusa heads from checkpoint folders: the original's, TGI's, vLLM's, and those inside a whole model.

How many heads there are is told by the tensors. Heads without scoring rows share the target's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from draft_service.heads.files import USUAL_FILES, read_tensors, tensor_names
from draft_service.heads.loading import target_rows
from draft_service.heads.medusa import MedusaHead, MedusaHeads
from draft_service.heads.medusa_names import SHARED_ROWS, MedusaNames
from draft_service.heads.names import require
from draft_service.heads.quantised import head_quantisation
from draft_service.heads.vocabulary import indices, token_map
from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    number,
    read_json,
    size,
)
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.text_part import read_text_fields

_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", *USUAL_FILES)
_PREFIX = re.compile(r"medusa_heads?\.")
_MAP = "token_map"


def load_medusa(folder: Path, target: Path | None = None, map_file: Path | None = None) -> MedusaHeads:
    """The heads in `folder`, with the scoring rows of the model in `target` where they have none themselves.

    map_file: the target ids that are scored (`vocabulary.token_map`); others are left out. Raises CheckpointError.
    """
    config = read_json(folder / "config.json")
    tensors = _read(folder, head_quantisation(config))
    stored_map = tensors.pop(_MAP, None)
    names = MedusaNames.of(config, tensors)
    if not names.own_rows and SHARED_ROWS not in tensors:
        if target is None:
            raise CheckpointError(f"{names.own(0)} is missing; name the target's folder, from which rows are taken")
        tensors[SHARED_ROWS] = target_rows(target)[1]
    names.check(config, tensors)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    entries = len(tensors[names.rows(0)])
    vocab_size = _vocab_size(config, target, entries, mapped=stored_map is not None)
    ids, chosen = _scored(config, entries, stored_map, map_file, vocab_size)
    rows = {name: tensors[name] for name in map(names.rows, range(names.heads))}
    if chosen is not None:
        rows = {name: each[chosen] for name, each in rows.items()}
    heads = []
    for head in range(names.heads):
        layers = [
            (tensors[names.layer(head, layer, "weight")], tensors.get(names.layer(head, layer, "bias")))
            for layer in range(names.layers)
        ]
        heads.append(MedusaHead(layers, rows[names.rows(head)]))
    return MedusaHeads(heads, ids, vocab_size, number(config, "logit_scale", 1.0))


def _read(folder: Path, quantisation: Quantisation | None) -> dict[str, torch.Tensor]:
    """The heads' tensors without prefix. Those of a whole model around them are left out, save rows that they need."""
    names = tensor_names(folder, singles=_FILES, quantisation=quantisation)
    require("Medusa", names)
    if any(_PREFIX.match(name) for name in names):
        scored = any(re.fullmatch(r"medusa_heads?\.(\d+\.\d+|lm_heads\.\d+)\.weight", name) for name in names)
        names = [name for name in names if not name.startswith("model.") and not (scored and name == SHARED_ROWS)]
    tensors: dict[str, torch.Tensor] = {}
    stored = read_tensors(folder, names, singles=_FILES, quantisation=quantisation)
    for original, tensor in stored.items():
        name = _PREFIX.sub("", original, count=1)
        if name in tensors:
            raise CheckpointError(f"tensor {name} is there under two names, one of them {original}")
        tensors[name] = tensor
    return tensors


def _vocab_size(config: Mapping[str, Any], target: Path | None, entries: int, *, mapped: bool) -> int:
    """Of the target: as its folder says, else as the heads' config does, else what they score."""
    own = size(config, "vocab_size") if config.get("vocab_size") is not None else None
    if target is None:
        if own is None and mapped:
            raise CheckpointError(f"config.json: vocab_size is missing, to which {_MAP} leads")
        return own or entries
    said = size(read_text_fields(target), "vocab_size")
    if own not in (None, said):
        raise CheckpointError(f"config.json: vocab_size is {own}, the target's is {said}")
    return said


def _scored(
    config: Mapping[str, Any], entries: int, stored: torch.Tensor | None, map_file: Path | None, vocab_size: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The target's id of each token that is scored, and the rows that score them; None for all as they are.

    As in vLLM a stored map counts only where fewer tokens are scored than there are.
    """
    scored = size(config, "truncated_vocab_size", entries)
    if entries not in (scored, vocab_size):
        raise CheckpointError(f"the heads have {entries} scoring rows, expected {scored} or {vocab_size}")
    if scored == vocab_size:
        ids = None if map_file is None else token_map(map_file, vocab_size)
        return ids, ids
    if stored is None:
        raise CheckpointError(f"{_MAP} is missing: {scored} tokens of {vocab_size} are scored")
    if map_file is not None:
        raise CheckpointError(f"a token map is for heads without one; these have the tensor {_MAP}")
    ids = indices(stored, vocab_size, _MAP)
    if len(ids) != scored:
        raise CheckpointError(f"{_MAP} names {len(ids)} tokens, {scored} are scored")
    return ids, ids if entries == vocab_size else None
