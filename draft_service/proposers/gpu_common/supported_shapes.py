"""Which weights can be drafted with on a device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.ops.attention_form import HEAD_DIMS

_MULTIPLE = 16
_MOST_GROUP = 64


class NoGpuFormError(CheckpointError):
    """Weights that only the CPU can draft with. The message says why."""


def check_sizes(sizes: Mapping[str, int], *, device: torch.device) -> None:
    """Raises NoGpuFormError for widths of what linear layers read and write that the kernels do not take."""
    for name, value in sizes.items():
        if device.type == "cuda" and value % _MULTIPLE:
            raise NoGpuFormError(f"{name} is {value}; a GPU takes multiples of {_MULTIPLE}")


def check_shapes(sizes: Mapping[str, int], *, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
    """Raises NoGpuFormError for shapes that the kernels do not take; their twins on the CPU take any.

    sizes: widths of what linear layers read and write, by the names that users know them by.
    """
    check_sizes(sizes, device=device)
    if device.type != "cuda":
        return
    if head_dim not in HEAD_DIMS:
        raise NoGpuFormError(f"head_dim is {head_dim}; a GPU takes {', '.join(map(str, HEAD_DIMS))}")
    group = heads // kv_heads
    if group > _MOST_GROUP:
        raise NoGpuFormError(f"{group} query heads share a KV head; a GPU takes {_MOST_GROUP} at most")


def check_form(model: ModelConfig) -> None:
    """Raises NoGpuFormError for a model whose layers a round does not compute."""
    if named := model.form.beyond_qwen:
        raise NoGpuFormError(f"a {model.family} with {', '.join(named)}: a GPU drafts with none")
    if model.form.local_rope is not None:
        raise NoGpuFormError(f"heads of a {model.family} turn in two ways; a GPU drafts with none")


def check_room(weights: int, device: torch.device) -> None:
    """Raises CheckpointError unless so many bytes of weights are free on the device."""
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if weights > free:
        raise CheckpointError(
            f"its weights take {weights / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free on {device}"
        )
