from __future__ import annotations

import pytest
import torch

from draft_service.heads.expected import check_tensors
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(0, 2), r"a has shape \[0, 2\], expected \[-1, 2\]"),
        (torch.tensor([[1.0, float("nan")]]), "a holds numbers that are not finite"),
        (torch.tensor([[1.0, float("-inf")]]), "a holds numbers that are not finite"),
        (torch.zeros(1, 2, dtype=torch.int8), "a has type torch.int8"),
    ],
)
def test_what_no_head_has_is_named(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_tensors("a head", {"a": tensor}, {"a": (-1, 2)}, {})
