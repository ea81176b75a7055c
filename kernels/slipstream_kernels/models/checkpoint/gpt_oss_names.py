"""Tensors of gpt-oss's layers of experts: one for all experts, whose gates and ups take turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import BLOCKS, GROUP, SCALES
from slipstream_kernels.ops.quantised_weight import QuantisedWeight

_PART = re.compile(r"(.*\.)mlp\.experts\.\d+\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
_FUSED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks)?")
_ROUTER = ".mlp.router."


def stored_gpt_oss_name(name: str, *, packed: bool) -> str:
    """What the tensor of the folder is called that holds one of a layer, by the name it is computed with."""
    found = _PART.fullmatch(name)
    if found is None:
        return name.replace(".mlp.gate.", _ROUTER)
    prefix, part, kind = found.groups()
    fused = "down_proj" if part == "down_proj" else "gate_up_proj"
    return f"{prefix}mlp.experts.{fused}{'_bias' if kind == 'bias' else BLOCKS if packed else ''}"


def gpt_oss_shapes(stored: str, shape: tuple[int, ...], count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of the tensors of the folder whose parts above one another have this shape."""
    found = _FUSED.fullmatch(stored)
    if found is None:
        yield stored, shape
        return
    outputs = shape[0] // count
    if found[3] == "_bias":
        yield stored, (count, outputs)
    elif found[3] == BLOCKS:
        yield stored, (count, outputs, shape[1] // GROUP, GROUP // 2)
        yield stored.removesuffix(BLOCKS) + SCALES, (count, outputs, shape[1] // GROUP)
    else:
        yield stored, (count, shape[1], outputs)


def gpt_oss_parts(
    stored: str, whole: torch.Tensor | Sequence[QuantisedWeight]
) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
    """Name and tensor of what a tensor of the folder holds; of packed ones the weights of all experts are given."""
    found = _FUSED.fullmatch(stored)
    if found is None:
        assert isinstance(whole, torch.Tensor)
        yield stored.replace(_ROUTER, ".mlp.gate."), whole
        return
    prefix, fused, ending = found.groups()
    kind = "bias" if ending == "_bias" else "weight"
    for expert, each in enumerate(whole):
        # Weights that are not packed lie the other way round.
        of_outputs = each.t() if isinstance(each, torch.Tensor) and kind == "weight" else each
        if fused == "down_proj":
            yield f"{prefix}.{expert}.down_proj.{kind}", of_outputs
            continue
        for first, part in enumerate(("gate_proj", "up_proj")):
            rows = slice(first, None, 2)
            half = of_outputs.rows(rows) if isinstance(of_outputs, QuantisedWeight) else of_outputs[rows]
            yield f"{prefix}.{expert}.{part}.{kind}", half
