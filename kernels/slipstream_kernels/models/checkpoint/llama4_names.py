"""Tensors of a Llama-4 by name: as its folder has them, and as they are computed with.

Experts of a layer are one tensor, inputs first, or, where they are quantised, a module each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from slipstream_kernels.models.checkpoint.text_part import TEXT_PREFIX
from slipstream_kernels.ops.quantised_weight import QuantisedWeight

LLAMA4_ROUTER = ".feed_forward.router.weight"
_EXPERT = re.compile(r"(.*\.)mlp\.experts\.\d+\.(gate_proj|up_proj|down_proj)\.weight")
_FUSED = re.compile(r"(.*\.)feed_forward\.experts\.(gate_up_proj|down_proj)")
_NETWORK, _STORED_NETWORK = ".mlp.", ".feed_forward."
_ROUTER = ".mlp.gate.weight"


def stored_llama4_name(name: str, *, nested: bool, fused: bool) -> str:
    """What the tensor of the folder is called that holds one; nested: the folder has other parts than text."""
    prefix = TEXT_PREFIX if nested else ""
    found = _EXPERT.fullmatch(name)
    if fused and found is not None:
        layer, part = found.groups()
        return f"{prefix}{layer}feed_forward.experts.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"
    return prefix + name.replace(_ROUTER, LLAMA4_ROUTER).replace(_NETWORK, _STORED_NETWORK)


def llama4_shapes(stored: str, shape: tuple[int, ...], count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of the tensor of the folder whose parts above one another have this shape."""
    yield stored, (count, shape[1], shape[0] // count) if _FUSED.fullmatch(stored) else shape


def llama4_parts(
    stored: str, tensor: torch.Tensor | QuantisedWeight, device: torch.device | str
) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
    """Name and tensor of what a tensor of the folder holds; experts of one are turned over on `device`, one by one."""
    name = stored.removeprefix(TEXT_PREFIX)
    found = _FUSED.fullmatch(name)
    if found is None:
        yield name.replace(LLAMA4_ROUTER, _ROUTER).replace(_STORED_NETWORK, _NETWORK), tensor
        return
    assert isinstance(tensor, torch.Tensor)
    layer, part = found.groups()
    for expert, each in enumerate(tensor):
        parts = ("down_proj",) if part == "down_proj" else ("gate_proj", "up_proj")
        for own, weight in zip(parts, each.to(device).t().chunk(len(parts)), strict=True):
            yield f"{layer}mlp.experts.{expert}.{own}.weight", weight
