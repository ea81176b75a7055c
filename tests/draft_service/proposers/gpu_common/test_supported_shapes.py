from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError, check_form, check_room, check_shapes
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from support.families import FORMS
from support.models import make_tiny_model

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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama, all biases", "a llama with biases of other projections than queries, keys and values"),
        ("gemma2", "a gemma2 with norms behind attention and feed-forward layer, GELU, scaled embeddings, bounds of"),
    ],
)
def test_forms_that_no_round_computes_are_named(name: str, reason: str, tmp_path: Path) -> None:
    check_form(ModelConfig.from_folder(make_tiny_model(tmp_path / "phi", **FORMS["phi4-mini"])))
    with pytest.raises(NoGpuFormError, match=reason):
        check_form(ModelConfig.from_folder(make_tiny_model(tmp_path / "model", **FORMS[name])))


def test_the_host_s_memory_is_not_counted() -> None:
    check_room(2**60, torch.device("cpu"))
