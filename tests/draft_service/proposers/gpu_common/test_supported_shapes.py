from __future__ import annotations

from typing import Any

import pytest
import torch

from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError, check_room, check_shapes

FITTING: dict[str, Any] = {"sizes": {"hidden_size": 48}, "heads": 64, "kv_heads": 1, "head_dim": 128}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"sizes": {"hidden_size": 64, "intermediate_size": 72}}, "intermediate_size is 72"),
        ({"head_dim": 96}, "head_dim is 96"),
        ({"heads": 130}, "130 query heads"),
    ],
)
def test_a_gpu_takes_some_shapes_and_the_twins_take_all(other: dict[str, Any], reason: str) -> None:
    check_shapes(**FITTING, device=torch.device("cuda"))
    check_shapes(**FITTING | other, device=torch.device("cpu"))
    with pytest.raises(NoGpuFormError, match=reason):
        check_shapes(**FITTING | other, device=torch.device("cuda"))


def test_the_host_s_memory_is_not_counted() -> None:
    check_room(2**60, torch.device("cpu"))
