"""One config from flat files, nested ones, and every count of layers."""

import json

import pytest

from draft_service.heads.config import HeadConfig
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.ops.rope import Rope

LAYER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 96}
IDS = "eagle_aux_hidden_state_layer_ids"


def read(tmp_path, document):
    (tmp_path / "config.json").write_text(json.dumps(document))
    return HeadConfig.from_folder(tmp_path)


def test_defaults(tmp_path):
    config = read(tmp_path, LAYER)
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (1, 4, 8)
    assert (config.rms_norm_eps, config.rope) == (1e-6, Rope(10000.0))
    assert (config.target_hidden_size, config.boundaries, config.speculators) == (32, (), False)


def test_nested(tmp_path):
    document = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": LAYER | {"head_dim": 16, "rope_parameters": {"rope_theta": 5e5}},
        "norm_before_residual": True,
        "target_hidden_size": 48,
    }
    config = read(tmp_path, document)
    assert (config.hidden_size, config.head_dim, config.rope, config.vocab_size) == (32, 16, Rope(5e5), 96)
    assert (config.norm_before_residual, config.target_hidden_size, config.speculators) == (True, 48, True)


@pytest.mark.parametrize(
    ("document", "boundaries"),
    [
        ({IDS: [2, 18, 33]}, (2, 18, 33)),
        ({IDS: [1, 46, 90]}, (1, 46, 90)),
        ({"eagle_config": {IDS: [1, 46, 90]}}, (2, 47, 91)),
        ({"eagle_config": {IDS: [24, 30, 36]}}, (24, 30, 36)),
        ({IDS: [2, 18, 33], "eagle_config": {IDS: [1, 17, 32]}}, (2, 18, 33)),
        ({IDS: None, "eagle_config": {IDS: [1, 17, 32]}}, (2, 18, 33)),
    ],
)
def test_boundaries(document, boundaries, tmp_path):
    assert read(tmp_path, LAYER | document).boundaries == boundaries


def test_a_list_copied_from_outputs_is_suspected(tmp_path, caplog):
    read(tmp_path, LAYER | {IDS: [2, 18, 33]})
    assert not caplog.records
    read(tmp_path, LAYER | {IDS: [1, 46, 90]})
    assert "begins with 1" in caplog.text


def test_a_list_that_engines_count_differently_is_suspected(tmp_path, caplog):
    for certain in ({"eagle_config": {IDS: [1, 46, 90]}}, {IDS: [3, 6, 9], "eagle_config": {IDS: [2, 5, 8]}}):
        read(tmp_path, LAYER | certain)
    assert not caplog.records
    read(tmp_path, LAYER | {"eagle_config": {IDS: [24, 30, 36]}})
    assert "taken for boundaries" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, the limit is 1024"),
        ({"vocab_size": "many"}, "vocab_size is 'many', must be a positive integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"eos_token_id": 96}, "eos_token_id is 96, the vocabulary has ids from 0 to 95"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"norm_output": 3}, "norm_output is 3, must be true or false"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method 'bitsandbytes'"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4 is for experts, which heads here have not"),
        ({"transformer_layer_config": 7}, "transformer_layer_config is 7, must be an object"),
        ({IDS: [10**9]}, "must be a list of layers"),
    ],
)
def test_what_lies_is_named(changes, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, LAYER | changes)
