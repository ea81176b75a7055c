from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import mxfp4_weights
from slipstream_kernels.models.checkpoint.weight_loader import check_headers, load_tensors
from slipstream_kernels.ops.quantised_weight import decode
from support.experts import pack_mxfp4
from support.families import EXPERTS
from support.models import make_tiny_model


def test_every_code_and_scale_decodes_as_in_transformers() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 1, 1)
    scales = torch.arange(40, 40 + 2 * 3 * 16, dtype=torch.uint8).reshape(2, 3, 16)
    expected = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
    for weight, dense in zip(mxfp4_weights(blocks, scales, "x"), expected, strict=True):
        assert torch.equal(decode(weight), dense)


@pytest.mark.parametrize("scale", [0, 36, 218, 255])
def test_scales_beyond_the_range_are_refused(scale: int) -> None:
    blocks, scales = torch.zeros(1, 1, 1, 16, dtype=torch.uint8), torch.full((1, 1, 1), scale, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=f"x_scales holds {scale}, must be from 37 to 217"):
        mxfp4_weights(blocks, scales, "x")


def test_a_folder(tmp_path: Path) -> None:
    """Gates and ups take turns in it."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["gpt_oss"])
    packed = pack_mxfp4(folder)
    tensors = load_tensors(folder, ModelConfig.from_folder(folder))
    name = "model.layers.1.mlp.experts"
    gate_up = convert_moe_packed_tensors(*packed[f"{name}.gate_up_proj"])[3]
    assert torch.equal(tensors[f"{name}.3.gate_proj.weight"], gate_up[:, ::2].t())
    assert torch.equal(tensors[f"{name}.3.up_proj.weight"], gate_up[:, 1::2].t())
    down = convert_moe_packed_tensors(*packed[f"{name}.down_proj"])[0]
    assert torch.equal(tensors[f"{name}.0.down_proj.weight"], down.t())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["gpt_oss"])
    pack_mxfp4(folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"intermediate_size": 96', '"intermediate_size": 48'))
    with pytest.raises(CheckpointError, match="intermediate_size is 48, must be a multiple of 32"):
        ModelConfig.from_folder(folder)
    (folder / "config.json").write_text(config.replace('"intermediate_size": 96', '"intermediate_size": 64'))
    with pytest.raises(CheckpointError, match=r"_blocks has shape .*, expected"):
        check_headers(folder, ModelConfig.from_folder(folder))
    (folder / "config.json").write_text(config.replace("gpt_oss", "mixtral").replace("attention_bias", "_"))
    with pytest.raises(CheckpointError, match="quant_method is 'mxfp4', which is not supported of a mixtral"):
        ModelConfig.from_folder(folder)
