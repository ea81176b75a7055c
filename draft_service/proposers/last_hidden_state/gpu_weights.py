"""Weights that draft from one state of the target, as they were read from a folder, as those of a GPU's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draft_service.heads.medusa import MedusaHeads
from draft_service.heads.mlp_speculator import EPS, MlpSpeculator
from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError, check_room, check_sizes
from draft_service.proposers.gpu_common.weight_rounding import tell_rounding
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.networks.hidden_state_forward import HiddenStateForward
from slipstream_kernels.models.gpu.draft.networks.medusa_forward import MedusaWeights
from slipstream_kernels.models.gpu.draft.networks.mlp_speculator_forward import SpeculatorStage, SpeculatorWeights
from slipstream_kernels.ops.gpu.draft_combine import MOST_LEVELS


class HiddenStateWeights(Protocol):
    """`MedusaWeights` or `SpeculatorWeights`."""

    @property
    def entries(self) -> int:
        """Tokens that are scored."""
        ...

    @property
    def ids(self) -> torch.Tensor | None:
        """int32 [entries], the target's id of each entry; None where both are the same."""
        ...

    def limited(self, size: int) -> HiddenStateWeights:
        """The same, scoring ids below `size` alone."""
        ...

    def forward(self, ops: DraftOps) -> HiddenStateForward:
        """What computes with them."""
        ...


def state_weights(head: object, levels: int, device: torch.device) -> HiddenStateWeights:
    """The weights rounded to bfloat16, for paths of up to `levels` tokens.

    Raises NoGpuFormError, or CheckpointError where there is no room.
    """
    if isinstance(head, MedusaHeads):
        return _medusa(head, levels, device)
    if isinstance(head, MlpSpeculator):
        return _speculator(head, levels, device)
    raise NoGpuFormError(f"no kernels of a GPU compute a {type(head).__name__}")


class _Placed:
    """Tensors on the device, those that are used more than once the same."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """One after the other along their first dimension, bfloat16."""
        key = tuple(tensor.data_ptr() for tensor in tensors)
        if key not in self._made:
            parts = [tensor.to(self._device, torch.bfloat16) for tensor in tensors]
            self._made[key] = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
        return self._made[key]


def _medusa(heads: MedusaHeads, levels: int, device: torch.device) -> MedusaWeights:
    check_sizes({"hidden_size": heads.hidden_size}, device=device)
    if levels > MOST_LEVELS:
        raise NoGpuFormError(f"its {levels} heads make paths of as many tokens; a GPU takes {MOST_LEVELS}")
    used = heads.heads[:levels]
    layers = list(zip(*(head.layers for head in used), strict=True))
    matrices = [weight for layer in layers for weight, _ in layer]
    matrices += [head.rows for head in used]
    check_room(_bytes_of(matrices), device)
    tell_rounding(matrices, device)
    placed = _Placed(device)
    made: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for layer in layers:
        biases = [bias for _, bias in layer if bias is not None]
        made.append((placed(*(weight for weight, _ in layer)), placed(*biases) if biases else None))
    rows = [placed(head.rows) for head in used]
    return MedusaWeights(made, rows, _ids(heads.ids, device), heads.scale)


def _speculator(speculator: MlpSpeculator, levels: int, device: torch.device) -> SpeculatorWeights:
    used = speculator.stages[:levels]
    check_sizes({"emb_dim": speculator.hidden_size, "inner_dim": len(used[0].projection)}, device=device)
    matrices = [
        each for stage in used for each in (stage.projection, stage.vocabulary.embedding, stage.vocabulary.head)
    ]
    check_room(_bytes_of(matrices), device)
    tell_rounding(matrices, device)
    placed = _Placed(device)
    stages = [
        SpeculatorStage(
            projection=placed(stage.projection),
            table=placed(stage.vocabulary.embedding),
            scale=placed(stage.scale),
            shift=placed(stage.shift),
            rows=placed(stage.vocabulary.head),
        )
        for stage in used
    ]
    ids = _ids(used[0].vocabulary.ids, device)
    return SpeculatorWeights(stages, ids, speculator.embedding_weight, EPS, speculator.scale_input)


def _ids(ids: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if ids is None else ids.to(device, torch.int32)


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Of what they take as bfloat16, what is shared counted once."""
    return sum({tensor.data_ptr(): 2 * tensor.numel() for tensor in tensors}.values())
