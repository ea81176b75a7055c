"""Activations in e4m3: what models have them, and what is said of those that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream_kernels.models.checkpoint.load_warnings import notices
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.checkpoint.served_config import served_config
from support.families import EXPERTS
from support.models import make_tiny_model
from support.quantised_models import FORMS, Form, write_quantised


def write(folder: Path, form: Form, **sizes: object) -> Path:
    return write_quantised(make_tiny_model(folder / "source", tied=False, **sizes), folder / "model", form)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fp8 tensor", "float channel"])
def test_models_with_scales_of_rows_and_tensors(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, FORMS[name])
    asked, plain = (served_config(folder, fp8_activations=each) for each in (True, False))
    assert asked.quantisation is not None and asked.quantisation.fp8_activations
    assert plain.quantisation is not None and not plain.quantisation.fp8_activations
    (line,) = notices(folder, asked)
    assert "a scale of its own" in line and "(input_scale) are not used" in line
    (line,) = notices(folder, plain)
    assert line.startswith("activations are not quantised here")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp8 block", r"layers.0.self_attn.q_proj has scales of blocks, which are not supported with activations in"),
        ("float block", "has scales of blocks, which are not supported"),
        ("int8", r"no linear layer of the model has weights in fp8 \(e4m3\)"),
    ],
)
def test_other_models_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"--linear-activations fp8: .*{message}"):
        served_config(write(tmp_path, FORMS[name]), fp8_activations=True)


def test_models_without_fewer_bits_and_with_experts_are_refused(tmp_path: Path) -> None:
    plain, mixture = make_tiny_model(tmp_path / "plain"), make_tiny_model(tmp_path / "mixture", **EXPERTS["qwen2_moe"])
    with pytest.raises(CheckpointError, match="--linear-activations fp8: no linear layer"):
        served_config(plain, fp8_activations=True)
    with pytest.raises(CheckpointError, match="--linear-activations fp8: mixtures of experts are not supported"):
        served_config(mixture, fp8_activations=True)
    assert served_config(mixture, fp8_activations=False).form.experts is not None


def test_the_head_alone_is_not_enough(tmp_path: Path) -> None:
    form = Form({**FORMS["float channel"].config, "ignore": ["re:model.*"]}, FORMS["float channel"].write, ("model",))
    folder = write(tmp_path, form)
    with pytest.raises(CheckpointError, match="no linear layer"):
        served_config(folder, fp8_activations=True)
