"""Whether a checkpoint's tensors are those that its family has, no more and no fewer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, shown

Shapes = Mapping[str, tuple[int, ...]]
"""Names and shapes; -1 stands for any size above 0."""


def check_tensors(kind: str, tensors: Mapping[str, torch.Tensor], required: Shapes, optional: Shapes) -> None:
    """Raises CheckpointError, naming the tensor, unless all required ones are there and every one is expected, of the
    right shape, of a floating-point type, and finite. `kind` says in the message what the tensors were expected to be.
    """
    if missing := sorted(required.keys() - tensors.keys()):
        raise CheckpointError(f"{len(missing)} tensors are missing: {', '.join(missing[:8])}")
    expected = {**optional, **required}
    for name, tensor in tensors.items():
        if name not in expected:
            raise CheckpointError(f"unexpected tensor {name} in {kind}")
        if len(tensor.shape) != len(expected[name]) or any(
            wanted not in (size, -1) or size == 0 for size, wanted in zip(tensor.shape, expected[name], strict=True)
        ):
            raise CheckpointError(f"{name} has shape {shown(list(tensor.shape))}, expected {list(expected[name])}")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{name} has type {tensor.dtype}, expected a floating-point one")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{name} holds numbers that are not finite")
