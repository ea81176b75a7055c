from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from slipstream_kernels.models.checkpoint.load_warnings import notices
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.text_part import OTHER_PREFIXES, read_text_fields
from slipstream_kernels.models.checkpoint.weight_loader import check_headers, load_tensors, stored_shapes, weight_bytes
from support.experts import add_vision
from support.families import EXPERTS
from support.models import EOS_ID, make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", **EXPERTS["llama4"])


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def test_the_part_is_the_model(folder: Path) -> None:
    """All but the family's name, and the tensors' in the folder."""
    whole, before = ModelConfig.from_folder(folder), load_tensors(folder, ModelConfig.from_folder(folder))
    size = weight_bytes(folder, whole)
    add_vision(folder)
    config = ModelConfig.from_folder(folder)
    assert (config.form, config.rope, config.eos_token_ids) == (whole.form, whole.rope, whole.eos_token_ids)
    check_headers(folder, config)
    after = load_tensors(folder, config)
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)
    assert 0 <= weight_bytes(folder, config) - size < 8192  # of the header
    (line,) = notices(folder, config)
    assert line == "2 tensors of parts that are not text are left out: text alone is read and written"


def test_fields_of_the_whole_count_where_the_part_has_none(folder: Path) -> None:
    add_vision(folder)
    quantised = {"quant_method": "fp8"}
    rewrite(folder, quantization_config=quantised, eos_token_id=7)
    fields = read_text_fields(folder)
    assert fields["quantization_config"] == quantised and fields["model_type"] == "llama4"
    assert fields["eos_token_id"] == EOS_ID
    part = fields | {"model_type": "llama4_text"}
    part.pop("quantization_config")
    rewrite(folder, text_config={**part, "eos_token_id": None})
    assert read_text_fields(folder)["eos_token_id"] == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config": None}, "text_config is missing, which a llama4 has"),
        ({"text_config": 3}, "text_config is 3, must be an object"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type is 'llama', supported is 'llama4_text'"),
    ],
)
def test_a_part_that_lies_is_named(folder: Path, changes: dict[str, Any], message: str) -> None:
    add_vision(folder)
    rewrite(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_folder(folder)


def test_names_are_those_of_the_model_that_sees(folder: Path) -> None:
    """As transformers makes it, with tensors of all its parts."""
    import torch

    add_vision(folder)
    config = ModelConfig.from_folder(folder)
    own = json.loads((folder / "config.json").read_text())
    vision = {
        "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
        "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
    }  # fmt: skip
    both = transformers.Llama4Config(text_config=own["text_config"], vision_config=vision)
    with torch.device("meta"):
        twin = transformers.Llama4ForConditionalGeneration(both)
    found = {name: tuple(each.shape) for name, each in twin.state_dict().items()}
    text = {name: shape for name, shape in found.items() if not name.startswith(OTHER_PREFIXES)}
    assert len(text) < len(found)
    assert text == dict(stored_shapes(config)) | {
        name: shape for name, shape in text.items() if name.endswith("inv_freq")
    }
