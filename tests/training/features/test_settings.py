"""What may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.features.settings import FeatureSettings, Machine, default_boundaries


def test_the_demo_models_boundaries_are_those_of_eagle_3_and_the_heads(demo_model: Path) -> None:
    config = ModelConfig.from_folder(demo_model)
    resolved = FeatureSettings().resolved(config)
    assert (resolved.boundaries, resolved.max_tokens) == ((2, 4, 5, 9), 4096)
    assert default_boundaries(32) == (2, 16, 29, 33)


@pytest.mark.parametrize("layers", [1, 4, 6])
def test_shallow_models_need_names(layers: int) -> None:
    with pytest.raises(ValueError, match="too shallow"):
        default_boundaries(layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"boundaries": (1, 4)}, r"boundaries are \[1, 4\], must be different ones of 0 to 3"),
        ({"boundaries": (1, 1)}, "different ones"),
        ({"boundaries": (1,), "max_tokens": 513}, "max_tokens is 513, the model's context is 512"),
        ({"boundaries": (1,), "max_tokens": -1}, "max_tokens is -1"),
        ({"boundaries": (1,), "longer": "keep"}, "longer is 'keep', must be cut or drop"),
    ],
)
def test_what_a_model_has_not_is_refused(tiny_model: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureSettings(**settings).resolved(ModelConfig.from_folder(tiny_model))


def test_rows_have_a_limit() -> None:
    assert (Machine().pass_rows, Machine("cuda:1").pass_rows, Machine(rows=5).pass_rows) == (256, 2048, 5)
    with pytest.raises(ValueError, match="rows are 65537"):
        Machine(rows=65537)
