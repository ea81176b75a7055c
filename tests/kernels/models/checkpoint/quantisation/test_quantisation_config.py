from __future__ import annotations

from typing import Any

import pytest

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation, WeightScheme
from support.quantised_models import FORMS

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.10.mlp.down_proj"


def read(config: dict[str, Any], **changes: Any) -> Quantisation:
    found = read_quantisation({"quantization_config": {**config, **changes}})
    assert found is not None
    return found


def form(name: str) -> dict[str, Any]:
    return dict(FORMS[name].config)


def group(name: str, weights: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The config of a form with another group."""
    config = form(name)
    first = config["config_groups"]["group_0"]
    config["config_groups"] = {"group_0": {**first, "weights": {**first["weights"], **(weights or {})}, **changes}}
    return config


def test_weights_that_are_not_quantised() -> None:
    assert read_quantisation({}) is None
    assert read_quantisation({"quantization_config": None, "compression_config": {}}) is None


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("fp8 block", WeightScheme("float", 8, "block", scale="weight_scale_inv")),
        ("fp8 tensor", WeightScheme("float", 8, "tensor or channel")),
        ("float channel", WeightScheme("float", 8, "channel")),
        ("int8 zeros", WeightScheme("int", 8, "channel", symmetric=False)),
        ("pack4 g32", WeightScheme("pack", 4, "group", 32)),
        ("pack4 channel", WeightScheme("pack", 4, "channel")),
        ("awq g64", WeightScheme("awq", 4, "group", 64, symmetric=False, scale="scales")),
        ("gptq g64", WeightScheme("gptq", 4, "group", 64, symmetric=False, zero_offset=1, scale="scales")),
        ("gptq v2", WeightScheme("gptq", 4, "group", 64, symmetric=False, scale="scales")),
    ],
)
def test_schemes_of_linear_layers(name: str, scheme: WeightScheme) -> None:
    found = read(form(name))
    assert found.scheme_of(Q) == found.scheme_of(DOWN) == scheme
    assert found.scheme_of("lm_head") is None


def test_activations_and_keys_stay_as_they_are_and_that_is_told() -> None:
    assert read(form("pack4 g32")).notices == ()
    (line,) = read(form("float channel")).notices
    assert "config_groups.group_0.input_activations" in line
    (line,) = read(form("fp8 block")).notices
    assert "activation_scheme 'dynamic'" in line
    (line,) = read(form("fp8 tensor")).notices
    assert "activation_scheme 'static'" in line
    (line,) = read(form("pack4 g32"), kv_cache_scheme={"num_bits": 8}).notices
    assert "kv_cache_scheme" in line


@pytest.mark.parametrize(
    ("ignore", "module", "quantised"),
    [
        (["lm_head"], "lm_head", False),
        ([], "lm_head", True),
        ([Q], Q, False),
        (["re:.*self_attn.*"], Q, False),
        (["re:.*self_attn.*"], DOWN, True),
        (["re:model.layers.1\\."], DOWN, True),
        (["q_proj"], Q, True),  # a name is whole, an expression begins where the name does
        (["re:q_proj"], Q, True),
    ],
)
def test_ignored_modules_of_compressed_tensors(ignore: list[str], module: str, *, quantised: bool) -> None:
    assert (read(form("int8"), ignore=ignore).scheme_of(module) is not None) is quantised


def test_names_count_before_classes() -> None:
    first = form("pack4 g32")["config_groups"]["group_0"]
    eight = {**first, "targets": ["re:.*down_proj$"], "weights": {**first["weights"], "num_bits": 8}}
    found = read(form("pack4 g32"), config_groups={"a": first, "b": eight})
    assert [found.scheme_of(name).bits for name in (Q, DOWN)] == [4, 8]  # type: ignore[union-attr]


def test_groups_may_have_formats_of_their_own() -> None:
    packed = form("pack4 g32")["config_groups"]["group_0"]
    floats = form("float channel")["config_groups"]["group_0"]
    groups = {
        "a": {**packed, "format": "pack-quantized", "targets": ["re:.*mlp.*"]},
        "b": {**floats, "format": "float-quantized"},
    }
    found = read(form("int8"), format="mixed-precision", config_groups=groups)
    assert [found.scheme_of(name).layout for name in (Q, DOWN)] == ["float", "pack"]  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fp8 block", "awq g64", "gptq g64"])
@pytest.mark.parametrize(
    ("entry", "module", "quantised"),
    [
        ("model.layers.1", DOWN, True),
        ("model.layers.10", DOWN, False),
        ("mlp", DOWN, False),
        ("down_proj", DOWN, False),
        ("proj", DOWN, True),
        ("mlp", Q, True),
    ],
)
def test_modules_left_out_by_parts_of_their_names(method: str, entry: str, module: str, *, quantised: bool) -> None:
    found = read(form(method), modules_to_not_convert=[entry])
    assert (found.scheme_of(module) is not None) is quantised
    assert found.scheme_of("lm_head") is None


def test_overrides_of_gptq() -> None:
    dynamic = {"-:.*q_proj": {}, "+:.*down_proj": {"bits": 8, "group_size": 32}}
    found = read(form("gptq g64"), dynamic=dynamic, lm_head=True)
    assert found.scheme_of(Q) is None
    down, head = found.scheme_of(DOWN), found.scheme_of("lm_head")
    assert down is not None and (down.bits, down.group) == (8, 32)
    assert head is not None and (head.bits, head.group) == (4, 64)
    inside = read(form("gptq g64"), modules_in_block_to_quantize=[["self_attn.q_proj"], ["mlp.up_proj"]])
    assert inside.scheme_of(Q) is not None and inside.scheme_of(DOWN) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quant_method 'bitsandbytes'.*supported are compressed-tensors, fp8, awq, gptq",
        ),
        ({"quant_method": ["gptq"]}, r"quant_method \['gptq'\]"),
        ({"bits": 4}, "quant_method None"),
        ({**form("fp8 block"), "weight_block_size": [64, 128]}, r"weight_block_size is \[64, 128\]"),
        ({**form("fp8 block"), "fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({**form("awq g64"), "version": "gemv"}, "version is 'gemv', supported are 'gemm'"),
        ({**form("awq g64"), "bits": 3}, "bits is 3"),
        ({**form("awq g64"), "zero_point": False}, "zero_point is False"),
        ({**form("awq g64"), "group_size": 16}, "group_size is 16, supported are -1, 32, 64, 128"),
        ({**form("gptq g64"), "desc_act": True}, "desc_act is true"),
        ({**form("gptq g64"), "bits": 4.0}, "bits is 4.0"),
        ({**form("gptq g64"), "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({**form("gptq g64"), "dynamic": {"q": {"desc_act": True}}}, "desc_act is true"),
        (
            {**form("int8"), "format": "nvfp4-pack-quantized"},
            "is 'nvfp4-pack-quantized', supported are float-quantized",
        ),
        ({**form("int8"), "format": "marlin-24"}, "is 'marlin-24'"),
        ({**form("int8"), "sparsity_config": {"format": "sparse-24-bitmask"}}, "format is 'sparse-24-bitmask'"),
        ({**form("int8"), "transform_config": {"config_groups": {}}}, "transform_config is set"),
        ({**form("int8"), "quantization_status": "frozen"}, "quantization_status is 'frozen'"),
        ({**form("int8"), "config_groups": {}}, "has 0 groups"),
        ({**form("int8"), "ignore": "lm_head"}, "ignore is 'lm_head', must be a list"),
        (group("pack4 g32", {"actorder": "group"}), "actorder is 'group'"),
        (group("pack4 g32", {"group_size": 16}), "group_size is 16, supported are 32, 64, 128"),
        (group("pack4 g32", {"num_bits": 3}), "'int' of 3 bits"),
        (group("pack4 g32", {"type": "float"}), "'float' of 4 bits"),
        (group("float channel", {"symmetric": False}), "symmetric is False"),
        (group("float block", {"block_structure": [64, 64]}), r"block_structure is \[64, 64\]"),
        (group("int8", {"strategy": "token"}), "strategy is 'token'"),
        (group("int8", {"dynamic": True}), "dynamic is True"),
        (group("int8", targets=["re:("]), "has '\\('"),
        (group("int8", output_activations={"num_bits": 8}), "output_activations is set"),
    ],
)
def test_what_is_not_supported_is_refused_in_the_files_own_words(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        read_quantisation({"quantization_config": config})
    assert "\n" not in str(raised.value)
