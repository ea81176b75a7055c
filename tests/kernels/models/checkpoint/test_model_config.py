from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.model_form import PLAIN
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.rope import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling

BASE = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(folder: Path, changes: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    entries = {name: value for name, value in (BASE | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(entries))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert (config.num_kv_heads, config.head_dim, config.rope, config.rms_norm_eps) == (2, 64, Rope(10000.0), 1e-6)
    assert config.eos_token_ids == () and config.bos_token_id is None and not config.tie_word_embeddings
    assert config.q_size == config.kv_size == 128 and config.form == PLAIN


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": None, "rope_scaling": None, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_rope_theta_of_both_generations(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, changes).rope == Rope(5e5)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}},
    ],
)
def test_llama3_scaling(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, changes).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


def test_eos_of_generation_config_comes_first(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": 3}).eos_token_ids == (3,)
    assert read(tmp_path, {"eos_token_id": 3}, {"eos_token_id": [4, 5]}).eos_token_ids == (4, 5)
    assert read(tmp_path, {"eos_token_id": [3, 6]}, {}).eos_token_ids == (3, 6)


def test_families(tmp_path: Path) -> None:
    for family in ("qwen2", "mimo"):
        form = read(tmp_path, {"model_type": family, "attention_bias": True}).form
        assert form.qkv_bias and not form.output_bias
    assert read(tmp_path, {"model_type": "qwen3"}).form.head_norms
    form = read(tmp_path, {"attention_bias": True}).form
    assert form.qkv_bias and form.output_bias and not form.mlp_bias
    assert read(tmp_path, {"mlp_bias": True}).form.mlp_bias


WINDOW = {"sliding_window": 1024, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 1024}, (1024, 1024)),
        ({"model_type": "mistral", "sliding_window": 4096}, (0, 0)),
        ({"model_type": "mistral"}, (0, 0)),
        ({"model_type": "phi3", "sliding_window": 1024}, (1024, 1024)),
        ({"model_type": "phi3", "sliding_window": None}, (0, 0)),
        ({"model_type": "qwen2", "sliding_window": 1024}, (0, 0)),
        ({"model_type": "qwen2", **WINDOW}, (0, 0)),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 1}, (0, 1024)),
        ({"model_type": "qwen3", **WINDOW, "max_window_layers": 0}, (1024, 1024)),
        ({"model_type": "qwen3", **WINDOW, "layer_types": ["sliding_attention", "full_attention"]}, (1024, 0)),
        ({"model_type": "llama", "sliding_window": 1024}, (0, 0)),
    ],
)
def test_windows_by_layer(tmp_path: Path, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = read(tmp_path, changes)
    assert tuple(config.attention_of(layer).window for layer in range(2)) == windows
    assert config.max_context == 4096


def test_gemma2(tmp_path: Path) -> None:
    config = read(tmp_path, {"model_type": "gemma2", "hidden_size": 64})
    form = config.form
    assert (form.embed_scale, form.logit_cap, form.activation) == (8.0, 30.0, "gelu_tanh")
    assert form.branch_norms and form.stored_less_one and not form.head_norms
    assert config.tie_word_embeddings and config.head_dim == 256 and config.ropes == (Rope(10000.0),)
    assert config.attention_of(0) == AttentionForm(0, 1 / 16, 50.0)
    config = read(tmp_path, {"model_type": "gemma2", "sliding_window": 8, "attn_logit_softcapping": None})
    assert [config.attention_of(layer).window for layer in range(2)] == [8, 0]
    assert config.attention_of(1).cap == 0


def test_gemma3_turns_heads_in_two_ways(tmp_path: Path) -> None:
    gemma3 = {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 8}
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    for changes in (old, {"rope_parameters": nested}):
        config = read(tmp_path, gemma3 | changes)
        assert config.ropes == (Rope(2e4), Rope(5e5, LinearScaling(8.0)))
        assert [config.rope_of(layer) == Rope(2e4) for layer in range(7)] == [True] * 5 + [False, True]
        assert [config.attention_of(layer).window for layer in range(7)] == [8] * 5 + [0, 8]
        assert config.form.head_norms and config.form.logit_cap == 0
    assert read(tmp_path, gemma3).ropes == (Rope(1e4), Rope(1e6))
    assert read(tmp_path, gemma3 | {"sliding_window": 10**6}).ropes == (Rope(1e4), Rope(1e6))


LONGROPE = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 4}, LinearScaling(4.0)),
        ({"type": "dynamic", "factor": 4}, None),
        ({"type": "yarn", "factor": 4.0}, YarnScaling(4.0, 1.1386294361119891, 32.0, 1.0, 4096, truncate=True)),
        (
            {"type": "yarn", "original_max_position_embeddings": 1024, "attention_factor": 1.0, "truncate": False},
            YarnScaling(4.0, 1.0, 32.0, 1.0, 1024, truncate=False),
        ),
        (
            {"type": "su", **LONGROPE, "original_max_position_embeddings": 2048},
            LongRopeScaling((2.0,) * 32, (1 + 1 / 11) ** 0.5),
        ),
        ({"type": "longrope", **LONGROPE, "attention_factor": 1.5}, LongRopeScaling((1.0,) * 32, 1.5)),
    ],
)
def test_rope_scaling(tmp_path: Path, scaling: dict[str, Any], expected: object) -> None:
    for place in ("rope_scaling", "rope_parameters"):
        assert read(tmp_path, {place: scaling}).rope.scaling == expected


def test_a_part_of_the_head_turns(tmp_path: Path) -> None:
    assert read(tmp_path, {"model_type": "phi3", "partial_rotary_factor": 0.75}).rope.rotated == 48
    assert read(tmp_path, {"model_type": "phi3", "partial_rotary_factor": 1.0}).rope.rotated == 0
    assert read(tmp_path, {"model_type": "phi3"}).attention_of(0) == FULL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": "absent"}, "model_type is None, must be a string"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set"),
        ({"model_type": "gemma3"}, "model_type is 'gemma3'"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias is set"),
        ({"model_type": "phi3", "mlp_bias": True}, "mlp_bias is set"),
        ({"model_type": "mimo", "use_sliding_window": True}, "use_sliding_window is set"),
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": -1}, "max_window_layers is -1"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types is .* a list of 2, one a layer"),
        ({"model_type": "gemma2", "layer_types": ["full_attention", "no"]}, "layer_types has 'no', supported are full"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_scaling.rope_type is 'mrope', supported are default, dyn"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters.full_attention is an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1.0}, "rope_theta is 1, must be above 1"),
        ({"rope_scaling": {"type": "longrope", **LONGROPE, "short_factor": [1.0]}}, "a list of 32 numbers"),
        (
            {"rope_scaling": {"type": "longrope", **LONGROPE, "short_factor": [0] * 32}},
            "short_factor is 0, must be",
        ),
        (
            {"rope_scaling": {"type": "longrope", **LONGROPE, "original_max_position_embeddings": 1}},
            "original_max_position_embeddings is 1, must be 2 or more",
        ),
        ({"model_type": "phi3", "partial_rotary_factor": 0.01}, "0 elements of a head would turn"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0, must be a positive number"),
        ({"model_type": "gemma2", "final_logit_softcapping": -1}, "final_logit_softcapping is -1"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is None"),
        ({"vocab_size": "absent"}, "vocab_size is None, must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"hidden_size": 120, "head_dim": 64}, "hidden_size is 120, must be a multiple of 16"),
        ({"head_dim": 60}, "head_dim is 60"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads, 3"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
    ],
)
def test_what_we_cannot_run_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, changes)


@pytest.mark.parametrize("content", ["", "[]", "{", "\xff"])
def test_unreadable_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, the limit is 1024"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is 1000000000000, the limit is 16777216"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000, the limit is 1048576"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, must be a positive number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, must be a positive number"),
        ({"rms_norm_eps": 1e-40}, "rms_norm_eps is 1e-40, must be from 1e-30 to 1"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300, must be from 1 to"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], must be an object"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 5.0}},
            "must not be above high_freq_factor",
        ),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": float("nan")}}, "factor is nan"),
        ({"eos_token_id": 512}, "eos_token_id is 512, the vocabulary has ids from 0 to 511"),
        ({"eos_token_id": [3, -1]}, "must be a token id or a list of token ids"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000, the vocabulary"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', must be true or false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, supported is 1"),
        ({"model_type": ["llama"]}, r"model_type is \['llama'\], must be a string"),
        ({"model_type": "x" * 10**6}, r"^.{0,300}$"),
        ({"quantization_config": {"quant_method": "gguf", "bits": 4}}, "quant_method 'gguf'"),
        ({"head_dim": 10**6}, "head_dim is 1000000, the limit is 4096"),
    ],
)
def test_what_lies_is_named_on_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read(tmp_path, changes)
    assert "\n" not in str(raised.value)


def test_the_end_of_text_of_a_generation_config_lies_within_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is 900, the vocabulary"):
        read(tmp_path, {}, {"eos_token_id": 900})


def test_deep_long_and_special_files_are_not_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        ModelConfig.from_folder(tmp_path)
    with config.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="the file has 1099511627776 bytes, the limit is 67108864"):
        ModelConfig.from_folder(tmp_path)
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(CheckpointError, match="not a regular file"):
        ModelConfig.from_folder(tmp_path)


def test_a_message_shows_no_control_characters() -> None:
    error = CheckpointError("unexpected tensor a\nb\x1b[31m\ud800 " + "x" * 10_000)
    assert str(error).startswith(r"unexpected tensor a b\x1b[31m\ud800 x") and len(str(error)) < 700
