from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.adapter.adapter_config import ModulePlan, read_adapter_config
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError

MODULES = [
    f"model.layers.{layer}.{part}_proj"
    for layer in range(12)
    for part in ("self_attn.q", "self_attn.v", "mlp.gate", "mlp.down")
]


def read(folder: Path, most_rank: int = 128, **fields: Any) -> dict[str, ModulePlan]:
    config = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "init_lora_weights": True}
    (folder / "adapter_config.json").write_text(json.dumps(config | fields))
    return read_adapter_config(folder, MODULES, most_rank)


def names(part: str, layers: range = range(12)) -> list[str]:
    return [f"model.layers.{layer}.{part}" for layer in layers]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"target_modules": ["q_proj"]}, names("self_attn.q_proj")),
        ({"target_modules": ["self_attn.q_proj", "absent"]}, names("self_attn.q_proj")),
        ({"target_modules": ["model.layers.1.mlp.down_proj"]}, ["model.layers.1.mlp.down_proj"]),
        ({"target_modules": r".*\.1\.mlp\.(gate|up)_proj"}, ["model.layers.1.mlp.gate_proj"]),
        ({"target_modules": "all-linear"}, MODULES),
        ({"target_modules": "all-linear", "exclude_modules": ".*(q|v|gate)_proj"}, names("mlp.down_proj")),
        ({"layers_to_transform": [2, 10]}, ["model.layers.2.self_attn.q_proj", "model.layers.10.self_attn.q_proj"]),
        ({"layers_to_transform": 3, "layers_pattern": "layers"}, ["model.layers.3.self_attn.q_proj"]),
    ],
)  # fmt: skip
def test_modules_are_those_that_peft_would_adapt(fields: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert sorted(read(tmp_path, **fields)) == sorted(expected)


def test_ranks_and_scales_by_pattern(tmp_path: Path) -> None:
    plans = read(
        tmp_path,
        target_modules="all-linear",
        rank_pattern={r"layers\.1\.self_attn\.q_proj": 64, "down_proj": 4},
        alpha_pattern={"v_proj": 8.0},
    )
    assert plans["model.layers.1.self_attn.q_proj"] == ModulePlan(64, 0.5)
    assert plans["model.layers.11.self_attn.q_proj"] == ModulePlan(16, 2.0)  # a pattern begins at a dot
    assert plans["model.layers.0.mlp.down_proj"] == ModulePlan(4, 8.0)
    assert plans["model.layers.0.self_attn.v_proj"] == ModulePlan(16, 0.5)


def test_rslora_divides_by_the_root(tmp_path: Path) -> None:
    plans = read(tmp_path, use_rslora=True, rank_pattern={r"layers\.0\.self_attn\.q_proj": 8})
    assert plans["model.layers.0.self_attn.q_proj"].scale == 32 / math.sqrt(8)
    assert plans["model.layers.1.self_attn.q_proj"].scale == 32 / 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"peft_type": "IA3"}, ["peft_type", "'IA3'"]),
        ({"task_type": "SEQ_CLS"}, ["task_type"]),
        ({"use_dora": True}, ["use_dora", "DoRA"]),
        ({"lora_bias": True}, ["lora_bias"]),
        ({"bias": "all"}, ["bias is 'all'"]),
        ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
        ({"init_lora_weights": "pissa_niter_4"}, ["init_lora_weights", "pissa"]),
        ({"init_lora_weights": "olora"}, ["init_lora_weights"]),
        ({"alora_invocation_tokens": [1, 2]}, ["alora_invocation_tokens"]),
        ({"target_parameters": ["experts.gate_up_proj"]}, ["target_parameters"]),
        ({"trainable_token_indices": [3]}, ["trainable_token_indices"]),
        ({"use_qalora": True}, ["use_qalora"]),
        ({"target_modules": ["q_proj", "lm_head"]}, ["lm_head"]),
        ({"target_modules": ["embed_tokens"]}, ["embed_tokens"]),
        ({"target_modules": ["c_attn"]}, ["target_modules", "c_attn"]),
        ({"target_modules": None}, ["target_modules is missing"]),
        ({"target_modules": "(a+)+"}, ["target_modules", "repeat"]),
        ({"target_modules": "(("}, ["target_modules"]),
        ({"target_modules": [1]}, ["target_modules"]),
        ({"rank_pattern": {"(a*)*": 4}}, ["rank_pattern"]),
        ({"rank_pattern": {"q_proj": 4.5}}, ["rank_pattern", "4.5"]),
        ({"r": 129}, ["129", "from 1 to 128", "--max-lora-rank"]),
        ({"r": 0}, ["r, or", "0"]),
        ({"r": True}, ["r, or", "True"]),
        ({"lora_alpha": -1}, ["lora_alpha", "-1"]),
        ({"lora_alpha": "16"}, ["lora_alpha"]),
        ({"use_rslora": "yes"}, ["use_rslora"]),
        ({"layers_to_transform": "1"}, ["layers_to_transform"]),
        ({"layers_pattern": "blocks"}, ["layers_pattern"]),
        ({"a_field_of_tomorrow": 1}, ["a_field_of_tomorrow"]),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **fields)
    assert all(word in str(caught.value) for word in ["adapter_config.json", *words])


def test_the_servers_own_limit_of_ranks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is 16, must be from 1 to 8"):
        read(tmp_path, most_rank=8)
